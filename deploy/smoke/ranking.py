"""A suite's packages by the number of packages that depend on them, with the programs that each has."""

import collections
import gzip
import os
import re
import subprocess
import tempfile
from pathlib import Path

FIELD = re.compile(r"^(Package|Installed-Size|Pre-Depends|Depends|Recommends): *(.*)$", re.M)
PROGRAM = re.compile(r"^(?:usr/)?s?bin/(\S+)\s+(\S+)$")
NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
LARGEST_KIB = 250 << 10  # larger packages are left out: they would fill the disk


def stanzas():
    """Each available package, as a table of the fields that count here."""
    told = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    for stanza in told.split("\n\n"):
        fields = dict(FIELD.findall(stanza))
        if "Package" in fields:
            yield fields


def dependents(packages):
    """How many packages depend on each, or recommend it."""
    counts = collections.Counter()
    for fields in packages:
        relations = ",".join(fields.get(kind, "") for kind in ("Pre-Depends", "Depends", "Recommends"))
        counts.update(
            {found.group() for one in re.split(r"[,|]", relations) if (found := NAME.match(one.strip()))}
        )
    return counts


def programs_of_packages():
    """The programs of each package, by the suite's lists of files.

    On some mirrors these are newer than the index, and apt would refuse them. Names need no signature.
    """
    _, mirror, suite, *_ = Path("/etc/apt/sources.list").read_text().split()
    found = collections.defaultdict(set)
    with tempfile.TemporaryDirectory() as folder:
        for kind in (os.uname().machine.replace("x86_64", "amd64").replace("aarch64", "arm64"), "all"):
            file = Path(folder) / kind
            place = f"{mirror.rstrip('/')}/dists/{suite}/main/Contents-{kind}.gz"
            words = ["/usr/lib/apt/apt-helper", "download-file", place, file]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"programs: {place}: {done.stderr}")
            for line in gzip.decompress(file.read_bytes()).decode(errors="replace").splitlines():
                if match := PROGRAM.match(line):
                    for package in match.group(2).split(","):
                        found[package.rsplit("/", 1)[-1]].add(match.group(1))
    return found


def ranked():
    """Pairs of a package and its programs, those that most packages depend on first."""
    available = {fields["Package"]: fields for fields in stanzas()}
    counts = dependents(available.values())
    programs = programs_of_packages()
    names = [
        name
        for name in programs
        if name in available and int(available[name].get("Installed-Size", 0)) <= LARGEST_KIB
    ]
    return [(name, sorted(programs[name])) for name in sorted(names, key=lambda name: (-counts[name], name))]
