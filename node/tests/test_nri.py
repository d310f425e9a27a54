"""Pods' annotations, by containerd 2's NRI, as a kubelet makes pods (CRI)."""

import contextlib
import pathlib
import shutil
import socket

import pytest

from node import PAGES, Agent, run, scratch, shared, until


@pytest.fixture(scope="module")
def agent(containerd):
    with scratch() as folder, Agent(folder, nri=containerd.nri) as agent:
        until(lambda: agent.figures()["mayfly_node_connected"] == 1, agent.said)
        yield agent


def environment(pid):
    pairs = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(pair.decode().split("=", 1) for pair in pairs if pair)


def has(pid, library):
    return library in pathlib.Path(f"/proc/{pid}/maps").read_text()


def test_nothing_is_given_that_was_not_asked_for(agent, pods):
    pid = pods("plain", "shop", "glibc", PAGES, "4", "1", "300")
    assert not [name for name in environment(pid) if "MAYFLY" in name or name == "LD_PRELOAD"]
    assert not has(pid, "mayfly")


@pytest.mark.parametrize("libc", ["glibc", "musl"])
def test_the_heap(agent, pods, libc):
    pid = pods(f"heap-{libc}", "shop", libc, PAGES, "4", "1", "300", heap="online")
    until(lambda: has(pid, "libmayfly_heap.so"), agent.said)
    assert not has(pid, "libmayfly_merge_auto.so")
    until(lambda: agent.figures().get('mayfly_node_outcomes_total{outcome="in_place"}', 0) >= 1, agent.said)


def test_namespaces_are_the_border(agent, pods):
    words = ["glibc", PAGES, "48", "5", "600"]
    one = pods("one", "shop", *words, share="web")
    two = pods("two", "shop", *words, share="web", heap="online")
    forged = pods("forged", "evil", *words, share="web")
    alone = pods("alone", "shop", *words, share="pod")

    def as_wanted():
        both = all(mapped > 40 and part < 0.6 * mapped for mapped, part in (shared(one), shared(two)))
        others = all(mapped > 40 and part > 0.95 * mapped for mapped, part in (shared(forged), shared(alone)))
        return both and others

    until(as_wanted, lambda: f"{[shared(pid) for pid in (one, two, forged, alone)]} {agent.said()}")
    figures = agent.figures()
    pod = 'namespace="shop",pod="one",container="main"'
    mapped = figures[f"mayfly_node_container_shared_mapped_bytes{{{pod}}}"]
    taken = figures[f"mayfly_node_container_shared_bytes{{{pod}}}"]
    assert taken < 0.6 * mapped
    stores = [name for name in figures if name.startswith("mayfly_node_store_up")]
    assert len(stores) == 3, stores

    def charged():
        name = "mayfly_node_store_memory_bytes"
        return [value for key, value in agent.figures().items() if key.startswith(name)]

    until(lambda: len(charged()) == 3 and all(0 < value < 1 << 28 for value in charged()), charged)


def test_who_has_the_socket_without_being_a_member_is_refused(agent, pods):
    pods("member", "shop", "glibc", PAGES, "16", "3", "600", share="namespace")
    [path] = until(lambda: list(agent.data.glob("domains/*/share.socket")), agent.said)
    assert list(path.parent.iterdir()) == [path], (
        "containers see the socket, and nothing that they could lock"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as thief:
        thief.settimeout(20)
        thief.connect(str(path))
        try:
            thief.send(bytes([1, 0, 0, 0, 1, 0, 0, 0]))
            answer = thief.recv(100)
        except OSError:
            answer = b""
    assert answer == b""
    until(lambda: "is no member of this store" in agent.said(), agent.said)


def test_static_programs_are_left_alone_with_one_event(agent, pods):
    pods("static", "shop", "musl", "/bin/pages-static", "4", "1", "600", heap="online")
    until(lambda: "linked statically" in agent.said(), agent.said)
    assert agent.said().count("linked statically") == 1
    assert agent.figures()['mayfly_node_outcomes_total{outcome="static"}'] == 1


def test_what_is_wrong_is_not_given_and_keeps_nothing_from_starting(agent, pods):
    refused = agent.figures()["mayfly_node_refused_total"]
    pid = pods("wrong", "shop", "glibc", PAGES, "4", "1", "600", heap="very", share="../..", profile="x")
    assert not has(pid, "mayfly")
    assert agent.figures()["mayfly_node_refused_total"] == refused + 3
    pid = pods("model", "shop", "glibc", PAGES, "4", "1", "600", heap="model=none")
    until(lambda: has(pid, "libmayfly_heap.so"), agent.said)


def test_pods_start_while_the_agent_is_gone_and_are_served_after_it_is_back(agent, pods):
    words = ["glibc", PAGES, "32", "8", "600"]
    before = pods("before", "shop", *words, share="web")
    until(lambda: shared(before)[0] > 24, agent.said)
    agent.kill()
    try:
        missed = pods("missed", "shop", *words, share="web", heap="online")
        assert not has(missed, "mayfly")
    finally:
        agent.start()
    until(lambda: agent.figures()["mayfly_node_missed_total"] == 1, agent.said)
    after = pods("after", "shop", *words, share="web")
    until(lambda: shared(after)[0] > 24, lambda: f"{shared(after)} {agent.said()}")
    assert shared(before)[0] > 24, "what was shared stays shared"
    assert agent.figures()["mayfly_node_containers"] == 2


def fill(folder):
    """Takes all blocks and all names of a small file system."""
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


def test_a_full_disk_keeps_nothing_from_starting_and_harms_nobody_who_shares(containerd, pods):
    words = ["glibc", PAGES, "32", "13", "600"]
    with scratch() as folder:
        run("mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=500,mode=755", "tmpfs", folder)
        try:
            with Agent(folder, nri=containerd.nri) as agent:
                until(lambda: agent.figures()["mayfly_node_connected"] == 1, agent.said)
                before = pods("before", "shop", *words, share="web")
                until(lambda: shared(before)[0] > 24, agent.said)
                hog = fill(folder)
                # With less than it asked for, or nothing, if there is no room for it; but it starts.
                assert pods("during", "shop", *words, share="other", heap="online")
                assert agent.is_healthy()
                joins = pods("joins", "shop", *words, share="web")
                assert shared(before)[0] > 24
                shutil.rmtree(hog)
                # It asks every few seconds, and is a member as soon as that can be written down.
                until(lambda: shared(joins)[0] > 24, agent.said)
                after = pods("after", "shop", *words, share="other")
                until(lambda: shared(after)[0] > 24, agent.said)
        finally:
            run("umount", "--lazy", folder)
