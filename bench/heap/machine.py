"""The kernel's memory settings and counters: huge pages and /proc."""

import contextlib
import os
import signal
import sys
from pathlib import Path

from bench import memory
from bench.outcome import BenchError

THP = Path("/sys/kernel/mm/transparent_hugepage")
# Free blocks of this order or larger are reported to the host, which reclaims them. Faulting them in again
# costs twenty times as much, for a program that runs after a pause or takes huge pages. (Above any order:
# none is.)
REPORTING = Path("/sys/module/page_reporting/parameters/page_reporting_order")
NONE_IS_AS_LARGE = "11"


def thp_setting() -> str:
    """The system's transparent huge pages setting: always, madvise or never ('absent' without THP)."""
    try:
        return (THP / "enabled").read_text().split("[")[1].split("]")[0]
    except (OSError, IndexError):
        return "absent"


@contextlib.contextmanager
def put_back():
    """Restores the settings that the body notes in the yielded dictionary, by file.

    On an error and on SIGTERM as well: both unwind the stack.
    """
    before: dict[Path, str] = {}
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield before
    finally:
        for path, value in before.items():
            path.write_text(value)
        signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def memory_stays():
    """Keeps a host from reclaiming free memory while the body runs, if that can be set; then restores it."""
    with put_back() as before:
        with contextlib.suppress(OSError):
            old = REPORTING.read_text().strip()
            REPORTING.write_text(NONE_IS_AS_LARGE)
            before[REPORTING] = old
        yield


@contextlib.contextmanager
def thp_always(khugepaged_fast: bool):
    """Sets transparent huge pages to `always` for the whole machine while the body runs, then restores them.

    khugepaged, which replaces a program's small pages by huge ones, scans 16 MiB every 10 s by default: on a
    server it has long caught up, in a benchmark of seconds it never would. With `khugepaged_fast` it scans
    five times a second.
    """
    wanted = {THP / "enabled": "always"}
    if khugepaged_fast:
        wanted |= {
            THP / "khugepaged/scan_sleep_millisecs": "200",
            THP / "khugepaged/pages_to_scan": "65536",
        }
    with put_back() as before:
        for path, value in wanted.items():
            try:
                old = thp_setting() if path.name == "enabled" else path.read_text().strip()
                path.write_text(value)
                before[path] = old
            except OSError as error:
                raise BenchError(
                    f"{path}: cannot be set ({error.strerror}): comparing on huge pages needs root"
                ) from error
        yield


def proc_kib(path: str, *names: str) -> list[int]:
    """The numbers of 'Name:  123 kB' lines in a /proc file, 0 for a line that is not there."""
    with open(path) as file:
        lines = dict(line.split(":", 1) for line in file if ":" in line)
    return [int(lines[name].split()[0]) if name in lines else 0 for name in names]


def memory_of(pid: int) -> dict[str, float]:
    """A process's memory now, in KiB, in both units and in pages."""
    now = memory.numbers(memory.of(pid))
    return now | translations(now)


def translations(now: dict[str, float]) -> dict[str, float]:
    """Pages of both sizes: each is one translation for a TLB."""
    rss, huge = now["rss_kib"], now["anon_huge_kib"]
    return {"small_pages": (rss - huge) / 4, "huge_pages": huge / 2048}


def pss_kib(pid: int) -> int:
    """What a process occupies, shared pages counted in parts."""
    (pss,) = proc_kib(f"/proc/{pid}/smaps_rollup", "Pss")
    return pss


def cpu_ms(pid: int) -> float:
    """Processor time that a process's threads have used, those that have ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def peak_rss_kib(pid: int) -> int:
    """The most a process has occupied since it began."""
    return max(proc_kib(f"/proc/{pid}/status", "VmHWM", "VmRSS"))


def maps_name(pid: int, library: Path) -> bool:
    """Whether the process has the library mapped."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False
    return os.path.realpath(library) in text or str(library) in text
