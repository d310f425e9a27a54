"""Profiles in a bucket whose server does not listen, hangs, refuses, has no such bucket, or no room.
In each case pods start and no profile is lost; `mayfly train` reads the bucket."""

import contextlib
import os
import pathlib

import pytest
from bucket_server import BucketServer, program
from go_programs import Missing

from node import ROOT, Agent, run, scratch, until

KEPT = 'mayfly_node_profiles_total{outcome="kept"}'
WAITING = "mayfly_node_profiles_waiting"
PLACE = "s3://profiles/fleet"


@pytest.fixture(scope="module")
def built_server():
    try:
        return program()
    except Missing as why:
        pytest.skip(str(why))


@pytest.fixture
def server(built_server):
    """A server with its buckets on a small file system of their own."""
    with scratch() as folder:
        buckets = folder / "buckets"
        buckets.mkdir()
        run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", buckets)
        try:
            yield BucketServer(built_server, buckets)
        finally:
            run("umount", "--lazy", buckets)


@contextlib.contextmanager
def agent_of(server, containerd, folder):
    with Agent(folder, "--profiles", PLACE, nri=containerd.nri, environment=server.environment) as agent:
        connected(agent)
        yield agent


def connected(agent):
    until(lambda: agent.metrics()["mayfly_node_connected"] == 1, agent.log)


def profiled(agent, pods, name):
    """Starts a pod, which runs on, and waits for its profile to be taken; that then waits or is kept."""
    before = agent.metrics()
    labels = {"app.kubernetes.io/name": "web", "app.kubernetes.io/version": "1"}
    pods(name, "shop", "glibc", "/bin/contexts-1", labels=labels, profile="2")

    def is_taken():
        now = agent.metrics()
        return now[KEPT] + now[WAITING] > before[KEPT] + before[WAITING]

    until(is_taken, agent.log)


def files(server):
    folder = server.folder / "root/profiles/fleet/namespace=shop/workload=web/version=1"
    return sorted(path.name.split(".", 4)[-1] for path in folder.glob("*")) if folder.exists() else []


def test_a_profile_waits_until_the_bucket_takes_it_and_training_reads_it(server, containerd, pods, tmp_path):
    with scratch() as own, agent_of(server, containerd, own) as agent:
        # No server listens. The agent is killed meanwhile.
        profiled(agent, pods, "web-1")
        until(lambda: "1 profiles wait" in agent.log(), agent.log)
        agent.kill()
        agent.start()
        connected(agent)
        assert agent.metrics()[WAITING] == 1

        with server.running(secret="another"):
            until(lambda: "SignatureDoesNotMatch" in agent.log(), agent.log)
        with server.running():
            until(lambda: "NoSuchBucket" in agent.log(), agent.log)
            assert agent.metrics()[KEPT] == 0
            (server.folder / "root/profiles").mkdir()
            until(lambda: agent.metrics()[KEPT] == 1, agent.log)
            assert agent.metrics()[WAITING] == 0
            assert files(server) == ["parquet", "pb.gz", "symbols.parquet"]
            assert not list((own / "data/outbox").rglob("*.parquet"))

            model = tmp_path / "web.mayfly-model"
            where = "namespace = 'shop' AND workload = 'web' AND version = '1'"
            environment = os.environ | server.environment
            run(ROOT / "train/run", PLACE, "--where", where, "-o", model, timeout=900, env=environment)
            assert model.stat().st_size > 1000


def test_a_hanging_server_delays_no_pod(server, containerd, pods):
    with scratch() as own, agent_of(server, containerd, own) as agent:
        with server.hanging() as accepted:
            profiled(agent, pods, "web-2")
            until(accepted, agent.log)
            # While the agent waits for a response.
            assert agent.is_healthy()
            given = agent.metrics()['mayfly_node_given_total{what="heap"}']
            pods("other", "shop", "glibc", "/bin/contexts-1", heap="online")
            assert agent.metrics()['mayfly_node_given_total{what="heap"}'] == given + 1
            until(lambda: "1 profiles wait" in agent.log(), agent.log, 180)
        with server.running():
            (server.folder / "root/profiles").mkdir()
            until(lambda: agent.metrics()[KEPT] == 1, agent.log)


def test_a_full_bucket_gets_the_profile_when_there_is_room(server, containerd, pods):
    with scratch() as own, server.running(), agent_of(server, containerd, own) as agent:
        (server.folder / "root/profiles").mkdir()
        hog = server.folder / "hog"
        with contextlib.suppress(OSError), open(hog, "wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass
        profiled(agent, pods, "web-3")
        until(lambda: "1 profiles wait" in agent.log(), agent.log)
        assert agent.metrics()[KEPT] == 0 and "parquet" not in files(server)
        hog.unlink()
        until(lambda: agent.metrics()[KEPT] == 1, agent.log)
        assert files(server) == ["parquet", "pb.gz", "symbols.parquet"]


def test_uploads_a_former_agents_profiles_and_large_files_in_parts(server):
    with scratch() as own, server.running():
        (server.folder / "root/profiles").mkdir()
        key = "namespace=shop/workload=web/version=1/web-4.main.1.1"
        contents = {"symbols.parquet": 20 << 20, "pb.gz": 8 << 20, "parquet": 1000}
        contents = {suffix: os.urandom(size) for suffix, size in contents.items()}
        for suffix, content in contents.items():
            file = pathlib.Path(f"{own}/data/outbox/{key}.{suffix}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        with Agent(own, "--profiles", PLACE, environment=server.environment) as agent:
            until(lambda: agent.metrics()[KEPT] == 1, agent.log)
        for suffix, content in contents.items():
            kept = pathlib.Path(f"{server.folder}/root/profiles/fleet/{key}.{suffix}")
            assert kept.read_bytes() == content, suffix


def test_invalid_storage_is_refused_in_one_line(tmp_path):
    for place, wanted in (("gs://bucket", "s3://BUCKET/PREFIX"), ("s3://", "no name of a bucket")):
        agent = Agent(tmp_path, "--profiles", place)
        with pytest.raises(AssertionError):
            agent.start()
        assert agent.process.wait(30) != 0
        line = agent.log().strip().splitlines()[-1]
        assert place in line and wanted in line, agent.log()
