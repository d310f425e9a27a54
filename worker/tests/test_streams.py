"""Answers that stream while the function writes them: InvokeWithResponseStream, and streaming URLs."""

import base64
import http.client
import json
import os
import pathlib
import threading
import time
import urllib.parse

import pytest
from botocore.exceptions import ClientError
from calls import create, invoke, zipped
from test_nodejs import RUNTIME, version

needs_node = pytest.mark.skipif(version() not in ("20", "22", "24"), reason="this host has no such Node.js")


def streamed(client, name, payload, **arguments):
    """The parts with their arrival times, and the last message."""
    answer = client.invoke_with_response_stream(FunctionName=name, Payload=json.dumps(payload), **arguments)
    parts, end = [], None
    for event in answer["EventStream"]:
        if "PayloadChunk" in event:
            parts.append((time.monotonic(), event["PayloadChunk"]["Payload"]))
        else:
            end = event["InvokeComplete"]
    return parts, end


# The most bytes of a streamed answer.
LIMIT = 200 << 20


def joined(parts):
    return b"".join(part for _, part in parts)


def test_streams_parts_as_the_function_writes_them(client):
    parts, end = streamed(client, "raw", "stream slowly", LogType="Tail")
    assert joined(parts) == b"onetwothree"
    # It waits 1 s after each.
    assert len(parts) == 3 and parts[2][0] - parts[0][0] > 0.3, parts
    assert "ErrorCode" not in end and "END RequestId" in base64.b64decode(end["LogResult"]).decode()


def test_plain_invoke_returns_the_whole_stream(client):
    answer = client.invoke(FunctionName="raw", Payload=json.dumps("stream"))
    assert answer["Payload"].read() == b"onetwothree" and "FunctionError" not in answer
    answer, error = invoke(client, "raw", "stream error")
    assert (answer["errorType"], error) == ("Own", "Unhandled")


def test_buffered_answer_is_one_stream_part(client):
    parts, end = streamed(client, "probe", {"do": "count"})
    assert json.loads(joined(parts))["calls"] >= 1 and end == {}
    parts, end = streamed(client, "probe", {"do": "fail"})
    assert parts == [] and end["ErrorCode"] == "ValueError" and "as asked" in end["ErrorDetails"]


@pytest.mark.parametrize(
    "event, code",
    [
        ("stream error", "Own"),
        ("stream cut", "Runtime.TruncatedResponse"),
        ("stream much", "Function.ResponseSizeTooLarge"),
    ],
)
def test_mid_stream_error_is_reported_in_the_last_event(client, event, code):
    parts, end = streamed(client, "raw", event)
    assert joined(parts)[:11] == b"onetwothree"
    assert (len(joined(parts)) == LIMIT) == (event == "stream much"), "up to the limit all of it arrives"
    assert end["ErrorCode"] == code, end
    # Some of these close the connection, and the instance ends; the next one serves.
    assert joined(streamed(client, "raw", "stream")[0]) == b"onetwothree"


class Resident:
    """The most memory that a process has while this is entered, beyond what it had before."""

    def __init__(self, process):
        self.process, self.over, self.most = process, threading.Event(), 0

    def bytes(self):
        pages = pathlib.Path(f"/proc/{self.process}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def __enter__(self):
        self.before = self.bytes()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.over.wait(0.01):
            self.most = max(self.most, self.bytes() - self.before)

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def test_whole_200_mib_are_streamed_and_never_held(client, worker):
    with Resident(worker.process.pid) as resident:
        answer = client.invoke_with_response_stream(FunctionName="raw", Payload='"stream full"')
        count = 0
        for event in answer["EventStream"]:
            if not count:
                time.sleep(2)  # a slow reader: the function would be far ahead by now
            count += len(event.get("PayloadChunk", {}).get("Payload", b""))
        assert (count, event) == (LIMIT, {"InvokeComplete": {}})
        url = client.create_function_url_config(
            FunctionName="raw", AuthType="NONE", InvokeMode="RESPONSE_STREAM"
        )
        try:
            body = requested(url["FunctionUrl"], "/stream-full")
            time.sleep(2)
            assert sum(len(part) for part in iter(lambda: body.read(1 << 16), b"")) == LIMIT
            body = requested(url["FunctionUrl"], "/stream-much")
            assert len(body.read(LIMIT)) == LIMIT
            with pytest.raises(http.client.IncompleteRead):
                body.read()
        finally:
            client.delete_function_url_config(FunctionName="raw")
    assert resident.most < 48 << 20, f"{resident.most >> 20} MiB"


def test_errors_before_the_first_part_fail_the_call(client):
    with pytest.raises(ClientError, match="ResourceNotFound"):
        streamed(client, "missing", 1)
    with pytest.raises(ClientError, match="InvocationType"):
        streamed(client, "raw", 1, InvocationType="Event")


def test_caller_disconnect_leaves_the_function_usable(client):
    answer = client.invoke_with_response_stream(FunctionName="raw", Payload=json.dumps("stream much"))
    next(iter(answer["EventStream"]))
    answer["EventStream"].close()
    assert joined(streamed(client, "raw", "stream")[0]) == b"onetwothree"


def requested(url, path):
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    connection.request("GET", place.path.rstrip("/") + path)
    return connection.getresponse()


def fetched(url, path="/"):
    """Status, headers, and the body's parts with their arrival times; errors are raised."""
    answer = requested(url, path)
    parts = []
    while part := answer.read1(1 << 16):
        parts.append((time.monotonic(), part))
    return answer.status, dict(answer.getheaders()), parts


STREAMS = """
import { setTimeout as sleep } from 'node:timers/promises';
import { pipeline } from 'node:stream/promises';
import { Readable } from 'node:stream';
export const handler = awslambda.streamifyResponse(async (event, response, context) => {
  const path = event.rawPath ?? event.path;
  if (path === '/early') throw new TypeError('before');
  if (path === '/page') {
    response = awslambda.HttpResponseStream.from(response, {
      statusCode: 201, headers: { 'Content-Type': 'text/html', 'X-Own': 'yes' }, cookies: ['a=1', 'b=2'] });
  } else response.setContentType('text/plain');
  response.write('one');
  await sleep(1500);
  if (path === '/late') throw new TypeError('after');
  if (path === '/pipe') return pipeline(Readable.from(['two', 'three']), response);
  response.write('two');
  response.end('three');
});
"""


@pytest.fixture(scope="module")
def streaming(running):
    if version() not in ("20", "22", "24"):
        pytest.skip("this host has no such Node.js")
    client = running.client()
    settings = {"Runtime": RUNTIME, "Handler": "index.handler", "MemorySize": 256, "Timeout": 20}
    create(client, "streams", zipped(**{"index.mjs": STREAMS}), **settings)
    url = client.create_function_url_config(
        FunctionName="streams", AuthType="NONE", InvokeMode="RESPONSE_STREAM"
    )
    assert url["InvokeMode"] == "RESPONSE_STREAM"
    return client, url["FunctionUrl"]


@needs_node
@pytest.mark.parametrize("path", ["/", "/pipe"])
def test_nodejs_function_streams(streaming, path):
    parts, end = streamed(streaming[0], "streams", {"path": path})
    assert joined(parts) == b"onetwothree" and end == {}
    assert parts[-1][0] - parts[0][0] > 0.2, parts


@needs_node
def test_nodejs_stream_errors(streaming):
    parts, end = streamed(streaming[0], "streams", {"path": "/early"})
    assert (parts, end["ErrorCode"]) == ([], "TypeError")
    parts, end = streamed(streaming[0], "streams", {"path": "/late"})
    assert (joined(parts), end["ErrorCode"]) == (b"one", "TypeError") and "after" in end["ErrorDetails"]


@needs_node
def test_function_url_streams_status_headers_and_cookies(streaming):
    client, url = streaming
    status, headers, parts = fetched(url, "/page")
    assert (status, headers["content-type"], headers["x-own"]) == (201, "text/html", "yes")
    assert joined(parts) == b"onetwothree" and parts[-1][0] - parts[0][0] > 0.2
    status, headers, parts = fetched(url)
    assert (status, headers["content-type"], joined(parts)) == (200, "text/plain", b"onetwothree")
    assert fetched(url, "/early")[0] == 502
    with pytest.raises(http.client.IncompleteRead):
        fetched(url, "/late")
    client.update_function_url_config(FunctionName="streams", InvokeMode="BUFFERED")
    assert client.get_function_url_config(FunctionName="streams")["InvokeMode"] == "BUFFERED"
    assert fetched(url, "/late")[0] == 502
