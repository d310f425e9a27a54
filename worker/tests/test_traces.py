"""Traces by OpenTelemetry, as a collector receives them."""

import contextlib
import http.server
import json
import threading
import urllib.request

import pytest
from calls import create, invoke, zipped
from conftest import Worker

CODE = zipped(
    app_py="""
import os
def handler(event, context):
    if event == "fail":
        raise ValueError("as asked")
    return os.environ["_X_AMZN_TRACE_ID"]
"""
)
TRACE, PARENT = "5759e988bd862e3fe1be46a994272793", "53995c3f42cd8ad8"


@contextlib.contextmanager
def collector():
    """A server that speaks OTLP over HTTP, and its received spans."""
    received = []

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
            received.extend(body["resourceSpans"])
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()


def spans(received):
    found = [span for resource in received for scope in resource["scopeSpans"] for span in scope["spans"]]
    return sorted(found, key=lambda span: int(span["startTimeUnixNano"]))


def attributes(of):
    return {one["key"]: next(iter(one["value"].values())) for one in of["attributes"]}


def test_invocation_span_links_caller_and_function():
    with collector() as (endpoint, received):
        with Worker(environment={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}) as running:
            client = running.client()
            create(client, "traced", CODE, Publish=True)
            own, error = invoke(client, "traced")
            assert error is None
            path = f"{running.url}/2015-03-31/functions/traced/invocations"
            seen = []
            for headers in [
                {"X-Amzn-Trace-Id": f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent={PARENT};Sampled=1"},
                {"traceparent": f"00-{TRACE}-{PARENT}-01"},
                {"X-Amzn-Trace-Id": f"Root=1-{TRACE[:8]}-{TRACE[8:]}"},
                {"traceparent": f"00-{TRACE}-{PARENT}-00"},
            ]:
                request = urllib.request.Request(f"{path}?Qualifier=1", b"1", headers)
                with urllib.request.urlopen(request) as answer:
                    seen.append(json.load(answer))
            assert invoke(client, "traced", "fail")[1] == "Unhandled"
            assert running.stop() == 0, "the worker sends pending spans before it exits"
        first, aws, w3c, named, failed = spans(received)
        assert attributes(received[0]["resource"])["service.name"] == "mayfly-worker"
        for span, text in [(first, own), (aws, seen[0]), (w3c, seen[1]), (named, seen[2])]:
            trace, id = span["traceId"].lower(), span["spanId"].lower()
            assert text == f"Root=1-{trace[:8]}-{trace[8:]};Parent={id};Sampled=1"
            assert span["name"] == "traced" and span["kind"] in (2, "SPAN_KIND_SERVER")
            assert int(span["endTimeUnixNano"]) > int(span["startTimeUnixNano"])
            assert [event["name"] for event in span["events"]] == ["handed to an instance"]
        for span in aws, w3c:
            assert (span["traceId"].lower(), span["parentSpanId"].lower()) == (TRACE, PARENT)
        assert named["traceId"].lower() == TRACE and not named.get("parentSpanId")
        assert seen[3].endswith("Sampled=0"), "a caller's Sampled=0 holds"
        assert [attributes(span)["faas.coldstart"] for span in (first, aws, w3c)] == [True, True, False]
        assert [attributes(span)["faas.version"] for span in (first, aws)] == ["$LATEST", "1"]
        assert "as asked" in failed["status"]["message"] and failed["status"]["code"] in (
            2,
            "STATUS_CODE_ERROR",
        )


def test_unreachable_collector_delays_no_request():
    with Worker(environment={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}) as running:
        client = running.client()
        create(client, "traced", CODE)
        for _ in range(50):
            assert invoke(client, "traced")[1] is None


def test_https_endpoint_is_refused():
    with pytest.raises(AssertionError, match="only http:// is supported"):
        Worker(environment={"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector.example"})
