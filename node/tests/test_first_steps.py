"""docs/node-first-steps.md, command by command."""

import json
import os
import pathlib
import re

import pytest
from podman4 import CDI, LIMITS

from node import BIN, ROOT, Agent, run, scratch, shared, until

PAGE = (ROOT / "docs/node-first-steps.md").read_text()
PORT = "127.0.0.1:9117"


def block(kind, mark):
    """The block of the page that begins with ```KIND MARK."""
    [found] = re.findall(rf"^```{kind} {mark}\n(.*?)^```$", PAGE, re.M | re.S)
    return found


@pytest.fixture(scope="module")
def shell(podman, agent):
    """Runs a block of the page: `podman` gets the tests' storage and limits, the agent another port."""
    with scratch() as folder:
        options = " ".join(str(word) for word in podman.command[1:])
        limits = " ".join(["--network", "none", *LIMITS])
        (folder / "podman").write_text(
            f'#!/bin/sh\nverb=$1; shift\n[ $verb = run ] && set -- {limits} "$@"\n'
            f'exec /usr/bin/podman {options} $verb "$@"\n'
        )
        (folder / "podman").chmod(0o755)
        environment = os.environ | {"PATH": f"{folder}:{BIN}:{os.environ['PATH']}"}

        def shell(mark):
            text = block("sh", mark).replace(PORT, agent.address)
            return run("bash", "-euo", "pipefail", "-c", text, env=environment)

        yield shell


@pytest.fixture(scope="module")
def agent(podman):
    if list(CDI.glob("mayfly.dev-*.json")):
        pytest.skip(f"an agent has its devices in {CDI}")
    words = block("sh", "agent").split()
    assert words[:2] == ["mayfly", "node"]
    with scratch() as folder:
        try:
            with Agent(folder, *words[2:], cdi=CDI) as agent:
                yield agent
        finally:
            for file in CDI.glob("mayfly.dev-*.json"):
                file.unlink()


def pss_mib(text):
    return [int(kib) / 1024 for kib in re.findall(r"^Pss: +(\d+) kB$", text, re.M)]


def test_containers_of_podman(podman, agent, shell):
    assert shell("healthy") == "ok\n"
    try:
        shell("plain")
        shell("shared")

        def is_half():
            plain, less = pss_mib(shell("look"))
            return plain > 64 and less < 0.6 * plain

        until(is_half, lambda: f"{shell('look')} {agent.log()}")
        assert 'mayfly_share_clients{domain="device web"' in shell("metrics")
    finally:
        podman.end("plain-1", "plain-2", "shared-1", "shared-2")


def test_a_pod(containerd, pods):
    text = block("yaml", "pod")
    annotations = dict(re.findall(r"^    mayfly\.dev/(\w+): (\w+)$", text, re.M))
    command = json.loads(re.search(r"command: (\[.*\])", text)[1])
    image = re.search(r"image: localhost/(\w+):1", text)[1]
    assert annotations == {"heap": "online", "share": "namespace"}
    with scratch() as folder, Agent(folder, nri=containerd.nri) as agent:
        until(lambda: agent.metrics()["mayfly_node_connected"] == 1, agent.log)
        plain = pods("plain", "default", image, *command)
        both = [pods(name, "default", image, *command, **annotations) for name in ("one", "two")]

        def rollup(process):
            return pss_mib(pathlib.Path(f"/proc/{process}/smaps_rollup").read_text())[0]

        until(
            lambda: all(rollup(process) < 0.6 * rollup(plain) for process in both),
            lambda: f"{[(rollup(p), shared(p)) for p in (plain, *both)]} {agent.log()}",
        )


def test_every_block_of_the_page_is_run_by_a_test():
    marks = set(re.findall(r"^```(?:sh|yaml) (\w+)$", PAGE, re.M))
    assert marks == {"agent", "healthy", "plain", "shared", "look", "pod", "metrics"}
