"""From a pod's annotation to a model and back: profiles in partitions, `mayfly train`, and what the agent
says of a model that is of another build."""

import gzip
import re

import pytest
from podman4 import CDI

from node import ROOT, Agent, run, scratch, until

WHERE = "namespace = 'shop' AND workload = 'web' AND version = '1'"


def contexts(agent, pod, namespace="shop", container="main"):
    """Those that the container's model was asked about, those that it knows, and whether it is believed."""
    labels = f'namespace="{namespace}",pod="{pod}",container="{container}",model="web"'
    figures = agent.figures()
    names = ("contexts", "contexts_known", "believed")
    return [figures.get(f"mayfly_node_model_{name}{{{labels}}}", 0) for name in names]


@pytest.fixture
def cdi():
    """Where engines look for devices; it is left as it was."""
    if list(CDI.glob("mayfly.dev-*.json")):
        pytest.skip(f"an agent has its devices in {CDI}")
    try:
        yield CDI
    finally:
        for file in CDI.glob("mayfly.dev-*.json"):
            file.unlink()


def test_a_profile_becomes_a_model_that_is_believed_by_its_own_build_alone(containerd, pods, podman, cdi):
    with scratch() as profiles, scratch() as models:
        options = ["--models", models, "--profiles", profiles]
        with scratch() as own, Agent(own, *options, nri=containerd.nri, cdi=cdi) as agent:
            until(lambda: agent.figures()["mayfly_node_connected"] == 1, agent.said)
            labels = {"app.kubernetes.io/name": "web", "app.kubernetes.io/version": "1"}
            pods("web-1", "shop", "glibc", "/bin/contexts-1", labels=labels, profile="4")
            kept = 'mayfly_node_profiles_total{outcome="kept"}'
            until(lambda: agent.figures()[kept] == 1, agent.said)
            partition = profiles / "namespace=shop/workload=web/version=1"
            names = sorted(path.name for path in partition.iterdir())
            assert [name.split(".", 4)[-1] for name in names] == ["parquet", "pb.gz", "symbols.parquet"], (
                names
            )

            run(
                ROOT / "train/run", profiles, "--where", WHERE, "-o", models / "web.mayfly-model", timeout=900
            )

            # The agent runs on; what starts next has the model.
            pods("web-2", "shop", "glibc", "/bin/contexts-1", labels=labels, heap="model=web")
            until(lambda: contexts(agent, "web-2")[0] >= 64, agent.said)
            asked, known, is_believed = contexts(agent, "web-2")
            assert known > 0.9 * asked and is_believed, (asked, known, agent.said())

            pods("web-3", "shop", "glibc", "/bin/contexts-2", labels=labels, heap="model=web")
            doubted = "mayfly_node_models_doubted_total"
            until(lambda: agent.figures()[doubted] == 1, agent.said)
            asked, known, is_believed = contexts(agent, "web-3")
            assert asked >= 64 and known < 0.1 * asked and not is_believed, (asked, known, agent.said())
            assert 'of pod "web-3" of "shop": the model web is of another build' in agent.said()
            assert 'of pod "web-2" of "shop": the model' not in agent.said()

            # A container by CDI, of which no runtime tells the agent.
            until(lambda: "model.web" in (cdi / "mayfly.dev-heap.json").read_text(), agent.said)
            with podman.running("glibc", "/bin/contexts-1", devices=["heap=model.web"]) as (name, _):
                by_cdi = dict(pod="", namespace="", container=name[:12])
                until(lambda: contexts(agent, **by_cdi)[0] >= 64, agent.said)
                asked, known, is_believed = contexts(agent, **by_cdi)
                assert known > 0.9 * asked and is_believed, (asked, known, agent.said())
                until(
                    lambda: f'container "{name[:12]}": libmayfly_heap.so in place' in agent.said(), agent.said
                )
                there = agent.figures()["mayfly_node_containers"]
            until(lambda: agent.figures()["mayfly_node_containers"] == there - 1, agent.said)


def test_workers_that_are_forked_later_are_in_the_profile(containerd, pods):
    with scratch() as own, Agent(own, nri=containerd.nri) as agent:
        until(lambda: agent.figures()["mayfly_node_connected"] == 1, agent.said)
        pods("forks", "shop", "glibc", "/bin/forks", profile="10")
        until(lambda: agent.figures()['mayfly_node_profiles_total{outcome="kept"}'] == 1, agent.said)
        [profile] = (own / "data/profiles").rglob("*.pb.gz")
        names = gzip.decompress(profile.read_bytes())
        found = {name for name in (b"parent_allocates", b"worker_allocates") if name in names}
        assert len(found) == 2, f"{found} {re.findall(rb'[a-z_/.0-9A-Z]{4,}', names)} {agent.said()}"


def test_a_program_without_the_heap_has_no_profile_and_runs_on(containerd, pods):
    with scratch() as own, Agent(own, nri=containerd.nri) as agent:
        until(lambda: agent.figures()["mayfly_node_connected"] == 1, agent.said)
        pods("static", "shop", "musl", "/bin/pages-static", "4", "1", "600", profile="1")
        until(lambda: agent.figures()['mayfly_node_profiles_total{outcome="failed"}'] == 1, agent.said)
        [line] = [line for line in agent.said().splitlines() if "static.main: no profile: " in line]
        assert "statically linked" in line, line
        assert not list((own / "data/profiles").rglob("*.parquet"))
