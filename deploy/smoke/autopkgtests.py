"""Debian's own tests of source packages, with and without a library preloaded."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import ranking
from compare import Verdict, quiet

# What a test may ask for. All else needs a machine, a network or a build of the package, or need not pass.
ALLOWED = {
    "allow-stderr",
    "superficial",
    "rw-build-tree",
    "needs-root",
    "skip-not-installable",
    "needs-recommends",
}
LARGEST_SOURCE = 1 << 20
LIMIT_S = 300
RESULT = re.compile(r"^(\S+)\s+(PASS|FAIL|SKIP|FLAKY|BROKEN)\b(.*)$", re.M)


def stanzas(text):
    for stanza in re.split(r"\n\s*\n", re.sub(r"^#.*\n", "", text, flags=re.M)):
        fields = dict(re.findall(r"^([A-Za-z0-9-]+):[ \t]*(.*(?:\n[ \t].*)*)", stanza, re.M))
        if fields:
            yield fields


def suitable(control):
    """The names of tests in debian/tests/control that may run here."""
    names = []
    for fields in stanzas(control):
        if set(re.split(r"[,\s]+", fields.get("Restrictions", "").strip())) - {""} <= ALLOWED:
            names += re.split(r"[,\s]+", fields.get("Tests", "").strip())
    return [name for name in names if name]


def sources():
    """Names of small source packages with tests of their own, those first that most packages depend on."""
    counts = ranking.dependents(ranking.stanzas())
    found = {}
    lists = Path("/var/lib/apt/lists")
    for file in sorted(lists.glob("*_main_source_Sources*")):
        told = subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", file], capture_output=True, check=True)
        for fields in stanzas(told.stdout.decode(errors="replace")):
            size = sum(
                map(int, re.findall(r"^ [0-9a-f]{64} (\d+) ", fields.get("Checksums-Sha256", ""), re.M))
            )
            if (
                "autopkgtest" in fields.get("Testsuite", "").replace(",", " ").split()
                and size <= LARGEST_SOURCE
            ):
                binaries = re.split(r"[,\s]+", fields.get("Binary", ""))
                found[fields["Package"]] = max(counts[name] for name in binaries)
    return sorted(found, key=lambda name: (-found[name], name))


def prepared():
    first = Path("/etc/apt/sources.list").read_text().splitlines()[0]  # the suite itself, without updates
    Path("/etc/apt/sources.list.d/sources.list").write_text(first.replace("deb ", "deb-src ", 1) + "\n")
    quiet("apt-get", "-q", "update")
    done = quiet("apt-get", "-qy", "--no-install-recommends", "install", "autopkgtest", "dpkg-dev")
    if done.returncode:
        raise SystemExit(f"programs: autopkgtest: {done.stderr[-2000:]}")


def tested(folder, names, environment):
    """What each test's result is, by name, and the text; in a copy, as tests write into their folder."""
    words = ["timeout", "--kill-after=5", str(LIMIT_S), "autopkgtest", "--no-built-binaries"]
    words += [f"--test-name={name}" for name in names] + [
        f"--env={name}={value}" for name, value in environment.items()
    ]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        copy = shutil.copytree(folder, Path(scratch) / folder.name, symlinks=True)
        done = quiet(*words, copy, "--", "null")
    text = done.stdout + done.stderr
    summary = text.rsplit("@@@@@@@@@@@@@@@@@@@@ summary", 1)
    if len(summary) == 1:  # it did not come so far
        return {}, text
    return {name: result for name, result, _ in RESULT.findall(summary[1])}, text


def fetched(package, scratch):
    """The folder of a package's source, or of Debian's part of it alone; and what apt said."""
    words = ["apt-get", "-q", "-o", "Acquire::Retries=0", "-o", "APT::Sandbox::User=root", "source"]
    done = quiet(*words, package, cwd=scratch)
    folders = [path for path in Path(scratch).iterdir() if path.is_dir()]
    if done.returncode == 0 and folders:
        return folders[0], ""
    # Some mirrors lack the upstream part. Tests of the installed package often need only Debian's.
    done = quiet(*words, "--diff-only", package, cwd=scratch)
    parts = list(Path(scratch).glob("*.debian.tar.*"))
    if done.returncode or not parts:
        return None, done.stderr[-200:].strip()
    folder = Path(scratch) / "debian-part" / package
    folder.mkdir(parents=True)
    quiet("tar", "-xf", parts[0], "-C", folder)
    return folder, ""


def compared(package, environment):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        folder, why = fetched(package, scratch)
        if folder is None:
            return Verdict("left out", f"its source cannot be fetched: {why}")
        control = folder / "debian/tests/control"
        names = suitable(control.read_text(errors="replace")) if control.exists() else []
        if not names:
            return Verdict("left out", "no test that may run here")
        plain, text = tested(folder, names, {})
        passed = [name for name, result in plain.items() if result == "PASS"]
        if not passed:
            return Verdict("left out", f"no test passes plainly: {plain or text[-300:]}")
        for _ in range(2):
            other, text = tested(folder, passed, environment)
            failed = [name for name in passed if other.get(name) != "PASS"]
            if not failed:
                return Verdict("same", f"{len(passed)} tests")
        again, _ = tested(folder, failed, {})
        if any(again.get(name) != "PASS" for name in failed):
            return Verdict("left out", "fails plainly, too, now and then")
        return Verdict("failure", f"{failed}: {text[-3000:]}")


def compare(results, wanted, environment, left_out):
    """Compares the tests of source packages until so many were."""
    prepared()
    done = [one for one in results.known.values() if one["command"].startswith("autopkgtest ")]
    count = sum(one["outcome"] != "left out" for one in done)
    for package in sources():
        if count >= wanted:
            break
        command = f"autopkgtest {package}"
        if command in results.known:
            continue
        why = next((why for pattern, why in left_out.items() if re.fullmatch(pattern, package)), None)
        verdict = Verdict("left out", why) if why else compared(package, environment)
        results.add(package, package, command, verdict)
        quiet("apt-get", "-qy", "autoremove")
        quiet("apt-get", "clean")
        count += verdict.outcome != "left out"
        print(f"{count} packages' tests: {package}: {verdict.outcome}: {verdict.why[:100]}", flush=True)
