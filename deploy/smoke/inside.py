"""Runs in the Debian that deploy/programs made: installs packages in order, and compares their programs.

Results are lines of JSON in a file; commands that are in it already are not run again.
"""

import argparse
import concurrent.futures
import json
import re
import subprocess
import sys
import time
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

import autopkgtests
import pypi
import ranking
from compare import Verdict, check, compared, quiet

HERE = Path(__file__).parent
LIBRARIES = Path("/opt/mayfly")
SOCKET = "/opt/mayfly/share.socket"
TOLD_S, JOB_S = 15, 90
PROGRAMS_A_PACKAGE = 3  # coreutils alone has a hundred
PACKAGES_AT_ONCE = 10
LAYERS = {
    "heap": {"LD_PRELOAD": f"{LIBRARIES}/libmayfly_heap.so", "MAYFLY_HEAP_CONTROL": "on"},
    # The smallest size that the library accepts, so that most programs have blocks of it.
    "merge": {
        "LD_PRELOAD": f"{LIBRARIES}/libmayfly_merge_auto.so",
        "MAYFLY_MERGE_AUTO": "64K",
        "MAYFLY_SHARE_SOCKET": SOCKET,
    },
}


@dataclass
class Command:
    program: str
    package: str
    words: str
    limit_s: int = TOLD_S


class Results:
    """What is known of each command, kept in a file of one line for each."""

    def __init__(self, file):
        self.file = file
        lines = file.read_text().splitlines() if file.exists() else []
        self.known = {one["command"]: one for one in map(json.loads, lines)}

    def add(self, program, package, command, verdict):
        one = {"program": program, "package": package, "command": command, **asdict(verdict)}
        self.known[command] = one
        with self.file.open("a") as file:
            file.write(json.dumps(one) + "\n")
        if verdict.outcome == "failure":
            print(f"new failure: {command}: {verdict.why}", flush=True)

    def of(self, outcome, key="command"):
        return {one[key] for one in self.known.values() if one["outcome"] == outcome}


def prepared():
    """Lists of packages and files, a user for the commands, and no services."""
    Path("/etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")  # no waiting for the disk
    policy = Path("/usr/sbin/policy-rc.d")
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    # What a run that was ended early has left half installed.
    quiet("dpkg", "--configure", "-a")
    quiet("apt-get", "-qy", "--fix-broken", "install")
    for words in (["apt-get", "-q", "update"], ["apt-get", "-qy", "install", "iproute2", "util-linux"]):
        done = quiet(*words)
        if done.returncode:
            raise SystemExit(f"programs: {' '.join(words)}: {done.stderr[-2000:]}")
    if quiet("id", "smoke").returncode:
        quiet("useradd", "--create-home", "smoke")


def install(packages):
    """Installs packages beside those that are there; those for which that is impossible, with the reason."""
    words = [
        "apt-get",
        "-qy",
        "--no-install-recommends",
        "--no-remove",
        "-o",
        "DPkg::Lock::Timeout=600",
        "install",
    ]
    if not packages or quiet(*words, *packages).returncode == 0:
        quiet("apt-get", "clean")
        return {}
    failed = {}
    for package in packages:
        done = quiet(*words, package)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("E:")]
            failed[package] = "cannot be installed beside the others: " + " ".join(lines)[:200]
    quiet("apt-get", "clean")
    return failed


def chosen(order, jobs, left_out):
    """Packages with their commands, and those left out: packages that have a job first, then all in order."""
    position = {package: at for at, (package, _) in enumerate(order)}
    by_program = {}
    for package, programs in order:
        for program in programs:
            by_program.setdefault(program, package)
    real = {}  # a package's jobs
    for program, job in jobs.items():
        package = job["package"] if isinstance(job, dict) else by_program.get(program)
        text = job["run"] if isinstance(job, dict) else job
        real.setdefault(package, []).append(Command(program, package, text, JOB_S))
    missing = real.pop(None, [])
    own = {package: programs for package, programs in order}
    for package in sorted(
        real.keys() | own.keys(), key=lambda name: (name not in real, position.get(name, 1 << 30))
    ):
        commands = real.get(package, [])
        names = {command.program for command in commands}
        programs = sorted(own.get(package, []), key=lambda name: (name not in names, name))
        for program in programs[:PROGRAMS_A_PACKAGE]:
            commands += [
                Command(program, package, f"{program} {option}") for option in ("--version", "--help")
            ]
        yield (
            package,
            [command for command in commands if not reason(command, left_out)],
            [command for command in commands if reason(command, left_out)],
        )
    for command in missing:
        yield "", [], [command]


def reason(command, left_out):
    named = {"packages": command.package, "programs": command.program, "commands": command.words}
    for kind, name in named.items():
        for pattern, why in left_out[kind].items():
            if re.fullmatch(pattern, name):
                return why
    return "" if command.package else "no package of this suite has it"


def smoke(results, wanted, environment, left_out):
    """Compares commands until so many programs were."""
    check(environment)
    jobs = tomllib.loads((HERE / "jobs.toml").read_text())["jobs"]
    groups = chosen(ranking.ranked(), jobs, left_out)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        while len(results.of("same", "program") | results.of("failure", "program")) < wanted:
            batch = [group for group, _ in zip(groups, range(PACKAGES_AT_ONCE), strict=False)]
            if not batch:
                break
            for command in (command for _, _, left in batch for command in left):
                if command.words not in results.known:
                    verdict = Verdict("left out", reason(command, left_out))
                    results.add(command.program, command.package, command.words, verdict)
            todo = [one for _, commands, _ in batch for one in commands if one.words not in results.known]
            failed = install(sorted({command.package for command in todo}))
            runs = {}
            for command in todo:
                if why := failed.get(command.package):
                    results.add(command.program, command.package, command.words, Verdict("left out", why))
                else:
                    runs[pool.submit(compared, command.words, environment, command.limit_s)] = command
            for done in concurrent.futures.as_completed(runs):
                command = runs[done]
                results.add(command.program, command.package, command.words, done.result())
            if todo:
                packages = " ".join(sorted({command.package for command in todo}))
                print(f"{len(results.of('same'))} commands the same; {packages}", flush=True)


def store():
    """The store that the automatic mode needs."""
    Path(SOCKET).unlink(missing_ok=True)
    command = [LIBRARIES / "mayfly", "share", "--socket", SOCKET, "--domain", "everyone"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while not Path(SOCKET).exists():
        if process.poll() is not None:
            raise SystemExit("programs: the store ended")
        time.sleep(0.05)
    return process


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layer", choices=LAYERS)
    parser.add_argument("results", type=Path)
    parser.add_argument("--smoke", type=int, default=0)
    parser.add_argument("--pypi", type=int, default=0)
    parser.add_argument("--autopkgtests", type=int, default=0)
    arguments = parser.parse_args()
    prepared()
    results, environment = Results(arguments.results), LAYERS[arguments.layer]
    left_out = tomllib.loads((HERE / "left_out.toml").read_text())
    process = store() if arguments.layer == "merge" else None
    try:
        if arguments.smoke:
            smoke(results, arguments.smoke, environment, left_out)
        if arguments.pypi:
            pypi.compare(results, arguments.pypi, environment)
        if arguments.autopkgtests:
            autopkgtests.compare(results, arguments.autopkgtests, environment, left_out["autopkgtests"])
    finally:
        if process:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
