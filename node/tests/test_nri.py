"""Pods' annotations by containerd 2's NRI; pods are created by CRI, as a kubelet does."""

import contextlib
import pathlib
import shutil
import socket

import pytest
from containerd2 import preload_plugin
from go_programs import Missing, built

from node import HERE, PAGES, Agent, run, scratch, shared, until

# NRI from 0.12 on reports a container's start and end by other calls than before.
on_both_versions = pytest.mark.parametrize("containerd", ["oldest", "newest"], indirect=True)


@pytest.fixture(scope="module")
def agent(containerd):
    with scratch() as folder, Agent(folder, nri=containerd.nri) as agent:
        until(lambda: agent.metrics()["mayfly_node_connected"] == 1, agent.log)
        yield agent


def environment(pid):
    pairs = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(pair.decode().split("=", 1) for pair in pairs if pair)


def has(pid, library):
    return library in pathlib.Path(f"/proc/{pid}/maps").read_text()


@pytest.fixture(scope="session")
def findings():
    """What promtool's linter finds in metrics."""
    try:
        folder = built("promlint", HERE / "promlint", ["."])
    except Missing as why:
        pytest.skip(str(why))
    return lambda text: run(folder / "promlint", input=text)


def given(agent):
    """How many containers started with the heap, and how many without it because of another plugin."""
    metrics = agent.metrics()
    return metrics['mayfly_node_given_total{what="heap"}'], metrics["mayfly_node_replaced_total"]


def test_injects_nothing_without_a_request(agent, pods):
    pid = pods("plain", "shop", "glibc", PAGES, "4", "1", "300")
    assert not [name for name in environment(pid) if "MAYFLY" in name or name == "LD_PRELOAD"]
    assert not has(pid, "mayfly")


@on_both_versions
@pytest.mark.parametrize("libc", ["glibc", "musl"])
def test_the_heap(agent, pods, libc):
    pid = pods(f"heap-{libc}", "shop", libc, PAGES, "4", "1", "300", heap="online")
    until(lambda: has(pid, "libmayfly_heap.so"), agent.log)
    assert not has(pid, "libmayfly_merge_auto.so")
    until(lambda: agent.metrics().get('mayfly_node_outcomes_total{outcome="in_place"}', 0) >= 1, agent.log)


@on_both_versions
def test_namespaces_do_not_share(agent, pods):
    words = ["glibc", PAGES, "48", "5", "600"]
    one = pods("one", "shop", *words, share="web")
    two = pods("two", "shop", *words, share="web", heap="online")
    forged = pods("forged", "evil", *words, share="web")
    alone = pods("alone", "shop", *words, share="pod")

    def as_wanted():
        both = all(mapped > 40 and part < 0.6 * mapped for mapped, part in (shared(one), shared(two)))
        others = all(mapped > 40 and part > 0.95 * mapped for mapped, part in (shared(forged), shared(alone)))
        return both and others

    until(as_wanted, lambda: f"{[shared(pid) for pid in (one, two, forged, alone)]} {agent.log()}")
    metrics = agent.metrics()
    pod = 'namespace="shop",pod="one",container="main"'
    mapped = metrics[f"mayfly_node_container_shared_mapped_bytes{{{pod}}}"]
    taken = metrics[f"mayfly_node_container_shared_bytes{{{pod}}}"]
    assert taken < 0.6 * mapped
    stores = [name for name in metrics if name.startswith("mayfly_node_store_up")]
    assert len(stores) == 3, stores

    def charged():
        name = "mayfly_node_store_memory_bytes"
        return [value for key, value in agent.metrics().items() if key.startswith(name)]

    until(lambda: len(charged()) == 3 and all(0 < value < 1 << 28 for value in charged()), charged)


def test_metrics_are_as_prometheus_wants_them(agent, pods, findings):
    """With two stores, so that each metric of a store has two values."""
    for name in ("one", "two"):
        pods(f"lint-{name}", f"lint-{name}", "glibc", PAGES, "16", "5", "600", share="namespace")
    clients = 'mayfly_share_clients{domain="'
    until(lambda: len([name for name in agent.metrics() if name.startswith(clients)]) >= 2, agent.log)
    text = agent.get("/metrics")
    assert findings(text) == ""
    heads = [line for line in text.splitlines() if line.startswith("# HELP mayfly_share_clients ")]
    assert len(heads) == 1


def test_extends_the_ld_preload_of_another_plugin(agent, containerd, pods):
    started, replaced = given(agent)
    with preload_plugin(containerd, "95"):
        pid = pods("extended", "shop", "glibc", PAGES, "4", "1", "300", heap="online")
    assert environment(pid)["LD_PRELOAD"].startswith("/opt/other.so:/opt/mayfly/heap/")
    until(lambda: has(pid, "libmayfly_heap.so"), agent.log)
    until(lambda: given(agent) == (started + 1, replaced), agent.log)


def test_counts_containers_that_start_without_the_heap_apart(agent, containerd, pods):
    """A plugin of the same index that connects later is called later."""
    started, replaced = given(agent)
    with preload_plugin(containerd, "99", "replace"):
        pid = pods("replaced", "shop", "glibc", PAGES, "4", "1", "300", heap="online")
    assert environment(pid)["LD_PRELOAD"] == "/opt/other.so"
    until(lambda: given(agent) == (started, replaced + 1), agent.log)
    assert "starts without libmayfly_heap.so: another NRI plugin has replaced LD_PRELOAD" in agent.log()


def test_failed_creations_are_not_counted(agent, containerd, pods):
    before = given(agent), agent.metrics()["mayfly_node_containers"]
    # Two plugins set one variable, which the runtime refuses.
    with preload_plugin(containerd, "99"), pytest.raises(AssertionError, match="LD_PRELOAD"):
        pods("failed", "shop", "glibc", PAGES, "4", "1", "300", heap="online")
    assert (given(agent), agent.metrics()["mayfly_node_containers"]) == before


@on_both_versions
def test_store_refuses_a_process_that_is_no_member(agent, pods):
    pods("member", "shop", "glibc", PAGES, "16", "3", "600", share="namespace")
    [path] = until(lambda: list(agent.data.glob("domains/*/share.socket")), agent.log)
    assert list(path.parent.iterdir()) == [path], "containers see the socket and no file that they could lock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as thief:
        thief.settimeout(20)
        thief.connect(str(path))
        try:
            thief.send(bytes([1, 0, 0, 0, 1, 0, 0, 0]))
            response = thief.recv(100)
        except OSError:
            response = b""
    # A refusal (kind 7 of merge's protocol), unless the connection is closed before it is read.
    assert not response or (response[0] == 7 and b"this process is no member" in response)
    assert b"cgroup" not in response
    until(lambda: "is no member of this store" in agent.log(), agent.log)


@on_both_versions
def test_static_programs_run_unchanged_and_are_logged_once(agent, pods):
    pods("static", "shop", "musl", "/bin/pages-static", "4", "1", "600", heap="online")
    until(lambda: "linked statically" in agent.log(), agent.log)
    assert agent.log().count("linked statically") == 1
    assert agent.metrics()['mayfly_node_outcomes_total{outcome="static"}'] == 1


def test_pods_with_invalid_annotations_start_without_them(agent, pods):
    refused = agent.metrics()["mayfly_node_refused_total"]
    pid = pods("wrong", "shop", "glibc", PAGES, "4", "1", "600", heap="very", share="../..", profile="x")
    assert not has(pid, "mayfly")
    assert agent.metrics()["mayfly_node_refused_total"] == refused + 3
    pid = pods("model", "shop", "glibc", PAGES, "4", "1", "600", heap="model=none")
    until(lambda: has(pid, "libmayfly_heap.so"), agent.log)


@on_both_versions
def test_pods_start_without_the_agent_and_share_after_its_restart(agent, pods):
    words = ["glibc", PAGES, "32", "8", "600"]
    before = pods("before", "shop", *words, share="web")
    until(lambda: shared(before)[0] > 24, agent.log)
    agent.kill()
    try:
        missed = pods("missed", "shop", *words, share="web", heap="online")
        assert not has(missed, "mayfly")
    finally:
        agent.start()
    until(lambda: agent.metrics()["mayfly_node_missed_total"] == 1, agent.log)
    after = pods("after", "shop", *words, share="web")
    until(lambda: shared(after)[0] > 24, lambda: f"{shared(after)} {agent.log()}")
    assert shared(before)[0] > 24, "shared pages stay shared"
    assert agent.metrics()["mayfly_node_containers"] == 2


def fill(folder):
    """Uses up all blocks and all inodes of a small file system."""
    hog = folder / "hog"
    hog.mkdir()
    with contextlib.suppress(OSError), open(hog / "bytes", "wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
    with contextlib.suppress(OSError):
        for number in range(10_000):
            (hog / str(number)).touch()
    with pytest.raises(OSError):
        (folder / "one-more").touch()
    return hog


def test_pods_start_and_share_on_a_full_disk(containerd, pods):
    words = ["glibc", PAGES, "32", "13", "600"]
    with scratch() as folder:
        run("mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=500,mode=755", "tmpfs", folder)
        try:
            with Agent(folder, nri=containerd.nri) as agent:
                until(lambda: agent.metrics()["mayfly_node_connected"] == 1, agent.log)
                before = pods("before", "shop", *words, share="web")
                until(lambda: shared(before)[0] > 24, agent.log)
                hog = fill(folder)
                # It starts, without what the agent has no room for.
                assert pods("during", "shop", *words, share="other", heap="online")
                assert agent.is_healthy()
                joins = pods("joins", "shop", *words, share="web")
                assert shared(before)[0] > 24
                shutil.rmtree(hog)
                # It reconnects every few seconds, and is a member once the agent can write the members' file.
                until(lambda: shared(joins)[0] > 24, agent.log)
                after = pods("after", "shop", *words, share="other")
                until(lambda: shared(after)[0] > 24, agent.log)
        finally:
            run("umount", "--lazy", folder)
