"""From a pod's annotation to a model and back: partitioned profiles, `mayfly train`, and the agent's log and
metrics for a model of another build."""

import gzip
import re

import pytest
from podman4 import CDI

from node import ROOT, Agent, run, scratch, until

WHERE = "namespace = 'shop' AND workload = 'web' AND version = '1'"


def contexts(agent, pod, namespace="shop", container="main"):
    """Calling contexts looked up in a container's model, those that it knows, and whether it is believed."""
    labels = f'namespace="{namespace}",pod="{pod}",container="{container}",model="web"'
    metrics = agent.metrics()
    names = ("contexts", "contexts_known", "believed")
    return [metrics.get(f"mayfly_node_model_{name}{{{labels}}}", 0) for name in names]


@pytest.fixture
def cdi():
    """The folder in which engines look up devices; the agent's files are removed at the end."""
    if list(CDI.glob("mayfly.dev-*.json")):
        pytest.skip(f"an agent has its devices in {CDI}")
    try:
        yield CDI
    finally:
        for file in CDI.glob("mayfly.dev-*.json"):
            file.unlink()


def test_a_profiles_model_is_believed_by_the_same_build_only(containerd, pods, podman, cdi):
    with scratch() as profiles, scratch() as models:
        options = ["--models", models, "--profiles", profiles]
        with scratch() as own, Agent(own, *options, nri=containerd.nri, cdi=cdi) as agent:
            until(lambda: agent.metrics()["mayfly_node_connected"] == 1, agent.log)
            labels = {"app.kubernetes.io/name": "web", "app.kubernetes.io/version": "1"}
            pods("web-1", "shop", "glibc", "/bin/contexts-1", labels=labels, profile="4")
            kept = 'mayfly_node_profiles_total{outcome="kept"}'
            until(lambda: agent.metrics()[kept] == 1, agent.log)
            partition = profiles / "namespace=shop/workload=web/version=1"
            names = sorted(path.name for path in partition.iterdir())
            assert [name.split(".", 4)[-1] for name in names] == ["parquet", "pb.gz", "symbols.parquet"], (
                names
            )

            run(
                ROOT / "train/run", profiles, "--where", WHERE, "-o", models / "web.mayfly-model", timeout=900
            )

            # The agent runs on; pods that start next get the model.
            pods("web-2", "shop", "glibc", "/bin/contexts-1", labels=labels, heap="model=web")
            until(lambda: contexts(agent, "web-2")[0] >= 64, agent.log)
            asked, known, is_believed = contexts(agent, "web-2")
            assert known > 0.9 * asked and is_believed, (asked, known, agent.log())

            pods("web-3", "shop", "glibc", "/bin/contexts-2", labels=labels, heap="model=web")
            doubted = "mayfly_node_models_doubted_total"
            until(lambda: agent.metrics()[doubted] == 1, agent.log)
            asked, known, is_believed = contexts(agent, "web-3")
            assert asked >= 64 and known < 0.1 * asked and not is_believed, (asked, known, agent.log())
            assert 'of pod "web-3" of "shop": the model web is of another build' in agent.log()
            assert 'of pod "web-2" of "shop": the model' not in agent.log()

            # A container by CDI, which no runtime reports to the agent.
            until(lambda: "model.web" in (cdi / "mayfly.dev-heap.json").read_text(), agent.log)
            with podman.running("glibc", "/bin/contexts-1", devices=["heap=model.web"]) as (name, _):
                by_cdi = dict(pod="", namespace="", container=name[:12])
                until(lambda: contexts(agent, **by_cdi)[0] >= 64, agent.log)
                asked, known, is_believed = contexts(agent, **by_cdi)
                assert known > 0.9 * asked and is_believed, (asked, known, agent.log())
                until(
                    lambda: f'container "{name[:12]}": libmayfly_heap.so in place' in agent.log(), agent.log
                )
                there = agent.metrics()["mayfly_node_containers"]
            until(lambda: agent.metrics()["mayfly_node_containers"] == there - 1, agent.log)


def test_a_profile_has_workers_that_are_forked_later(containerd, pods):
    with scratch() as own, Agent(own, nri=containerd.nri) as agent:
        until(lambda: agent.metrics()["mayfly_node_connected"] == 1, agent.log)
        pods("forks", "shop", "glibc", "/bin/forks", profile="10")
        until(lambda: agent.metrics()['mayfly_node_profiles_total{outcome="kept"}'] == 1, agent.log)
        [profile] = (own / "data/profiles").rglob("*.pb.gz")
        names = gzip.decompress(profile.read_bytes())
        found = {name for name in (b"parent_allocates", b"worker_allocates") if name in names}
        assert len(found) == 2, f"{found} {re.findall(rb'[a-z_/.0-9A-Z]{4,}', names)} {agent.log()}"


def test_a_program_without_the_heap_gets_no_profile_and_runs_on(containerd, pods):
    with scratch() as own, Agent(own, nri=containerd.nri) as agent:
        until(lambda: agent.metrics()["mayfly_node_connected"] == 1, agent.log)
        pods("static", "shop", "musl", "/bin/pages-static", "4", "1", "600", profile="1")
        until(lambda: agent.metrics()['mayfly_node_profiles_total{outcome="failed"}'] == 1, agent.log)
        [line] = [line for line in agent.log().splitlines() if "static.main: no profile: " in line]
        assert "statically linked" in line, line
        assert not list((own / "data/profiles").rglob("*.parquet"))
