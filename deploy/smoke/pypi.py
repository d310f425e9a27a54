"""Programs of PyPI with and without a library preloaded: the newest versions for the suite's Python."""

import json
import tomllib
from pathlib import Path

from compare import Verdict, compared, quiet

PLACE = Path("/opt/pypi")
LIMIT_S = 90


def installed(packages):
    """What pip says where it cannot install, or an empty text."""
    done = quiet(PLACE / "bin/pip", "install", "-q", "--no-cache-dir", "--only-binary", ":all:", *packages)
    if done.returncode == 0:
        return ""
    # A package without a wheel; what it needs may still be built, as its owner's pip would.
    done = quiet(PLACE / "bin/pip", "install", "-q", "--no-cache-dir", *packages)
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
    return "" if done.returncode == 0 else "pip cannot install it: " + " ".join(lines)[-200:]


def versions():
    told = quiet(PLACE / "bin/pip", "list", "--format", "json").stdout
    return {one["name"].lower().replace("_", "-"): one["version"] for one in json.loads(told)}


def compare(results, wanted, environment):
    """Compares so many jobs of pypi.toml, in its order."""
    jobs = tomllib.loads((Path(__file__).parent / "pypi.toml").read_text())["jobs"]
    if not (PLACE / "bin/pip").exists():
        done = quiet(
            "apt-get", "-qy", "--no-install-recommends", "install", "python3-venv", "python3-dev", "gcc"
        )
        done = done if done.returncode else quiet("python3", "-m", "venv", PLACE)
        if done.returncode:
            raise SystemExit(f"programs: {PLACE}: {done.stderr[-2000:]}")
    for name, job in list(jobs.items())[:wanted]:
        command = f"PATH={PLACE}/bin:$PATH; {job['run']}"
        if command in results.known:
            continue
        packages = job["packages"].split()
        why = installed(packages)
        verdict = Verdict("left out", why) if why else compared(command, environment, LIMIT_S)
        if verdict.outcome == "same":
            of = versions()
            verdict.why = ", ".join(f"{one} {of.get(one.split('[')[0].lower(), '?')}" for one in packages)
        results.add(f"pypi:{name}", f"pypi:{name}", command, verdict)
        print(f"PyPI: {name}: {verdict.outcome}: {verdict.why[:100]}", flush=True)
