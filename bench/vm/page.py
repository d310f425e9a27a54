"""The tables of docs/vm.md, from the results: each stands there between two comments that name it."""

import json
import re
from collections.abc import Callable

from bench.outcome import RESULTS, ROOT

PAGE = ROOT / "docs" / "vm.md"
MODES = ("plain", "nodes", "hotmem")
ALL_MODES = ("plain", "nodes", "hotmem", "static")


def number(value: float | None) -> str:
    """Three digits that count, or whole numbers."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


def table(heading: list[str], rows: list[list[str]]) -> list[str]:
    if not rows:
        return ["(Not measured yet.)"]
    return ["| " + " | ".join(row) + " |" for row in (heading, ["---"] * len(heading), *rows)]


def with_spread(results: dict, key: str) -> str:
    """The median, and from where to where all of them were."""
    least, most = results.get(key + "_min"), results.get(key + "_max")
    return number(results.get(key)) + ("" if least is None else f" ({number(least)} to {number(most)})")


def rounds(results: dict, prefix: str) -> str:
    """How many measurements are behind each cell of these; `static`, which gives nothing back, apart."""
    kept = (key for key in results if key.startswith(prefix) and not key.startswith(prefix + "static."))
    found = {results[key] for key in kept if key.endswith(".rounds")}
    return " to ".join(str(count) for count in sorted({min(found), max(found)})) if found else "-"


def how_run(results: dict) -> str:
    """What the guests of these results ran on."""
    return "emulated" if "tcg" in results.get("machine.accelerator", "tcg") else "kvm"


def points(results: dict, experiment: str) -> list[str]:
    """What an experiment was measured at, in order of size."""
    found = {
        match[1]
        for key in results
        if (match := re.fullmatch(rf"{experiment}\.plain\.(\d+[a-z]+)\.unplug_ms", key))
    }
    return sorted(found, key=lambda point: int(re.match(r"\d+", point)[0]))


def by_size(results: dict) -> list[str]:
    def of(mode: str, point: str, metric: str) -> float | None:
        return results.get(f"unplug.{mode}.{point}.{metric}")

    # The whole: from the request until the host has the memory; the device's part is the paper's (§5.4).
    count = rounds(results, "unplug.")
    heading = [f"MiB ({how_run(results)}, n = {count})", *(f"{mode}, whole ms" for mode in ALL_MODES)]
    heading += [
        "plain / nodes",
        "plain / hotmem",
        "device's part alone: " + ", ".join(MODES),
        "plain / hotmem",
    ]
    heading += ["pages moved: " + ", ".join(MODES), "gone from the host's memory: " + ", ".join(ALL_MODES)]
    rows = []
    for point in points(results, "unplug"):
        took = {mode: of(mode, point, "whole_ms") for mode in MODES}
        device = {mode: of(mode, point, "unplug_ms") for mode in MODES}
        ratios = [took["plain"] and took[mode] and took["plain"] / took[mode] for mode in MODES[1:]]
        part = device["plain"] and device["hotmem"] and device["plain"] / device["hotmem"]
        rows.append(
            [
                point.removesuffix("mib"),
                *(with_spread(results, f"unplug.{mode}.{point}.whole_ms") for mode in MODES),
                "-",  # nothing is unplugged
                *(f"{number(ratio)}x" for ratio in ratios),
                ", ".join(number(device[mode]) for mode in MODES),
                f"{number(part)}x",
                ", ".join(number(of(mode, point, "migrated_pages")) for mode in MODES),
                ", ".join(percent(of(mode, point, "returned_share")) for mode in ALL_MODES),
            ]
        )
    return table(heading, rows)


def by_use(results: dict) -> list[str]:
    count, mib = rounds(results, "usage."), number(results.get("usage.plain.mib", 256))
    heading = [f"% in use ({how_run(results)}, {mib} MiB, n = {count})", *(f"{mode}, ms" for mode in MODES)]
    heading += ["pages moved: " + ", ".join(MODES)]
    rows = []
    for point in points(results, "usage"):
        moved = (results.get(f"usage.{mode}.{point}.migrated_pages") for mode in MODES)
        cells = [with_spread(results, f"usage.{mode}.{point}.unplug_ms") for mode in MODES]
        rows.append([point.removesuffix("percent"), *cells, ", ".join(map(number, moved))])
    return table(heading, rows)


def the_rest(results: dict) -> list[str]:
    def row(what: str, cell: Callable[[str], str], modes: tuple[str, ...] = MODES) -> list[str]:
        return [what, *(cell(mode) if mode in modes else "" for mode in ALL_MODES)]

    def off(mode: str) -> str:
        return percent(results.get(f"usage.{mode}.most_off_median_ratio"))

    def busy(mode: str) -> str:
        return number(results.get(f"steps.{mode}.cpu_s"))

    def beside(mode: str) -> str:
        return with_spread(results, f"interference.{mode}.during_ratio")

    def worst(mode: str) -> str:
        return with_spread(results, f"interference.{mode}.worst_second_ratio")

    def evictions(mode: str) -> str:
        return with_spread(results, f"interference.{mode}.evictions_s")

    def zeroing(mode: str) -> str:
        return ", ".join(with_spread(results, f"zeroing.{mode}.init_on_alloc_{n}.unplug_ms") for n in (0, 1))

    def moved(mode: str) -> str:
        return number(results.get(f"all.{mode}.migrated_pages"))

    # `static` gives nothing back, so what it takes is what a call costs.
    count = len([key for key in results if re.fullmatch(r"steps\.plain\.over_time\.\d+\.at_s", key)])
    step = number(results.get("steps.plain.step_mib", 128))
    zeroed = number(results.get("zeroing.plain.mib", 256))
    rows = [
        row("unplug at any memory use, farthest from the median (Fig. 6)", off),
        row(f"CPU of the vCPU that serves {count} unplugs of {step} MiB (Fig. 7), s", busy, ALL_MODES),
        row(
            "a co-located instance while four others are evicted, over its calm (Fig. 10)", beside, ALL_MODES
        ),
        row("its worst second, over its calm", worst, ALL_MODES),
        row("four evictions, stop and unplug (`static`: stop), s", evictions, ALL_MODES),
        row(f"{zeroed} MiB with `init_on_alloc=0` and 1, ms", zeroing),
        row("all pages moved", moved),
    ]
    return table([how_run(results), *ALL_MODES], rows)


def functions(results: dict) -> list[str]:
    """Figures 8, 9 and 10, with functions."""

    def row(what: str, key: str) -> list[str]:
        return [what, *(number(results.get(key.replace("MODE", mode))) for mode in ALL_MODES)]

    found = [key for key in results if re.fullmatch(r"functions\.\w+\.\w+\.p99_ms", key)]
    names = sorted({key.split(".")[2] for key in found})
    rows = []
    for name in names:
        requests, unplugs = (results.get(f"functions.hotmem.{name}.{key}") for key in ("requests", "unplugs"))
        said = f"`{name}`, {number(requests)} requests, {number(unplugs)} unplugs"
        rows.append(row(f"{said}: MiB/s that come back (Fig. 8)", f"functions.MODE.{name}.mib_per_s"))
        rows.append(row(f"{said}: P99, ms (Fig. 9)", f"functions.MODE.{name}.p99_ms"))
    if any(key.startswith("colocated.") for key in results):
        what = "requests while others' instances end, over others (Fig. 10)"
        rows.append(row(what, "colocated.MODE.ratio"))
    return table([how_run(results), *ALL_MODES], rows)


def goals(results: dict) -> list[str]:
    rows = []
    while (what := results.get(f"shown.{len(rows)}.what")) is not None:
        one = f"shown.{len(rows)}."
        met = "met" if results[one + "met"] else "**falls short**"
        rows.append([what, results[one + "wanted"], results[one + "measured"], met])
    return table(["to be shown", "wanted", "measured", ""], rows)


TABLES = {"by size": by_size, "by use": by_use, "the rest": the_rest, "functions": functions, "goals": goals}


def fill(text: str, results: dict) -> str:
    """The page with its tables as the results have them."""
    for name, make in TABLES.items():
        begin, end = f"<!-- bench/figures of vm.json: {name} -->\n", "<!-- end -->\n"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise SystemExit(f"figures: {PAGE.name} lacks the place for a table: {begin}...{end}")
        text = before + begin + "\n" + "\n".join(make(results)) + "\n\n" + end + after
    return text


def measured() -> dict:
    """Both files of results: functions take hours, and so have one of their own."""
    whole, of_functions = (
        json.loads((RESULTS / name).read_text()) for name in ("vm.json", "vm-functions.json")
    )
    experiments = ("functions.", "colocated.")
    return whole | {key: value for key, value in of_functions.items() if key.startswith(experiments)}
