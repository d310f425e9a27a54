"""Small programs under QEMU: two runs are the same to the bit, counts agree with the program, each mistake
gets one clear line."""

import json
import subprocess

import pytest


@pytest.fixture(scope="module")
def once(first):
    return json.loads(first[1].read_text())


def test_two_runs_are_the_same(folder, sim, first):
    output = subprocess.run([folder / "churn", "20000"], capture_output=True, text=True).stdout
    for done in (first[0], sim("--out", "second", "--", "./churn", "20000")):
        assert done.returncode == 3, f"the program's exit status is passed on: {done.stderr}"
        assert done.stdout == output
    assert first[1].read_text() == (folder / "second/stats.json").read_text()


def test_counts(once):
    assert once["broken_laws"] == []
    assert not once["partial"]
    assert once["tlb.walk_disagreements"] == 0, "walks do not end where QEMU's did"
    assert 2e6 < once["user_instructions"] < 20e6, "for 20000 turns"
    # For 1.2 MB of heap.
    assert 300 < once["page_faults"] < 1500
    assert 300 < once["user_pages"] < 1500
    for by in ("cycles_by_cause.", "cycles_by_owner."):
        assert sum(value for key, value in once.items() if key.startswith(by)) == once["cycles"], by


def test_twice_the_work_is_twice_the_instructions(sim, once):
    twice = json.loads(sim("--json", "--", "./churn", "40000").stdout)["user_instructions"]
    assert 0.7 < twice / once["user_instructions"] - 1 < 1.1


def test_a_limit_keeps_the_counts(folder, sim):
    done = sim("--max-instructions", "1000000", "--out", "limited", "--", "./churn", "20000")
    assert done.returncode == 0 and "PARTIAL" in done.stderr, done.stderr
    statistics = json.loads((folder / "limited/stats.json").read_text())
    assert statistics["partial"] and statistics["partial_reason"] == "max-instructions"
    assert 1_000_000 <= statistics["instructions"] < 1_100_000
    assert (folder / "limited/stats.txt").read_text().startswith("PARTIAL")


def test_a_warm_program_counts_from_its_mark(sim, once):
    done = sim("--json", "--env", "MAYFLY_REGION=warm", "--", "./warm")
    assert done.returncode == 0, done.stderr
    statistics = json.loads(done.stdout)
    # Six instructions a turn, of 100000; before, there were 50 million turns, and a start with system calls.
    assert 550_000 < statistics["user_instructions"] < 650_000
    assert statistics["system_calls"] <= 2, "not only the exit"
    assert 0 < statistics["kernel_pages"] + once["kernel_pages"] < 200


def test_processes_that_take_turns_have_sections_of_their_own(sim):
    done = sim("--json", "--machine", "memento", "--", "./turns")
    assert done.returncode == 0, done.stderr
    statistics = json.loads(done.stdout)
    assert statistics["broken_laws"] == [] and statistics["memento.free_exceptions"] == 0
    both = 2 * 8 * 256
    assert (statistics["memento.allocations"], statistics["memento.frees"]) == (both, both)
    # Each hands over at every sixteenth object, and has some in the HOT by then.
    assert statistics["memento.hot_flushes"] >= both / 16 / 2
    # The shim's own accesses are not the program's, so no page is allocated before the object on it; and each
    # process' pages are freed at its exit.
    assert statistics["memento.pages_freed.data"] == statistics["memento.pages_allocated.data"]
    # The pool's pages are held like the kernel's, and the processes' are freed at their exits.
    assert statistics["held.most.user_pages"] >= statistics["memento.pages_allocated.data"] > 100
    assert statistics["held.end.user_pages"] < 10


def test_pages_that_were_freed_are_not_held(sim):
    few, many = (json.loads(sim("--json", "--", "./buffers", turns).stdout) for turns in ("20", "60"))
    assert many["broken_laws"] == []
    for kind, each in (("user", 64), ("kernel", 16)):
        assert many[f"{kind}_pages"] - few[f"{kind}_pages"] >= 40 * each, "all that were allocated"
        held = [one[f"held.most.{kind}_pages"] for one in (few, many)]
        assert held[0] == held[1] < few[f"{kind}_pages"] / 10, "a turn's pages are freed in it"
    assert 64 <= many["held.most.user_pages"] < 128 and 16 <= many["held.most.kernel_pages"] < 64
    assert many["held.end.user_pages"] == 0, "the program has exited"


def stats(done):
    assert done.returncode == 0, done.stderr
    statistics = json.loads(done.stdout)
    assert statistics["broken_laws"] == [] and statistics["tlb.walk_disagreements"] == 0
    return statistics


def test_two_threads_take_half_as_long_on_two_cores(sim):
    one, two = (stats(sim("--json", "--cores", n, "--", "./threads", "apart", "1000000")) for n in "12")
    assert two["cycles"] < 0.6 * one["cycles"], "the threads are independent"
    assert min(two["cores.0.busy_cycles"], two["cores.1.busy_cycles"]) > 0.4 * one["cycles"]
    assert abs(two["user_instructions"] / one["user_instructions"] - 1) < 0.01
    assert not any(key.startswith("cores.") for key in one)


def test_a_line_that_two_cores_write_moves_between_them(folder, sim):
    apart, line, again = (
        sim("--cores", "2", "--json", "--out", out, "--", "./threads", mode, "50000")
        for out, mode in (("lines", "lines"), ("line", "line"), ("again", "line"))
    )
    taken = [one["cores.lines_taken"] + one["cores.lines_invalidated"] for one in map(stats, (apart, line))]
    # They add for a million cycles, and a turn is a thousand of them.
    assert taken[1] > taken[0] + 1000, "once a turn, while both add"
    assert again.returncode == 0
    # Where the host is busy, QEMU's main loop ends turns early, in either run. So two runs with as many turns
    # may differ as well: by 0.13% of their cycles, on two cores at a load of 20.
    first, second = (json.loads((folder / out / "stats.json").read_text()) for out in ("line", "again"))
    assert abs(first["cycles"] / second["cycles"] - 1) < 0.005, "two runs on two cores"


def test_objects_that_another_core_frees(sim):
    statistics = stats(sim("--json", "--machine", "memento", "--cores", "2", "--", "./remote"))
    every = 4 * 256
    assert (statistics["memento.allocations"], statistics["memento.non_local_frees"]) == (every, every)
    assert statistics["memento.free_exceptions"] == 0
    # The arena that the first thread has in its core's HOT, of which the other frees an object.
    assert statistics["memento.hot_invalidations"] >= 1
    assert statistics["cores.lines_taken"] >= 4, "headers, at least"


def test_a_sampled_run_is_near_the_whole_one(folder, sim, once):
    done = sim("--sample=10007", "--out", "sampled", "--", "./churn", "20000")
    assert done.returncode == 3 and "windows)" in done.stderr, done.stderr
    statistics = json.loads((folder / "sampled/stats.json").read_text())
    for key in ("instructions", "loads", "page_faults", "branch.conditional_mispredicted", "tlb.walks"):
        assert statistics[key] == once[key], key
    # The run is short; where its windows lie differs with the image. The interval holds of 95 in 100 runs.
    interval = statistics["sample.interval_95_percent"] / 100
    assert 0 < interval < 0.1
    assert abs(statistics["cycles"] / once["cycles"] - 1) < min(2 * interval, 0.05), interval
    assert abs(statistics["dram.traffic_bytes"] / once["dram.traffic_bytes"] - 1) < 0.01


def test_another_machine_takes_other_cycles(sim, once):
    done = sim("--json", "--set", "llc.latency_cycles=80", "--", "./churn", "20000")
    assert json.loads(done.stdout)["cycles"] > 1.02 * once["cycles"], (
        "with an LLC of 80 in place of 40 cycles"
    )


@pytest.mark.parametrize(
    "words, expected",
    [
        ("--set l1d.wayz=9 -- ./churn", "unknown key l1d.wayz"),
        ("--machine table4 -- ./churn", "no machine table4"),
        ("--sample=1000 -- ./churn", "sample.period_instructions = 1000: more than 7000 are needed"),
        ("--sample -- ./churn 10", "windows, and 30 are needed: name a smaller --sample=N"),
        ("--sample --allocator speedmalloc -- ./churn", "a machine with a support core is not sampled"),
        ("--sample --dram dramsim3 -- ./churn", "in a sampled run DRAM's requests have no times"),
        ("--cores 0 -- ./churn", "cores.number = 0: 1 to 8"),
        ("--cores 2 --sample -- ./churn", "a machine with several cores is not sampled"),
        ("--region first -- ./churn", "./churn: the image lists no calls of it"),
        ("-- ./missing", "./missing: no such file on this machine"),
        ("--image bare -- missing", "missing: no such program in the guest's image"),
        ("--image nowhere -- true", "no simulator image in nowhere"),
    ],
)
def test_mistakes_get_one_line(sim, words, expected):
    check_line(sim(*words.split()), expected)


def test_a_panic_leaves_partial_statistics(folder, sim):
    check_line(sim("--out", "panicked", "--", "./panic"), "the guest's kernel panicked: ")
    statistics = json.loads((folder / "panicked/stats.json").read_text())
    assert statistics["partial"] and statistics["instructions"] > 0


def check_line(done, expected):
    assert done.returncode not in (0, 3)
    [line] = done.stderr.strip().splitlines()
    assert expected in line
