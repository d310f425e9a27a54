"""Sampled runs (`mayfly sim --sample`) beside whole ones: the error of their cycles, their own confidence
interval, and how much CPU time they spare."""

import argparse

from bench.outcome import RESULTS, at_most, figure, print_shown, table, write
from bench.sim.ratios import faster, saved
from bench.sim.simulate import command, commit, run

PROGRAMS = ("json-loads", "url-shorten", "html-go")
SIDES = ("native", "memento")
GOAL_PERCENT = 2


def wrong(right: float, estimate: float) -> float:
    return 100 * (estimate / right - 1)


def compared(whole: dict, sampled: dict) -> dict:
    if whole["instructions"] != sampled["instructions"]:
        raise ValueError("a sampled run executes something else")
    return {
        "instructions": whole["instructions"],
        "cycles": whole["cycles"],
        "estimate": sampled["cycles"],
        "error_percent": wrong(whole["cycles"], sampled["cycles"]),
        "interval_95_percent": sampled["sample.interval_95_percent"],
        "windows": sampled["sample.windows"],
        "timed_percent": 100 * sampled["sample.instructions"] / sampled["instructions"],
        "llc_misses_error_percent": wrong(whole["llc.misses"], sampled["llc.misses"]),
        "traffic_error_percent": wrong(whole["dram.traffic_bytes"], sampled["dram.traffic_bytes"]),
        "cpu_spared_percent": saved(whole["cpu_s"], sampled["cpu_s"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", default="", metavar="N", help="the period, in instructions")
    option = "--sample" + (f"={period}" if (period := parser.parse_args().sample) else "")
    flat, errors = {"made_with.commit": commit()}, []
    for program in PROGRAMS:
        words = {side: command(program, side) for side in SIDES}
        pairs = {side: (run(arguments), run([option, *arguments])) for side, arguments in words.items()}
        for side, pair in pairs.items():
            found = compared(*pair)
            errors.append(abs(found["error_percent"]))
            flat |= {f"{program}.{side}.{key}": value for key, value in found.items()}
        whole, sampled = (faster(*(pairs[side][at] for side in SIDES)) for at in (0, 1))
        flat |= {f"{program}.speedup_percent": whole, f"{program}.speedup_estimate_percent": sampled}
    shown = [at_most("a sampled run's cycles are wrong by", GOAL_PERCENT, max(errors), "%")]
    write(RESULTS / "sim-sampling.json", flat, shown)
    keys = ("error_percent", "interval_95_percent", "llc_misses_error_percent", "cpu_spared_percent")
    rows = [["", "cycles, % wrong", "± (95%)", "LLC misses, % wrong", "CPU time spared, %"]]
    for program in PROGRAMS:
        rows += [
            [f"{program}, {side}", *(figure(flat[f"{program}.{side}.{key}"], 2) for key in keys)]
            for side in SIDES
        ]
    table(rows)
    print_shown(shown)


if __name__ == "__main__":
    main()
