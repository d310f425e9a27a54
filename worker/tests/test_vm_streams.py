"""Streams of instances in a VM, which share one line to the host: a slow reader slows its function alone."""

import json
import subprocess
import time

import pytest
from calls import open_folder
from conftest import MAYFLY, Worker
from test_streams import joined, streamed
from test_vm import PATIENT, until

MIB = 1 << 20
# More than all sockets, queues and windows on the way hold.
MUCH = 64
BOOTSTRAP = """#!/usr/bin/python3
import http.client, json, os
MIB = 1 << 20
API = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
ROOT = "/2018-06-01/runtime/invocation"
HEADERS = {"Lambda-Runtime-Function-Response-Mode": "streaming", "Transfer-Encoding": "chunked"}

def parts(many):
    for number in range(many):
        API.send(b"%x\\r\\n%b\\r\\n" % (MIB, bytes([number]) * MIB))
    API.send(b"0\\r\\n\\r\\n")
    API.getresponse().read()

def file(bytes):
    # sendfile sends its pages, which lie in the instance's own memory, without a copy.
    with open("/tmp/file", "w+b") as file:
        file.write(b"f" * bytes)
        file.flush()
        API.send(b"%x\\r\\n" % (bytes * 100))
        for _ in range(100):
            at = 0
            while at < bytes:
                at += os.sendfile(API.sock.fileno(), file.fileno(), at, bytes - at)

while True:
    API.request("GET", ROOT + "/next")
    answer = API.getresponse()
    event = json.loads(answer.read())
    API.putrequest("POST", ROOT + "/" + answer.getheader("lambda-runtime-aws-request-id") + "/response")
    for name, value in HEADERS.items():
        API.putheader(name, value)
    API.endheaders()
    file(event["file"]) if "file" in event else parts(event["parts"])
"""
TEMPLATE = """
Globals: { Function: { CodeUri: code, Runtime: provided.al2023, Handler: none, MemorySize: 128 } }
Resources:
  Streams: { Type: AWS::Serverless::Function, Properties: { Timeout: 300 } }
  Neighbour: { Type: AWS::Serverless::Function, Properties: { Timeout: 30 } }
  Short: { Type: AWS::Serverless::Function, Properties: { Timeout: 10 } }
"""


@pytest.fixture(scope="module")
def vm(tmp_path_factory):
    subprocess.run([MAYFLY, "vm", "image"], check=True, stdout=subprocess.DEVNULL)
    folder = open_folder(tmp_path_factory, "streams")
    (folder / "code").mkdir()
    (folder / "code/bootstrap").write_text(BOOTSTRAP)
    (folder / "code/bootstrap").chmod(0o755)
    (folder / "template.yaml").write_text(TEMPLATE)
    plain = ["--without", "heap,merge", "--partitions", "3"]
    with Worker(str(folder / "template.yaml"), *PATIENT, *plain) as running:
        yield running
        assert running.stop() == 0


def whole(parts):
    return b"".join(bytes([number]) * MIB for number in range(parts))


def test_slow_reader_receives_all_and_delays_no_other(vm):
    client = vm.client()
    assert joined(streamed(client, "Neighbour", {"parts": 1})[0]) == whole(1)
    answer = client.invoke_with_response_stream(FunctionName="Streams", Payload=json.dumps({"parts": MUCH}))
    events = iter(answer["EventStream"])
    got = [next(events)["PayloadChunk"]["Payload"]]
    # The function writes until every buffer between it and the reader is full.
    time.sleep(8)
    for _ in range(3):
        assert joined(streamed(client, "Neighbour", {"parts": 1})[0]) == whole(1)
    for event in events:
        if "PayloadChunk" in event:
            got.append(event["PayloadChunk"]["Payload"])
        else:
            assert event == {"InvokeComplete": {}}, vm.log()
    assert b"".join(got) == whole(MUCH), (sum(map(len, got)), vm.log())
    # It is the same instance that serves next.
    assert joined(streamed(client, "Streams", {"parts": 1})[0]) == whole(1)
    assert len(vm.events("plug")) == 2, vm.log()


def test_unread_answer_keeps_no_partition(vm):
    client = vm.client()
    answer = client.invoke_with_response_stream(FunctionName="Short", Payload=json.dumps({"file": 4 * MIB}))
    next(iter(answer["EventStream"]))
    # It ends at its timeout, though the reader reads nothing more.
    until(lambda: [event for event in vm.events("unplug") if event["function"] == "Short"], vm.log)
    assert not vm.events("fail"), vm.events("fail")
    answer["EventStream"].close()
