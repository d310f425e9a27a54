"""Which mappings' pages a process has alone, by kind: what sharing leaves."""

import re
from pathlib import Path

HEAD = re.compile(r"[0-9a-f]+-[0-9a-f]+ (\S{4}) \S+ \S+ \d+\s*(.*)")
KINDS = ("anonymous", "heap", "libraries", "written", "stack", "other")


def kind(rights: str, name: str) -> str:
    """anonymous: allocators' and Python's; heap: malloc's first; libraries: what the loader has relocated in
    files' private mappings, and their variables; written: pages of the store that were written since."""
    if name.startswith("/memfd:mayfly-pages"):
        return "written"
    if name.startswith("/"):
        return "libraries" if rights.endswith("p") else "other"
    if name == "[heap]":
        return "heap"
    if name.startswith("[stack"):
        return "stack"
    return "anonymous" if not name or name.startswith("[anon") else "other"


def by_kind(smaps: str) -> dict[str, float]:
    """MiB of pages that are this process's own, of /proc/PID/smaps. A file's page that it alone has mapped is
    the file's, and does not count."""
    found = dict.fromkeys(KINDS, 0.0)
    of = "other"
    for line in smaps.splitlines():
        if head := HEAD.match(line):
            of = kind(head[1], head[2].removesuffix(" (deleted)"))
        elif line.startswith("Anonymous:"):
            found[of] += int(line.split()[1]) / 1024
    return found


def of_processes(pids: list[int]) -> dict[str, float]:
    """The same of several processes together."""
    each = [by_kind(Path(f"/proc/{pid}/smaps").read_text()) for pid in pids]
    return {kind: sum(one[kind] for one in each) for kind in KINDS}
