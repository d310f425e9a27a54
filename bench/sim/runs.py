"""The runs of runs.toml: each program's configurations, and each configuration's content."""

import tomllib

from bench.outcome import ROOT

RUNS = tomllib.loads((ROOT / "bench/sim/runs.toml").read_text())
# Of the experiments that have a run of the imports as well, so that the whole process' pages are known.
IMPORT = "import-"


def wanted(configuration: str) -> dict:
    """A configuration's content; for `layout-3-native`, that of `native` and its layout."""
    if configuration.startswith("layout-"):
        _, number, plain = configuration.split("-", 2)
        return wanted(plain) | {"words": ["--layout", number]}
    if configuration.split("-")[0] in RUNS["inputs"]:
        return with_inputs(configuration)
    everything = RUNS["configurations"] | RUNS["experiments"]
    if configuration not in everything and configuration.startswith(IMPORT):
        return wanted(configuration.removeprefix(IMPORT)) | {"region": "import"}
    return everything[configuration]


def with_inputs(configuration: str) -> dict:
    """`paper-native`, `paper-first-native`: `native` with an input set, of the process or the call."""
    inputs, plain = configuration.split("-", 1)
    region, rest = "process", plain
    if plain.startswith("first-"):
        region, rest = "first", plain.removeprefix("first-")
    return wanted(rest) | {"inputs": inputs, "region": region}


def is_fit(one: dict, its: dict) -> bool:
    """Whether a configuration fits a program, by the keys of both."""
    return bool(its.get(one.get("only", ""), "only" not in one)) and not its.get(one.get("not", ""), False)


def experiments(program: str) -> dict[str, list[str]]:
    """The program's experiments, with the configurations that each runs."""
    its = RUNS["programs"][program]
    if its["group"] == "micro":
        return {}
    fit = {name: one for name, one in RUNS["experiments"].items() if is_fit(one, its)}
    return {name: [name, *([IMPORT + name] if one.get("process") else [])] for name, one in fit.items()}


def layouts(program: str) -> list[str]:
    settings = RUNS["layouts"]
    if program not in settings["programs"]:
        return []
    return [f"layout-{number}-{one}" for number in settings["numbers"] for one in settings["configurations"]]


def configurations(program: str) -> list[str]:
    """All configurations in which the program is run."""
    its = RUNS["programs"][program]
    names = [name for name, one in RUNS["configurations"].items() if is_fit(one, its)]
    names += [one for runs in experiments(program).values() for one in runs]
    return names + layouts(program)


def together() -> list[tuple[str, str]]:
    """Several programs on one core."""
    picks = range(1, RUNS["together"]["picks"] + 1)
    return [(f"together-{number}", side) for number in picks for side in ("native", "memento")]


def named() -> dict[str, list[tuple[str, str]]]:
    """The sets of runs by name: each experiment with its baseline, the layouts, and so on."""
    plain = ("native", "memento")
    found = {name: [] for name in (*RUNS["experiments"], "layouts", "warm", "imports", "five")}
    for program, its in RUNS["programs"].items():
        all_of_them = configurations(program)
        for name, runs in experiments(program).items():
            beside = [*plain, *([f"{IMPORT}native"] if len(runs) > 1 else [])]
            found[name] += [(program, one) for one in (*beside, *runs)]
        found["layouts"] += [(program, one) for one in layouts(program)]
        for name, prefix in (("warm", "warm-"), ("imports", IMPORT)):
            found[name] += [
                (program, f"{prefix}{side}") for side in plain if f"{prefix}{side}" in all_of_them
            ]
        if its["group"] != "micro":
            five = (*plain, "mayfly", "mallacc", "speedmalloc")
            found["five"] += [(program, one) for one in five if one in all_of_them]
    return found | {"together": together()}
