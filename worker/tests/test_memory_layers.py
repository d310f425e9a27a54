"""Mayfly's layers in an instance: heap, merging, which instances share pages, and the safety of a rest."""

import concurrent.futures
import json
import os
import pathlib
import signal
import time

import pytest
from calls import PYTHON, invoke, shell, until
from conftest import ROOT, TEMPLATE, Worker


def several(client, name, event, count):
    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        return list(threads.map(lambda _: invoke(client, name, event), range(count)))


def test_idle_instances_of_a_function_share_pages():
    with Worker(TEMPLATE) as running:
        client = running.client()
        table = {"do": "hold", "mib": 25, "seconds": 1}
        assert [error for _, error in several(client, "probe", table, 3)] == [None] * 3
        until(lambda: len({event["instance"] for event in running.events("merge")}) == 3, running.log())

        def merged():
            function = running.sample()["functions"]["probe"]
            # Three tables of 25 MiB, of which whole pages are shared, and one of them in the store.
            return function["mapped_shared_bytes"] > 3 * 24 << 20 and function["pss_bytes"] < 4 * 24 << 20

        until(merged, lambda: running.sample())
        function = running.sample()["functions"]["probe"]
        # A Python program has some MiB of small objects, and blocks with free room among them.
        assert 3 << 20 < function["heap_live_bytes"] < function["heap_held_bytes"], function
        assert function["heap_held_bytes"] < function["pss_bytes"] + function["mapped_shared_bytes"]
        store = running.sample()["store"]
        # One of the tables, and the function's snapshot.
        assert store["stores"] == 1 and 24 << 20 <= store["bytes"] < 64 << 20, store
        # Shared contents are unchanged, and writable.
        assert [answer for answer, _ in several(client, "probe", {"do": "check"}, 3)] == [True] * 3
        client.delete_function(FunctionName="probe")
        until(lambda: running.sample()["store"] == {"bytes": 0, "stores": 0}, lambda: running.sample())
        assert not running.stores()


def test_environment_size_is_independent_of_the_instance_number():
    """A longer environment moves later allocations: the tenth instance once shared little with the ninth."""
    with Worker(TEMPLATE) as running:
        client = running.client()
        sizes = set()
        for n in range(10, 21):
            client.update_function_configuration(
                FunctionName="probe", Environment={"Variables": {"START": str(n)}}
            )
            # The hash seed is the version's, not the instance's.
            sizes.add(shell(client, "env | grep -v ^PYTHONHASHSEED= | wc -c"))
        assert len(running.events("ready")) > 10 and len(sizes) == 1, sizes


@pytest.mark.parametrize("advise", ["named", "whole"])
def test_advise_option_selects_named_or_all_memory(advise):
    with Worker(TEMPLATE, "--advise", advise) as running:
        client = running.client()
        client.update_function_configuration(FunctionName="probe", Timeout=60)
        names = [1] if advise == "named" else []  # the table that it has mapped itself
        tables = {"do": "hold", "mib": 17, "mapped_mib": 17, "names": names, "seconds": 5}
        assert [error for _, error in several(client, "probe", tables, 2)] == [None] * 2
        until(lambda: len({event["instance"] for event in running.events("merge")}) == 2, running.log)

        def advised():
            function = running.sample()["functions"]["probe"]
            shared, private = function["mapped_shared_bytes"] >> 20, function["private_bytes"] >> 20
            if advise == "whole":
                return shared > 4 * 17 and private < 2 * 17
            # The one that was named is shared, and the other not.
            return 2 * 17 <= shared < 4 * 17 and 2 * 17 < private < 4 * 17

        until(advised, running.sample)
        # One that waited for its first work has merged once before.
        last = {event["instance"]: event for event in running.events("merge")}
        for event in last.values():
            if advise == "named":
                assert event["bytes"] == 17 << 20
            else:
                assert event["bytes"] > 2 * 17 << 20
        assert [answer for answer, _ in several(client, "probe", {"do": "check"}, 2)] == [True] * 2


def test_shared_memory_reads_zero_after_madv_dontneed():
    with Worker(TEMPLATE) as running:
        client = running.client()
        client.update_function_configuration(FunctionName="probe", Timeout=60)
        tables = {"do": "hold", "mib": 4, "mapped_mib": 17, "seconds": 5}
        assert [error for _, error in several(client, "probe", tables, 2)] == [None] * 2
        until(lambda: len({event["instance"] for event in running.events("merge")}) == 2, running.log)
        until(
            lambda: running.sample()["functions"]["probe"]["mapped_shared_bytes"] > 2 * 20 << 20,
            running.sample,
        )
        assert several(client, "probe", {"do": "drop"}, 2) == [(True, None)] * 2


def test_model_functions_advise_their_weights_and_run_without_merge():
    with Worker(str(ROOT / "functions/template.yaml")) as running:
        client = running.client()
        for name, mib in [("image", 30), ("text", 80)]:
            assert invoke(client, name, {"seed": 1})[1] is None
            merges = until(lambda name=name: running.events("merge", function=name), running.log)
            assert merges[0]["bytes"] > mib << 20, merges
    with Worker(str(ROOT / "functions/template.yaml"), "--without", "merge") as running:
        assert [invoke(running.client(), name, {"seed": 1})[1] for name in ("image", "text")] == [None] * 2


def test_instance_without_work_shares_its_pages():
    with Worker(TEMPLATE, "--advise", "whole") as running:
        client = running.client()

        def instances():
            return json.loads(running.get("/instances"))["instances"]

        answers = [invoke(client, "probe", {"do": "count"})]
        # The first one may answer both before the second has started.
        while len(instances()) < 2:
            answers += several(client, "probe", {"do": "count"}, 2)
        until(lambda: len({event["instance"] for event in running.events("merge")}) == 2, running.log)
        assert all(error is None for _, error in answers), answers


def test_instance_near_its_memory_limit_is_not_merged(client, worker):
    for name, mib in [("single", 80), ("neighbour", 8)]:  # of 128
        client.update_function_configuration(FunctionName=name, Description="full, or not")
        assert invoke(client, name, {"do": "hold", "mib": mib, "seconds": 0})[1] is None
    newest = {event["function"]: event["instance"] for event in worker.events("ready")}

    def merged(name):
        return newest[name] in {event["instance"] for event in worker.events("merge")}

    until(lambda: merged("neighbour"), worker.log)  # idle for a shorter time
    assert not merged("single")
    assert invoke(client, "single", {"do": "check"}) == (True, None)


def test_failed_merge_is_retried_while_idle():
    with Worker(TEMPLATE) as running:
        client = running.client()
        assert invoke(client, "single", {"do": "start_thread", "seconds": 10})[1] is None
        assert invoke(client, "single", {"do": "hold", "mib": 25, "seconds": 0})[1] is None
        # No work from here on; the thread ends after the first rest has failed to merge.
        until(lambda: running.sample()["store"]["bytes"] > 24 << 20, running.log)
        until(lambda: not running.events("merge")[-1].get("message"), running.log)
        first, *_, last = running.events("merge")
        assert first["message"].startswith("not merged: ") and last["bytes"] >= 25 << 20, (first, last)


def test_functions_have_separate_stores(client, worker):
    for name in ["probe", "neighbour"]:
        assert invoke(client, name, {"do": "count"})[1] is None
    until(lambda: len(worker.stores()) >= 2, worker.log)  # one each
    # It sees only its own store, in a read-only folder.
    own = ["share.lock", "share.socket"]
    until(lambda: shell(client, "ls /var/mayfly/store").split() == own, worker.log)
    assert shell(client, "touch /var/mayfly/store/x || echo no").strip() == "no"
    assert shell(client, "rm /var/mayfly/store/share.socket || echo no").strip() == "no"
    for store in worker.stores():
        status = pathlib.Path(f"/proc/{store}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        if pathlib.Path("/proc/self").stat().st_uid == 0:
            assert int(fields["Uid"].split()[0]) > 2_000_000_000
            assert int(fields["CapEff"], 16) == 1 << 28, "the right to ask for leases, and no other"


def test_dead_store_is_restarted_for_its_instances():
    with Worker(TEMPLATE) as running:
        client = running.client()

        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            busy = threads.submit(invoke, client, "single", {"do": "sleep", "seconds": 5})
            until(lambda: running.events("ready"), running.log)
            time.sleep(1)
            assert not running.stores(), "an instance at its first work does not rest"
            assert busy.result() == ("slept", None)
            # It rests, and merges, after that request.
            busy = threads.submit(invoke, client, "single", {"do": "sleep", "seconds": 15})
            until(running.stores, running.log)
            (store,) = running.stores()
            running.wait_for("page store ready")
            os.kill(store, signal.SIGKILL)
            until(lambda: set(running.stores()) - {store}, running.state)
            assert busy.result() == ("slept", None)
        assert invoke(client, "single", {"do": "hold", "mib": 25, "seconds": 1}) == (None, None)
        until(lambda: running.sample()["store"]["bytes"] > 24 << 20, running.log)
        assert len(running.events("ready")) == 1, "it is the same instance"
        assert invoke(client, "single", {"do": "check"}) == (True, None)
        # A deleted function has no store.
        client.delete_function(FunctionName="single")
        until(lambda: not running.stores(), running.state)


def test_only_user_mode_userfaultfd_is_allowed(client):
    call = (
        "import ctypes as c; libc = c.CDLL(None, use_errno=True); print(libc.syscall(323, {}), c.get_errno())"
    )
    assert shell(client, f'{PYTHON} -c "{call.format(0)}"').split() == ["-1", "38"]
    assert int(shell(client, f'{PYTHON} -c "{call.format(1)}"').split()[0]) >= 0


@pytest.mark.parametrize("without", ["heap", "merge", "heap,merge"])
def test_each_layer_can_be_disabled(without):
    with Worker(TEMPLATE, "--without", without) as running:
        client = running.client()
        libraries = shell(client, "cat /proc/$PPID/maps")
        layers = json.loads(running.get("/history"))["layers"]
        for layer in ["heap", "merge"]:
            there = layer not in without
            assert (f"libmayfly_{layer}.so" in shell(client, "ls /var/mayfly/lib 2>/dev/null")) == there
            assert layers[layer] == there
        assert ("libmayfly_heap.so" in libraries) == ("heap" not in without)
        imported = shell(client, f"{PYTHON} -c 'import mayfly' 2>/dev/null && echo yes")
        assert imported == "yes\n", "a function that advises also runs without the layers"
        until(lambda: len(running.stores()) == (0 if "merge" in without else 1), running.state)


def test_request_during_a_rest_is_not_lost(client):
    # Pauses around the time that an instance waits before it rests.
    for pause in [0.28, 0.3, 0.31, 0.32, 0.35, 0.4]:
        for _ in range(3):
            assert invoke(client, "single", {"do": "count"})[1] is None
            time.sleep(pause)


def test_instance_with_a_busy_thread_is_not_merged(worker, client):
    client.update_function_configuration(FunctionName="neighbour", Description="threads")
    invoke(client, "neighbour", {"do": "hold", "mib": 8, "seconds": 0})
    invoke(client, "neighbour", {"do": "start_thread"})
    invoke(client, "neighbour", {"do": "count"})

    def refusals():
        merges = worker.events("merge", function="neighbour")
        return [event for event in merges if "busy" in event.get("message", "")]

    until(refusals, lambda: worker.events("merge"))
    assert invoke(client, "neighbour", {"do": "count"})[1] is None
