"""The evaluation's arithmetic, on made-up runs: the list of runs, and their results."""

import json

import pytest

from bench import numbers
from bench.sim import collect, plans, ratios, runs, sensitivity, simulate
from bench.sim.silo import transactions


def run(cycles: int, traffic: int = 1000, pages: int = 100, output: str = "ok", **more) -> dict:
    return {
        "cycles": cycles,
        "dram.traffic_bytes": traffic,
        "user_pages": pages,
        "kernel_pages": 0,
        "output": output,
        **more,
    }


def test_every_configuration_of_every_program_is_a_command():
    for program in runs.RUNS["programs"]:
        for one in runs.configurations(program):
            words = simulate.command(program, one)
            assert words[words.index("--allocator") + 1] == runs.wanted(one)["allocator"], (program, one)


def test_programs_are_run_in_fitting_configurations():
    assert "mallacc" in runs.configurations("url-shorten")
    assert "mallacc" not in runs.configurations("json-loads")
    go = runs.configurations("html-go")
    assert {"populate-go", "import-populate-go", "memento"} <= set(go)
    assert not {"speedmalloc", "mayfly", "populate", "messages-far"} & set(go)
    assert "layout-10-memento" in go
    assert not any(one in runs.RUNS["experiments"] for one in runs.configurations("recognise")), "in no mean"


def test_a_name_selects_an_experiment_and_its_baseline():
    named = runs.named()
    populate = named["populate"]
    for one in ("native", "memento", "import-native", "populate", "import-populate"):
        assert ("dna", one) in populate
    assert ("html-go", "native") not in populate
    assert ("html", "layout-3-native") in named["layouts"]
    assert {one for _, one in named["five"]} == {"native", "memento", "mayfly", "mallacc", "speedmalloc"}
    known = {program: set(runs.configurations(program)) for program in runs.RUNS["programs"]}
    for name, pairs in named.items():
        assert pairs, name
        missing = [pair for pair in pairs if name != "together" and pair[1] not in known[pair[0]]]
        assert not missing, f"{name} asks for what the whole has not: {missing}"


def test_another_build_of_a_go_program_has_its_variables():
    words = simulate.command("html-go", "import-populate-go")
    assert "/programs/bin/html-go-populate" in words
    assert {"GOGC=off", "MAYFLY_REGION=import"} <= set(words)


def test_an_experiment_has_mementos_gain_and_the_cost_of_the_process():
    its = {
        "native": run(1200),
        "memento": run(1000),
        "populate": run(1100, traffic=1500, pages=150),
        "import-native": run(800, pages=300),
        "import-populate": run(900, pages=1450),
        "clear-pages": run(1050, output="other"),
    }
    found = sensitivity.experiments(its)
    assert found["experiment.populate.plain.speedup_percent"] == pytest.approx(20)
    assert found["experiment.populate.speedup_percent"] == pytest.approx(10)
    assert found["experiment.populate.more_traffic_percent"] == pytest.approx(50)
    assert found["experiment.populate.more_process_pages_percent"] == pytest.approx(300)
    assert found["experiment.populate.more_process_cycles_percent"] == pytest.approx(0)
    assert found["experiment.clear-pages.more_cycles_percent"] == pytest.approx(5), "beside Memento"
    assert found["experiment.clear-pages.failure"] == "its output is another"
    assert "experiment.clear-pages.more_process_pages_percent" not in found


def test_traffic_is_bytes_and_bytes_a_second():
    """A run of half the time and half the bytes has saved none of the latter."""
    both = ratios.compared(run(1000, traffic=400), run(500, traffic=200))
    assert both["traffic_saved_percent"] == 50 and both["bandwidth_saved_percent"] == 0


def test_an_experiment_beside_another_allocator_has_no_gain_of_memento():
    its = {"native": run(1200), "memento": run(1000), "speedmalloc": run(1300), "messages-free": run(1170)}
    found = sensitivity.experiments(its)
    assert found["experiment.messages-free.more_cycles_percent"] == pytest.approx(-10)
    assert "experiment.messages-free.speedup_percent" not in found
    beside = sensitivity.side_by_side(its)
    assert beside["beside.speedmalloc.more_cycles_percent"] == pytest.approx(100 / 12)
    assert not any("mayfly" in key for key in beside)


def test_processes_in_turns():
    turns = {
        "together-1": {
            "native": run(1100),
            "memento": run(
                1000, process_switches=8, **{"memento.hot_flush_cycles": 10, "memento.hot_flushes": 5}
            ),
        },
        "together-2": {"native": run(1100), "memento": {"failure": "a line"}},
        "together-3": {"native": run(1100)},
    }
    found = sensitivity.together(turns)
    assert found["together.picks"] == 1
    assert found["together.flush_percent"] == pytest.approx(1)
    assert (found["together.flush_cycles"], found["together.cycles_a_switch"]) == (2, 125)
    assert found["together-2.failure"] == "a line"


def test_a_cold_start_is_the_imports_and_the_call():
    units = {f"memento.{key}": 0 for key in ("allocations", "frees", "inactive_slots")}
    units |= {f"memento.pages_from_os.{kind}": 0 for kind in ("data", "tables", "blocks")}
    units |= {f"memento.end.inactive_{one}": 0.25 for one in ("slots", "slots_in_use", "bytes")}
    owners = {"cycles_by_owner.allocate": 0, "cycles_by_owner.free": 0, "time_us": 1, "instructions": 1}
    its = {
        "native": run(1200, **owners),
        "memento": run(1000, **owners, **units),
        "import-native": run(3000, **owners),
        "import-memento": run(2500, **owners, **units),
    }
    found = collect.program(its)
    assert found["cold.speedup_percent"] == pytest.approx(20)
    assert found["end_inactive_bytes_percent"] == 25


def test_gains_by_owner_and_cause_sum_to_the_gain():
    sides = {
        "native": {
            "cycles_of.allocate.branch": 70,
            "cycles_of.page_fault.dram": 30,
            "cycles_of.user.commit": 100,
        },
        "memento": {
            "cycles_of.allocate.branch": 20,
            "cycles_of.page_fault.dram": 36,
            "cycles_of.user.commit": 100,
        },
    }
    both = [its | {"cycles": sum(its.values())} for its in sides.values()]
    found = transactions.causes(*both)
    assert found == {"gain_of.allocate.branch_percent": 25, "gain_of.page_fault.dram_percent": -3}
    assert sum(found.values()) == pytest.approx(100 * (1 - both[1]["cycles"] / both[0]["cycles"]))


def holding(end: int, most: int) -> dict:
    held = {"end": end, "most": most}
    return {f"held.{when}.{kind}_pages": held[when] for when in held for kind in ("user", "kernel")}


def units_with(pages: int) -> dict:
    """Statistics of Memento's units that took so many pages of each kind."""
    idle = {f"memento.{key}": 0 for key in ("allocations", "frees", "inactive_slots")}
    of_kinds = {
        f"memento.pages_{one}.{kind}": pages
        for one in ("from_os", "allocated")
        for kind in ("data", "tables", "blocks")
    }
    return idle | of_kinds


def test_pages_and_price_count_the_pages_held():
    units = units_with(pages=7)
    owners = {"cycles_by_owner.allocate": 0, "cycles_by_owner.free": 0, "time_us": 1000, "instructions": 1}
    its = {
        "native": run(1200, pages=900, **owners, **holding(90, 100)),
        "memento": run(1000, pages=10, **owners, **units, **holding(40, 50)),
        "import-native": run(3000, pages=500, **owners, **holding(200, 300)),
        "import-memento": run(2500, pages=500, **owners, **units, **holding(200, 250)),
    }
    found = collect.program(its)
    assert found["pages_saved_percent"] == pytest.approx(50), "and not what was allocated and freed"
    assert found["pages_allocated_saved_percent"] == pytest.approx(100 * (1 - 31 / 900))
    # Of a process: what the imports hold at their end, and the call's most.
    assert found["process_pages_saved_percent"] == pytest.approx(100 * (1 - 500 / 600))
    assert found["pages_held"] == 1


def test_runs_of_before_are_counted_alike_and_marked():
    units = units_with(pages=0)
    owners = {"cycles_by_owner.allocate": 0, "cycles_by_owner.free": 0, "time_us": 1, "instructions": 1}
    its = {
        "native": run(1200, pages=200, **owners),
        "memento": run(1000, pages=100, **owners, **units, **holding(1, 1)),
    }
    found = collect.program(its)
    assert found["pages_saved_percent"] == pytest.approx(50), "all that were allocated, on both sides"
    assert found["pages_held"] == 0
    assert not numbers.all_held({"jl.pages_held": 1, "dna.pages_held": 0}) and not numbers.all_held({})
    assert numbers.all_held({"jl.pages_held": 1})


def test_the_core_plan_has_each_program_on_both_sides_with_the_papers_input():
    planned = plans.runs_of("core", [])
    by_program = {}
    for program, one in planned:
        by_program.setdefault(program, []).append(one)
    assert set(by_program) == set(plans.programs())
    assert by_program["html"] == [
        "paper-native",
        "paper-memento",
        "paper-first-native",
        "paper-first-memento",
    ]
    assert by_program["redis"] == ["paper-native", "paper-memento"], "a store's steady state is one region"
    words = simulate.command("html", "paper-native")
    assert '{"name": "World", "rows": 100000}' in words and "MAYFLY_REGION=process" in words
    assert words[words.index("--region") + 1] == "process"
    words = simulate.command("html", "paper-first-memento")
    assert words[words.index("--region") + 1] == "first" and "MAYFLY_REGION=process" not in words
    assert words[words.index("--allocator") + 1] == "memento"


def test_a_figure_has_its_own_runs():
    assert ("html", "without-bypass") in plans.runs_of(None, ["fig9"])
    assert ("html", "without-bypass") not in plans.runs_of(None, ["fig8"])
    assert ("html", "paper-without-bypass") in plans.runs_of("core", ["fig9"])
    assert set(plans.RUNS["figures"]) == {f"fig{n}" for n in (2, 3, 8, 9, 10, 11, 12, 13, 14)}


def test_a_plan_takes_as_long_as_its_runs_took(tmp_path):
    (tmp_path / "html").mkdir()
    times = plans.Times(tmp_path, tmp_path / "raw")
    assert times.seconds("html", "native") == plans.UNKNOWN_S
    of = lambda name, **run: (tmp_path / f"html/{name}.json").write_text(json.dumps(run))  # noqa: E731
    of("native", wall_s=9)
    of("import-native", wall_s=20)
    assert times.seconds("html", "native") == plans.START_S + 9
    # 100000 rows, where today's input has 9000.
    assert times.seconds("html", "paper-first-native") == pytest.approx(plans.START_S + 100)
    assert times.seconds("html", "paper-native") == pytest.approx(plans.START_S + 120)
    of("paper-native", run_s=77.5, wall_s=70)
    assert times.seconds("html", "paper-native") == 77.5
    lines = plans.said([("html", "native"), ("html", "paper-native")], 3, 2, times)
    assert "77.5 s" not in lines[0] and lines[0].endswith("html, paper-native"), "the longest first"
    assert lines[-1].startswith("2 runs, 3 more are there: about 0.0 hours with 2 at a time")


def test_a_run_of_other_sources_or_of_another_image_is_made_again(tmp_path):
    (tmp_path / "html").mkdir()
    made = {"made_with.commit": "a1", "made_with.image": "i1", "cycles": 5}
    file = tmp_path / "html/native.json"
    pairs = [("html", "native"), ("html", "memento")]
    for run, is_there in (
        (made, True),
        (made | {"made_with.commit": "b2"}, False),
        (made | {"made_with.image": "i2"}, False),
        ({"failure": "a line"}, False),
    ):
        file.write_text(json.dumps(run))
        missing, there = plans.split(pairs, lambda commit: commit == "a1", "i1", tmp_path)
        assert (("html", "native") in there) == is_there and ("html", "memento") in missing


def test_two_programs_and_sources_with_changes_are_no_result():
    units = units_with(pages=0)
    owners = {"cycles_by_owner.allocate": 0, "cycles_by_owner.free": 0, "time_us": 1, "instructions": 1}
    sides = {
        "native": run(1200, **owners, **holding(1, 1), **{"made_with.program": "aa"}),
        "memento": run(1000, **owners, **units, **holding(1, 1), **{"made_with.program": "bb"}),
    }
    found = collect.program(sides)
    assert found["memento.failure"] == "it is another program than the baseline's"
    assert "speedup_percent" not in found
    sides["memento"]["made_with.program"] = "aa"
    assert collect.program(sides)["speedup_percent"] == pytest.approx(20)
    sides["native"]["made_with.commit"] = "0123-dirty"
    assert "changes" in collect.program(sides)["native.failure"]
    assert "speedup_percent" not in collect.program(sides)


def test_a_whole_process_has_its_price_without_other_runs():
    units = units_with(pages=0)
    owners = {"cycles_by_owner.allocate": 0, "cycles_by_owner.free": 0, "time_us": 2000, "instructions": 1}
    native = run(1200, **owners, **holding(1, 500))
    memento = run(1000, **owners, **units, **holding(1, 250))
    its = {
        f"{prefix}{side}": one
        for prefix in ("", "first-")
        for side, one in (("native", native), ("memento", memento))
    }
    found = collect.planned(its, {})
    assert found["cost_saved_exact_percent"] == pytest.approx(50)
    assert found["first.speedup_percent"] == pytest.approx(20) and "first.cost_saved_percent" not in found
    named = {f"paper-{name}": one for name, one in its.items()} | {"native": native}
    assert collect.of_plan(named, "core") == its


def test_experiments_without_a_published_result_are_named_as_such():
    text = (numbers.ROOT / "bench/sim/runs.toml").read_text()
    named = text.split("# Without a published result:")[1].split("\n\n")[0]
    results = json.loads((numbers.ROOT / "bench/results/sim.json").read_text())
    for name in runs.RUNS["experiments"]:
        has_result = any(f".experiment.{name}." in key for key in results)
        assert has_result != (f"\n{name} = " in named), name
