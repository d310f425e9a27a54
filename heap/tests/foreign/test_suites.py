"""Other projects' test suites, with and without the heap preloaded: what passes without it must pass with it.

Sources are fetched as Debian source packages; sources, builds, outputs and the outcomes without the heap
are kept in ~/.cache/mayfly/suites. What must be installed is in heap/tests/packages.txt. Servers that a
suite starts listen on 127.0.0.1 and end with it.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import tomllib

import suites

from bench.debian_source import CACHE

SUITES = tomllib.loads((suites.HERE / "suites.toml").read_text())
OURS = ("LD_PRELOAD", "MAYFLY_", "PYTHON", "PYTEST_")
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(OURS)} | {"LC_ALL": "C.UTF-8"}


def pytest_generate_tests(metafunc):
    which = "quick" if metafunc.config.option.quick else "names"
    metafunc.parametrize("name", [name for name, suite in SUITES.items() if which in suite])


def run(name, names, environment, quick, log):
    with tempfile.TemporaryDirectory() as folder:
        suite = suites.Suite(environment, folder, quick)
        getattr(suites, name)(suite, names)
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / f"{name}.{log}.log").write_text(suite.text)
    return suite.outcomes


def without_heap(name, names, options):
    """Kept from an earlier run of the same names, program and version."""
    # Of these files only what decides about tests counts, but all of it is simplest and safe.
    key = hashlib.sha256(json.dumps([name, names]).encode())
    for file in sorted(file for file in suites.HERE.iterdir() if file.is_file()):
        key.update(file.read_bytes())
    if version := SUITES[name].get("version", "").split():
        said = subprocess.run(version, capture_output=True)
        key.update(shutil.which(version[0]).encode() + said.stdout + said.stderr)
    kept = CACHE / f"without/{name}-{key.hexdigest()[:16]}.json"
    if options.fresh or not kept.exists():
        outcomes = run(name, names, CLEAN, options.quick, "without")
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(outcomes))
    return json.loads(kept.read_text())


def test_suite(heap, pytestconfig, record_property, name):
    options = pytestconfig.option
    names = SUITES[name]["quick" if options.quick else "names"].split()
    with_heap = CLEAN | {"LD_PRELOAD": str(heap.library)} | dict(pair.split("=", 1) for pair in options.env)
    passes = [test for test, how in without_heap(name, names, options).items() if how == "pass"]
    failing, counts = passes, []
    for log in (
        "with",
        "again",
        "once more",
    ):  # a test that depends on time or load: does it pass when repeated?
        outcomes = run(name, names, with_heap, options.quick, log)
        failing = [test for test in failing if outcomes.get(test) != "pass"]
        counts.append(len(failing))
        names = sorted({test.split(": ")[0] for test in failing})
        if not names:
            break
    again = counts[0] - counts[-1]
    said = f"{len(passes)} pass without the heap, {len(passes) - len(failing)} with it, {again} when repeated"
    record_property("said", f"{name}: {said}")
    assert passes
    assert not failing, f"only with the heap (see {CACHE}/{name}.with.log): {failing[:40]}"
