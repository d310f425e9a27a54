"""PageOutAfter: the worker pages idle instances out to the host's swap, and a request restores them
unchanged."""

import os

import pytest
from calls import PYTHON, invoke, open_folder, until
from conftest import Worker
from zram import compressed_swap, missing

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="paging out needs root")
APP = """
import hashlib
# 40 MB, alike within a page.
HELD = b"".join(hashlib.sha256(str(i).encode()).digest() * 128 for i in range(10_000))
def handler(event, context):
    return hashlib.sha256(HELD).hexdigest()
"""
TEMPLATE = """
Globals:
  Function: { CodeUri: code, Handler: app.handler, Runtime: python3.11, MemorySize: 256, Timeout: 60 }
Resources:
  Paged:
    Type: AWS::Serverless::Function
    Metadata: { Mayfly: { PageOutAfter: 1 } }
    Properties: {}
  Resident: { Type: AWS::Serverless::Function, Properties: {} }
""".replace("python3.11", PYTHON)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    place = open_folder(tmp_path_factory, "swap")
    (place / "code").mkdir()
    (place / "code/app.py").write_text(APP)
    (place / "template.yaml").write_text(TEMPLATE)
    return str(place / "template.yaml")


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_idle_instance_is_paged_out_and_restored(template):
    with compressed_swap(), Worker(template, "--without", "heap,merge") as worker:
        client = worker.client()
        before = {name: invoke(client, name) for name in ("Paged", "Resident")}
        event = until(lambda: worker.events("page_out"), worker.state)[0]
        assert event["function"] == "Paged" and event["bytes"] > 38 << 20, event

        def is_out():
            private = {
                name: function["private_bytes"] for name, function in worker.sample()["functions"].items()
            }
            return private["Paged"] < 8 << 20 and private["Resident"] > 38 << 20

        until(is_out, worker.state)
        assert {name: invoke(client, name) for name in before} == before
        assert before["Paged"][1] is None, before
        # Idle again, and paged out again; the other never is.
        until(lambda: len(worker.events("page_out")) >= 2, worker.state)
        assert {event["function"] for event in worker.events("page_out")} == {"Paged"}


def test_page_out_without_swap_is_reported(template):
    with open("/proc/swaps") as swaps:
        if len(swaps.readlines()) > 1:
            pytest.skip("this host has swap")
    with Worker(template, "--without", "heap,merge") as worker:
        client = worker.client()
        before = invoke(client, "Paged")
        event = until(lambda: worker.events("page_out"), worker.state)[0]
        assert event["bytes"] == 0 and "has this host swap?" in event["message"]
        assert invoke(client, "Paged") == before
