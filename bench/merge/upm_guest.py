"""Instances of models and functions on Mayfly's kernel, in its VM: a line of JSON for each of them and each
method, behind RESULT. bench/merge/upm.py starts it there.

Figures of the paper: memory of an instance and of all (Fig. 5, 6), cold start of the first and of later ones
(Fig. 8), where the time of the kernel goes (Table I)."""

import json
import os
import sys
import time
from pathlib import Path
from statistics import median

from bench.merge import models
from bench.merge.json_process import fleet
from bench.merge.machine import available_mib, ksm_merged_pages, ksm_running, ksmd, memory_of
from bench.merge.regions import Numbers

UPM = Path("/sys/kernel/mm/upm")
# The advisor chooses how fast ksmd goes: a scan in this time, as fast as the least that it accepts.
KSM_ADVISOR = {"advisor_mode": "scan-time", "advisor_target_scan_time": "1", "smart_scan": "1"}
# A request takes seconds where a network is emulated.
WARM = 1
KSM_SETTLED_S, KSM_LIMIT_S = 20, 300


def counters() -> dict[str, int]:
    """Nanoseconds of each step of the kernel's, and pages."""
    names = [path.name for path in UPM.iterdir() if path.name.startswith("ns_")]
    return {name: int((UPM / name).read_text()) for name in [*names, "advised", "merged", "pinned"]}


def measure(name: str, method: str, counts: list[int]) -> Numbers:
    numbers: Numbers = {}
    before = counters()
    with fleet() as started:
        free = available_mib()
        for count in counts:
            models.start_until(started, count, name, method, {}, WARM)
            keep_memory(numbers, count, started, free)
        for key in ("warm_ms", "advise_process_ms"):
            times = [one.warmed[key] for one in started]
            numbers[f"first.{key}"], numbers[f"later.{key}"] = times[0], median(times[1:] or times)
        for key in ("total_ms", "advise_ms"):
            times = [one.cold.get(key, 0) for one in started]
            numbers[f"first.{key}"], numbers[f"later.{key}"] = times[0], median(times[1:] or times)
        numbers["answer"] = models.one_answer(started)
    spent = {key: value - before[key] for key, value in counters().items()}
    total = spent.pop("ns_total")
    if total:
        numbers["upm_ms"] = total / 1e6
        numbers |= {
            f"{key.removeprefix('ns_')}_percent": 100 * spent[key] / total
            for key in spent
            if key[:3] == "ns_"
        }
        numbers |= {key: spent[key] for key in ("advised", "merged", "pinned")}
    return numbers


def with_ksm(name: str, method: str, counts: list[int]) -> Numbers:
    """Memory of each count once ksmd merges no more, and the CPU time that it took."""
    numbers: Numbers = {}
    scanner = ticks_s(ksmd())
    with ksm_running(KSM_ADVISOR), fleet() as started:
        free = available_mib()
        for count in counts:
            models.start_until(started, count, name, method, {}, WARM)
            begun = grew = time.monotonic()
            most = 0
            while (now := time.monotonic()) - begun < KSM_LIMIT_S and now - grew < KSM_SETTLED_S:
                time.sleep(1)
                if (merged := ksm_merged_pages([one.pid for one in started])) > 1.002 * most:
                    most, grew = merged, time.monotonic()
            keep_memory(numbers, count, started, free)
            numbers[f"{count}.settled_s"] = grew - begun
        numbers["answer"] = models.one_answer(started)
    return numbers | {"ksmd_cpu_s": ticks_s(ksmd()) - scanner}


def ticks_s(pid: int) -> float:
    """CPU time by the clock's ticks: this kernel counts no finer."""
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def keep_memory(numbers: Numbers, count: int, started: list, free: float) -> None:
    memory = memory_of([one.pid for one in started])
    numbers[f"{count}.each_mib"] = memory["pss"] / count
    numbers[f"{count}.anonymous_mib"] = memory["anonymous"] / count
    numbers[f"{count}.system_mib"] = memory["pss"] + memory["page_tables"]
    numbers[f"{count}.available_drop_mib"] = free - available_mib()


def main() -> None:
    wanted = json.loads(sys.argv[1])
    (UPM / "timing").write_text("1")
    for name, methods in wanted["methods"].items():
        for method in methods:
            begun = time.monotonic()
            counts = wanted["counts"]
            run = with_ksm if method.startswith("ksm") else measure
            found = run(name, method, counts)
            found["took_s"] = time.monotonic() - begun
            print(
                "RESULT",
                json.dumps({f"{name}.{method}.{key}": value for key, value in found.items()}),
                flush=True,
            )


if __name__ == "__main__":
    main()
