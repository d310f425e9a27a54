"""Ratios of two runs."""


def saved(before: float, after: float) -> float:
    return 100 * (1 - after / before) if before else 0.0


def faster(before: dict, after: dict) -> float:
    return 100 * (before["cycles"] / after["cycles"] - 1)


def part(over: float, under: float) -> float:
    return 100 * over / under if under else 0.0


def counts_held(run: dict) -> bool:
    """Whether the run says which pages were held; one of before counts every page allocated, freed or not."""
    return "held.most.user_pages" in run


def held(run: dict, when: str = "most") -> tuple[int, int]:
    """Pages of the program, and of the kernel and the units' tables: allocated in the region and not freed.

    They are those when the most were held, or those at the region's `end`.
    """
    if not counts_held(run):
        return allocated(run)
    return run[f"held.{when}.user_pages"], run[f"held.{when}.kernel_pages"]


def counted_alike(runs: dict) -> dict:
    """The same runs; if one does not say which pages were held, none does: both sides count alike."""
    done = [run for run in runs.values() if "user_pages" in run]
    if all(map(counts_held, done)):
        return runs
    return {
        name: {key: value for key, value in run.items() if not key.startswith("held.")}
        for name, run in runs.items()
    }


def allocated(run: dict, counted: str = "from_os") -> tuple[int, int]:
    """All that the OS gave to the program and to the kernel, or to Memento's pool, freed or not (§6.3)."""
    pool = {kind: run.get(f"memento.pages_{counted}.{kind}", 0) for kind in ("data", "tables", "blocks")}
    return run["user_pages"] + pool["data"], run["kernel_pages"] + pool["tables"] + pool["blocks"]


def compared(native: dict, memento: dict) -> dict:
    """Fig. 8 and 10: the baseline and Memento. The paper's bandwidth may be bytes, or bytes a second."""
    traffic = [one["dram.traffic_bytes"] for one in (native, memento)]
    return {
        "speedup_percent": faster(native, memento),
        "traffic_saved_percent": saved(*traffic),
        "bandwidth_saved_percent": saved(traffic[0] / native["cycles"], traffic[1] / memento["cycles"]),
    }
