"""Runs each suite and collects the outcomes of its tests. A test is called NAME: ...; NAME runs it again."""

import hashlib
import os
import re
import xml.etree.ElementTree
from pathlib import Path

from preloaded import start

from bench import debian_source as debian
from bench.debian_source import need

HERE = Path(__file__).resolve().parent


class Outcomes(dict):
    """Test -> pass, fail or skip. One of the same name gets a number."""

    def add(self, test, outcome):
        unique, number = test, 2
        while unique in self:
            unique, number = f"{test} #{number}", number + 1
        self[unique] = outcome


class Suite:
    """One run of a suite in its folder: `run` keeps what programs print, `add` the outcome of a test."""

    def __init__(self, environment, folder, quick):
        self.environment, self.folder, self.quick = environment, Path(folder), quick
        self.outcomes, self.text = Outcomes(), ""

    def run(self, command, timeout, cwd=None, **more):
        status, out, err = start(command, timeout, self.environment | more, cwd=cwd or self.folder)
        self.text += f"{out}\n{err}\n"
        return status, out

    def add(self, test, passed):
        self.outcomes.add(test, passed if isinstance(passed, str) else "pass" if passed else "fail")


def cpython(suite, names):
    # Debian's, whose tests these are; not the Python that comes first in PATH.
    python = Path("/usr/bin/python3").resolve()
    tests = Path("/usr/lib") / python.name / "test/test_dict.py"
    package = f"lib{python.name}-testsuite"
    assert tests.exists(), f"CPython's tests are missing; install the Debian package {package}"
    report = suite.folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "test", "-j2", "--timeout=300", f"--tempdir={suite.folder}"]
    # PYTHONMALLOC=malloc: every object of Python's comes from the heap, not from its own arenas.
    variables = {"PYTHONMALLOC": "malloc", "HOME": str(suite.folder)}
    limit = 300 if suite.quick else 2400
    _, out = suite.run([*command, "--junit-xml", report, *names], limit, **variables)
    if report.exists():
        for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
            bad = case.find("failure") is not None or case.find("error") is not None
            test = case.get("name")
            how = "fail" if bad else "skip" if case.find("skipped") is not None else "pass"
            suite.add(f"{re.search('test_[a-z0-9_]+|$', test)[0]}: {test}", how)
    # A test file whose process died has no report: the files have an outcome too.
    ends = "passed|failed|skipped|crashed|timed out|run no tests"
    for name, how in re.findall(rf"^\d+:\d\d:\d\d .*\] (test_\w+) ({ends})?", out, re.M):
        suite.add(f"{name}: file", "skip" if how in ("skipped", "run no tests") else how in ("", "passed"))


def redis(suite, names):
    source = debian.source("redis")
    for name in ("redis-server", "redis-cli", "redis-benchmark"):
        link = source / "src" / name
        link.unlink(missing_ok=True)
        link.symlink_to(need(name, "redis-server"))
    need("tclsh8.6", "tcl")
    outcome = {"ok": "pass", "skip": "skip"}
    for unit in names:  # one run each: the names of tests of units run together would mix
        command = f"./runtest --baseport 31000 --portcount 500 --clients 1 --timeout 240 --single {unit}"
        status, out = suite.run(command.split(), 300, source, TERM="dumb")
        out = re.sub(r"\x1b\[[0-9;]*m", "", out)
        for how, test in re.findall(r"^\[(ok|err|skip|exception|timeout)\]: (.*)$", out, re.M):
            test = re.sub(r" \(\d+ ms\)$| in tests/\S+$", "", test)
            # Numbers vary from run to run: sizes, times, rates.
            suite.add(f"{unit}: {re.sub('[0-9.]+', 'N', test)}", outcome.get(how, "fail"))
        # Tests that fail are there already; this is for servers that crash and units that do not end.
        crashed = re.search(r"REDIS BUG REPORT|mayfly-heap:|crashed by signal", suite.text)
        suite.add(f"{unit}: ran to its end", status != "timeout" and "The End" in out and not crashed)


def sqlite(suite, names):
    source = debian.source("sqlite3")
    program = source / "testfixture"
    if not program.exists():
        debian.quietly(["./configure", "--quiet", "--with-tcl=/usr/lib/tcl8.6", "CFLAGS=-O1 -w"], source)
        debian.quietly(["make", "-s", f"-j{os.cpu_count()}", "testfixture"], source)
    for name in names:
        found = [source / folder / f"{name}.test" for folder in ("test", "ext/session", "ext/rtree")]
        for path in [path for path in found if path.exists()][:1]:
            status, out = suite.run([program, path, "--verbose=1"], 240)
            for test, how in re.findall(r"^(\S+)\.\.\. ?(Ok|Error|Omitted)?$", out, re.M):
                test, how = test.lstrip("."), {"Ok": "pass", "Omitted": "skip"}.get(how, "fail")
                if not re.search(r"oom|ioerr|malloc|iFail|fault|thread", name + test):
                    suite.add(f"{name}: {test}", how)
                    continue
                # One for all failures injected or steps of a race: how many depends on malloc's sizes.
                test = f"{name}: {re.sub('[0-9]+', 'N', test)}"
                if suite.outcomes.get(test) != "fail":
                    suite.outcomes[test] = how
            clean = status == 0 and re.search(r"^0 errors out of", out, re.M)
            suite.add(f"{name}: ran to its end with 0 errors", bool(clean))


def git(suite, names):
    source = debian.source("git")
    if not (source / "git").exists() or not (source / "t/helper/test-tool").exists():
        need("perl", "perl")
        without = [f"NO_{name}=1" for name in ("CURL", "EXPAT", "OPENSSL", "GETTEXT", "TCLTK", "PYTHON")]
        debian.quietly(["make", "-s", f"-j{os.cpu_count()}", "CFLAGS=-O1 -w", *without], source)
    # Without its own settings of glibc's malloc, which replace LD_PRELOAD.
    variables = {"TEST_NO_MALLOC_CHECK": "1", "HOME": str(suite.folder)}
    for name in names:
        for script in sorted((source / "t").glob(f"{name}-*.sh")):
            command = ["sh", f"./{script.name}", f"--root={suite.folder}"]
            status, out = suite.run(command, 300, source / "t", **variables)
            for bad, number, rest in re.findall(r"^(not )?ok (\d+)(.*)$", out, re.M):
                rest = rest.replace(str(suite.folder), "")  # some names hold the path
                suite.add(
                    f"{name}: {number}{rest}", "skip" if "# skip" in rest or "TODO" in rest else not bad
                )
            ended = status in (0, 1) and re.search(r"^1\.\.\d+", out, re.M)
            suite.add(f"{name}: {script.stem} ran to its end", bool(ended))


def gcc(suite, names):
    """The outcome is what the compiler writes: it must not only end well but write the same bytes."""
    classes, target = f"-DCLASSES={8 if suite.quick else 80}", suite.folder / "large"
    for level in names:
        options = [] if level == "program" else ["-c", *level.split(",")]
        command = [need("g++", "g++"), "-std=c++17", classes, "-frandom-seed=1", *options]
        status, _ = suite.run([*command, HERE / "large.cc", "-o", target], 600)
        written = hashlib.sha256(target.read_bytes()).hexdigest() if status == 0 else status
        suite.add(f"{level}: g++ writes {written}", status == 0)
        if level == "program":
            suite.add("program: runs", status == 0 and suite.run([target], 60)[0] == 0)


def prints_ok(suite, name, command):
    """A program that prints `ok ...` lines: each is a test, and so is how it ended."""
    status, out = suite.run(command, 240)
    for line in re.findall(r"^ok .*$", out, re.M):
        suite.add(f"{name}: {line}", True)
    suite.add(f"{name}: ended well", status == 0)


def jvm(suite, names):
    javac, java = need("javac", "default-jdk-headless"), need("java", "default-jdk-headless")
    prints_ok(suite, "javac", [javac, "-d", suite.folder, HERE / "Threads.java"])
    for name in names:
        collector = [] if name == "default" else [f"-XX:+Use{name}"]
        prints_ok(suite, name, [java, *collector, "-Xmx256m", "-cp", ".", "Threads"])


def node(suite, names):
    for name in names:
        prints_ok(suite, name, [need("node", "nodejs"), HERE / "workers.js"])
