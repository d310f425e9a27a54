"""Prints the results as tables: one for each experiment, then the goals that were met and missed."""

from bench.outcome import table
from bench.vm.experiments import EXPERIMENTS
from bench.vm.results import Results


def figure(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def spread(values: list[float], digits: int = 0) -> str:
    return f"({min(values):.{digits}f}-{max(values):.{digits}f})" if len(values) > 1 else ""


def share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def print_all(results: Results) -> None:
    for name in results.experiments():
        print(f"\n{name}: {EXPERIMENTS[name].about}")
        PRINT.get(name, lambda results, name=name: print_points(results, name))(results)


def print_points(results: Results, name: str) -> None:
    """Experiments that unplug at several points: sizes, usages, settings."""
    rows = [
        ["", "", "unplug ms", "(min-max)", "with checks ms", "pages migrated", "host RSS returned", "plug ms"]
    ]
    for point in results.points(name):
        for contender in results.names(name):
            latency = results.of(name, contender, f"{point}.unplug_ms")
            rows.append(
                [
                    f"{point}",
                    contender,
                    figure(results.median(name, contender, f"{point}.unplug_ms")),
                    spread(latency),
                    figure(results.median(name, contender, f"{point}.whole_ms")),
                    figure(results.median(name, contender, f"{point}.migrated_pages")),
                    share(results.median(name, contender, f"{point}.returned_share")),
                    figure(results.median(name, contender, f"{point}.plug_ms")),
                ]
            )
    table(rows)


def print_steps(results: Results) -> None:
    rows = [["", "vCPU busy s", "whole s", "ms a step (min-max)", "pages migrated"]]
    for contender in results.names("steps"):
        step = results.of("steps", contender, "step_ms")
        rows.append(
            [
                contender,
                figure(results.median("steps", contender, "cpu_s"), 2),
                figure(results.median("steps", contender, "whole_s"), 2),
                f"{figure(results.median('steps', contender, 'step_ms'))} {spread(step)}",
                figure(sum(results.of("steps", contender, "migrated_pages"))),
            ]
        )
    table(rows)


def print_interference(results: Results) -> None:
    rows = [
        ["", "calm us", "during us", "worst second us", "over calm", "noise", "four evictions s", "migrated"]
    ]
    for contender in results.names("interference"):
        row = [contender]
        for key in ("calm_us", "during_us", "worst_second_us"):
            row.append(figure(results.median("interference", contender, key)))
        for key in ("worst_second_ratio", "calm_spread_ratio"):
            row.append(times(results.median("interference", contender, key)))
        row.append(figure(results.median("interference", contender, "evictions_s"), 1))
        row.append(figure(sum(results.of("interference", contender, "migrated_pages"))))
        rows.append(row)
    table(rows)


def print_functions(results: Results) -> None:
    rows = [["", "", "requests", "unplugs", "unplug P50 ms", "MiB/s back", "P50 ms", "P99 ms"]]
    keys = ("requests", "unplugs", "unplug_p50_ms", "mib_per_s", "p50_ms", "p99_ms")
    for function in results.points("functions"):
        for contender in results.names("functions"):
            values = [results.median("functions", contender, f"{function}.{key}") for key in keys]
            rows.append([function, contender, *map(figure, values)])
    table(rows)


def print_colocated(results: Results) -> None:
    rows = [["", "requests", "of them meanwhile", "ms otherwise", "ms meanwhile", "ratio"]]
    for contender in results.names("colocated"):
        keys = ("requests", "requests_meanwhile", "otherwise_ms", "meanwhile_ms")
        values = [results.median("colocated", contender, key) for key in keys]
        rows.append([contender, *map(figure, values), times(results.median("colocated", contender, "ratio"))])
    table(rows)


# What is no unplug at several points.
PRINT = {
    "steps": print_steps,
    "interference": print_interference,
    "functions": print_functions,
    "colocated": print_colocated,
}
