"""Statistics of each N instructions: they sum to the run's, and the last one ends with it."""

import json


def test_intervals_sum_to_the_run(folder, sim):
    done = sim("--interval", "100000", "--out", "intervals", "--", "./churn", "20000")
    assert done.returncode == 3, done.stderr
    whole = json.loads((folder / "intervals/stats.json").read_text())
    parts = [json.loads(line) for line in (folder / "intervals/intervals.jsonl").read_text().splitlines()]
    assert len(parts) == -(-whole["instructions"] // 100_000)
    for key in ("instructions", "cycles", "loads", "page_faults", "l1d.misses", "objects.allocations"):
        if key in whole:
            assert sum(part.get(key, 0) for part in parts) == whole[key], key
    # A block is not divided.
    assert all(100_000 <= part["instructions"] < 101_000 for part in parts[:-1])
    begins = [part["first_instruction"] for part in parts]
    assert begins == [sum(part["instructions"] for part in parts[:index]) for index in range(len(parts))]
    for part in parts:
        assert abs(part["ipc"] - part["instructions"] / part["cycles"]) < 1e-9


def test_intervals_change_no_count(folder, first, sim):
    done = sim("--interval", "1000000", "--out", "coarse", "--", "./churn", "20000")
    assert done.returncode == 3, done.stderr
    assert (folder / "coarse/stats.json").read_text() == first[1].read_text()


def test_text_is_gem5s(first):
    lines = first[1].with_name("stats.txt").read_text().strip().splitlines()
    assert lines[0] == "---------- Begin Simulation Statistics ----------"
    assert lines[-1] == "---------- End Simulation Statistics   ----------"
    values = dict(line.split("#")[0].split() for line in lines[1:-1] if line)
    counted = json.loads(first[1].read_text())
    assert int(values["cycles"]) == counted["cycles"] and len(values) > 100
