"""Podman's containers, by CDI: one option, unchanged images."""

import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import time

import pytest
from podman4 import CDI

from node import BIN, MIB, PAGES, Agent, run, scratch, shared, until


@pytest.fixture(scope="module")
def agent(podman):
    if list(CDI.glob("mayfly.dev-*.json")):
        pytest.skip(f"an agent has its devices in {CDI}")
    with scratch() as folder:
        try:
            with Agent(folder, "--domain", "web", "--domain", "other", cdi=CDI) as agent:
                yield agent
        finally:
            for file in CDI.glob("mayfly.dev-*.json"):
                file.unlink()


def heap_statistics(podman, image, *devices):
    text = podman.run(image, PAGES, "8", "1", "0", devices=devices, MAYFLY_HEAP_STATS="/dev/stdout")
    assert "good 2" in text
    return json.JSONDecoder().raw_decode(text, text.index("{"))[0]


@pytest.mark.parametrize("libc", ["glibc", "musl"])
def test_heap(podman, agent, libc):
    assert heap_statistics(podman, libc, "heap=online")["heap.live_bytes"] >= 8 << 20
    maps = podman.run(libc, PAGES, "maps", devices=["heap=online"])
    assert "libmayfly_heap.so" in maps and "libmayfly_merge_auto.so /" not in maps
    assert "mayfly" not in podman.run(libc, PAGES, "maps"), "nothing is injected without a device"


@pytest.mark.parametrize("libc", ["glibc", "musl"])
def test_static_programs_run_unchanged(podman, agent, libc):
    plain = podman.run(libc, "/bin/pages-static", "8", "1", "0")
    assert podman.run(libc, "/bin/pages-static", "8", "1", "0", devices=["heap=online", "share=web"]) == plain


def top_shows(agent, names):
    """`mayfly node top` has each container's heap, memory and saving, and what they save by domain."""

    def found():
        memory = json.loads(run(BIN / "mayfly", "node", "top", "--json", "--agent", agent.address))
        by_name = {one["container"]: one for one in memory["containers"]}
        # The agent looks for containers with CDI devices every five seconds.
        return all(name[:12] in by_name for name in names) and (memory, by_name)

    memory, by_name = until(found, lambda: f"not all containers are found: {agent.log()}")
    one, two, three = (by_name[name[:12]] for name in names)
    assert [each["domain"] for each in (one, two, three)] == ["device web", "device web", "device other"]
    assert [each["heap"] for each in (one, two, three)] == [None, "online", None]
    for each in (one, two):
        assert each["shared_mapped_bytes"] > 56 * MIB and each["shared_bytes"] < 40 * MIB
    store = next(store for store in memory["stores"] if store["domain"] == "device web")
    assert store["is_up"] and store["limit_bytes"] >= 1024 * MIB
    # This host's cgroups may be without the memory controller.
    charged = [each["charged_bytes"] for each in (one, two, three, store)]
    assert all(value is None or value > 0 for value in charged), charged
    table = run(BIN / "mayfly", "node", "top", "--agent", agent.address)
    containers, stores = table.split("\n\n")
    rows = {row.split()[2]: row.split() for row in containers.splitlines()[1:]}
    assert rows[names[1][:12]][3:6] == ["online", "device", "web"]
    saved = {row.split()[1]: float(row.split()[-1]) for row in stores.splitlines()[1:]}
    assert 40 < saved["web"] < 80 and saved["other"] < 8, table


def test_top_names_the_address_without_an_agent():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        command = [BIN / "mayfly", "node", "top", "--once", "--agent", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and f"no agent answers at {address}" in done.stderr, done


@pytest.mark.parametrize("libc", ["glibc", "musl"])
def test_a_domain_shares_and_another_does_not(podman, agent, libc):
    words = [PAGES, "64", "7", "300"]
    names = []
    try:
        for devices in (["share=web"], ["heap=online", "share=web"], ["share=other"]):
            names.append(podman.start(libc, *words, devices=devices))
        one, two, three = (pid for _, pid in names)

        def both_share():
            return all(mapped > 56 and part < 0.6 * mapped for mapped, part in (shared(one), shared(two)))

        until(both_share, lambda: f"{[shared(pid) for pid in (one, two, three)]} {agent.log()}")
        until(lambda: shared(three)[0] > 56, lambda: f"{shared(three)}")
        mapped, part = shared(three)
        assert part > 0.95 * mapped, "the third shares with no other"
        maps = pathlib.Path(f"/proc/{two}/maps").read_text()
        assert "libmayfly_heap.so" in maps and "libmayfly_merge_auto.so" in maps
        metrics = agent.metrics()
        assert metrics['mayfly_node_store_up{domain="device web",namespace=""}'] == 1
        assert metrics['mayfly_share_clients{domain="device web",namespace=""}'] >= 2
        top_shows(agent, [name for name, _ in names])
        for name, _ in names:
            podman("stop", "--time", "60", name)
            assert "good 16" in podman("logs", name)
    finally:
        podman.end(*(name for name, _ in names))


@pytest.mark.parametrize("file", ["grafana-fleet.json", "prometheus-node-alerts.yaml"])
def test_the_dashboard_and_alerts_name_existing_metrics(podman, agent, file):
    page = pathlib.Path(__file__).resolve().parents[2] / "deploy" / file
    named = set(re.findall(r"\bmayfly_[a-z_]+", page.read_text())) - {"mayfly_fleet"}
    assert len(named) > 8

    def missing():
        return named - set(re.findall(r"^(?:# TYPE )?(mayfly_\w+)", agent.get("/metrics"), re.M))

    # A store has metrics of its own once a client has called it.
    with podman.running("glibc", PAGES, "16", "1", "300", devices=["share=web"]) as (name, _):
        until(lambda: not missing(), missing)


def test_a_malicious_container_harms_no_other(podman, agent):
    words = [PAGES, "32", "9", "300"]
    with podman.running("glibc", *words, devices=["share=other"]) as (name, pid):
        output = podman.run("glibc", "/bin/evil", "3", devices=["share=web"])
        assert not any(word in output for word in ("wrote", "unlinked", "opened")), output
        assert agent.is_healthy()
        until(lambda: shared(pid)[0] > 24, lambda: f"no sharing: {shared(pid)} {agent.log()}")
        podman("stop", "--time", "60", name)
        assert "good 8" in podman("logs", name)


def test_a_killed_store_is_restarted(podman, agent):
    with podman.running("glibc", PAGES, "32", "11", "300", devices=["share=web"]) as (name, pid):
        until(lambda: shared(pid)[0] > 24, lambda: f"{shared(pid)} {agent.log()}")
        stores = run("pgrep", "-f", f"share --socket {agent.data}").split()
        before = agent.metrics()['mayfly_node_store_restarts{domain="device web",namespace=""}']
        for store in stores:
            os.kill(int(store), 9)
        label = 'mayfly_node_store_restarts{domain="device web",namespace=""}'
        until(lambda: agent.metrics()[label] > before, agent.log)
        with podman.running("glibc", PAGES, "32", "11", "300", devices=["share=web"]) as (other, new):
            until(lambda: shared(new)[0] > 24, lambda: f"{shared(new)} {agent.log()}")
        podman("stop", "--time", "60", name)
        assert "good 8" in podman("logs", name)


def test_kills_at_random_moments_harm_no_other_container(podman, agent):
    seed = random.randrange(1 << 32)
    moments = random.Random(seed)
    with podman.running("glibc", PAGES, "32", "17", "900", devices=["share=web"]) as (name, pid):
        until(lambda: shared(pid)[0] > 24, lambda: f"{shared(pid)} {agent.log()}")
        for victim in ("container", "store", "agent") * 3:
            other, process = podman.start(
                "glibc", PAGES, "32", "17", "900", devices=["share=web", "heap=online"]
            )
            time.sleep(moments.uniform(0, 3))
            if victim == "container":
                os.kill(process, signal.SIGKILL)
            elif victim == "store":
                for store in run("pgrep", "-f", f"share --socket {agent.data}").split():
                    os.kill(int(store), signal.SIGKILL)
            else:
                agent.kill()
                agent.start()
            podman.end(other)
            assert agent.is_healthy(), f"seed {seed}"
            assert "bad" not in podman("logs", name), f"seed {seed}"
        with podman.running("glibc", PAGES, "32", "17", "900", devices=["share=web"]) as (after, new):
            until(lambda: shared(new)[0] > 24, lambda: f"seed {seed}: {shared(new)} {agent.log()}")
        podman("stop", "--time", "60", name)
        assert "good 8" in podman("logs", name), f"seed {seed}"


@pytest.mark.musl
def test_containers_start_without_the_agent(podman, agent):
    agent.kill()
    try:
        assert heap_statistics(podman, "glibc", "heap=online", "share=web")
        assert heap_statistics(podman, "musl", "heap=online", "share=web")
    finally:
        agent.start()
    assert heap_statistics(podman, "glibc", "heap=online", "share=web")
