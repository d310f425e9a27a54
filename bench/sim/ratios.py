"""Ratios of two runs."""


def saved(before: float, after: float) -> float:
    return 100 * (1 - after / before) if before else 0.0


def faster(before: dict, after: dict) -> float:
    return 100 * (before["cycles"] / after["cycles"] - 1)


def part(over: float, under: float) -> float:
    return 100 * over / under if under else 0.0


def pages(run: dict, counted: str = "from_os") -> tuple[int, int]:
    """Physical pages that the OS gave to the program and to the kernel, or to Memento's pool (§6.3)."""
    pool = {kind: run.get(f"memento.pages_{counted}.{kind}", 0) for kind in ("data", "tables", "blocks")}
    return run["user_pages"] + pool["data"], run["kernel_pages"] + pool["tables"] + pool["blocks"]


def compared(native: dict, memento: dict) -> dict:
    """Fig. 8 and 10: the baseline and Memento."""
    return {
        "speedup_percent": faster(native, memento),
        "traffic_saved_percent": saved(native["dram.traffic_bytes"], memento["dram.traffic_bytes"]),
    }
