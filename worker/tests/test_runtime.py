"""The Runtime API, as awslambdaric and a custom runtime use it."""

import base64
import json
import re
import time

from calls import create, invoke, zipped

STARTED = """
import os, sys

early = sorted({"ctypes", "gc", "mayfly_bootstrap.rest", "socket"} & sys.modules.keys())
compiled = os.path.exists(sys.modules["__main__"].__spec__.cached)

def handler(event, context):
    return {"early": early, "compiled": compiled}
"""


LONG = """
calls = 0

def handler(event, context):
    global calls
    calls += 1
    raise ValueError("y" * event + str(calls))
"""


def test_function_receives_its_context(client):
    context = base64.b64encode(json.dumps({"custom": {"k": "é"}}).encode()).decode()
    answer, error = invoke(client, "probe", {"do": "echo"}, ClientContext=context)
    assert error is None, answer
    assert (answer["name"], answer["memory"], answer["custom"]) == ("probe", "128", {"k": "é"})
    assert answer["arn"].endswith(":function:probe") and 0 < answer["left_ms"] <= 5000
    environment = answer["environment"]
    assert environment["GREETING"] == "hello world"
    assert environment["AWS_LAMBDA_FUNCTION_NAME"] == "probe" and environment["_HANDLER"] == "app.handler"
    trace = r"Root=1-[0-9a-f]{8}-[0-9a-f]{24};Parent=[0-9a-f]{16};Sampled=0"
    assert re.fullmatch(trace, environment["_X_AMZN_TRACE_ID"])
    assert environment["LD_PRELOAD"].endswith("libmayfly_heap.so")


def test_start_neither_compiles_nor_imports_for_a_rest(client):
    create(client, "started", zipped(app_py=STARTED))
    assert invoke(client, "started", {}) == ({"early": [], "compiled": True}, None)
    client.delete_function(FunctionName="started")


def test_failures_are_reported_as_on_lambda(client):
    answer, error = invoke(client, "probe", {"do": "fail"})
    assert (error, answer["errorType"], answer["errorMessage"]) == ("Unhandled", "ValueError", "as asked")
    assert "stackTrace" in answer
    answer, error = invoke(client, "probe", {"do": "leave", "code": 3})
    assert error == "Unhandled" and answer["errorType"] == "Runtime.ExitError"
    assert answer["errorMessage"].endswith("Error: Runtime exited with error: exit status 3")
    answer, error = invoke(client, "probe", {"do": "leave", "code": 0})
    assert answer["errorMessage"].endswith("Error: Runtime exited without providing a reason")
    answer, error = invoke(client, "probe", {"do": "die", "signal": 9})
    assert answer["errorMessage"].endswith("Error: Runtime exited with error: signal: killed")


def test_failed_start_reports_its_reason_and_is_retried(client):
    for _ in range(2):
        answer, error = invoke(client, "unready")
        assert (error, answer["errorType"]) == ("Unhandled", "Runtime.ImportModuleError")
        assert "a_package_that_does_not_exist" in answer["errorMessage"]
        answer, error = invoke(client, "exits")
        assert (error, answer["errorType"]) == ("Unhandled", "Runtime.ExitError")


def test_function_ends_at_its_timeout(client):
    client.update_function_configuration(FunctionName="neighbour", Timeout=3)
    began = time.monotonic()
    answer, error = invoke(client, "neighbour", {"do": "sleep", "seconds": 30})
    assert (error, answer["errorType"]) == ("Unhandled", "Sandbox.Timedout")
    assert answer["errorMessage"].endswith("Error: Task timed out after 3.00 seconds")
    assert 3 <= time.monotonic() - began < 20
    assert invoke(client, "neighbour", {"do": "sleep", "seconds": 0}) == ("slept", None)
    client.update_function_configuration(FunctionName="neighbour", Timeout=5)


def test_answer_size_is_limited(client):
    most = 6 * 1024 * 1024 + 100 - len('""')
    answer, error = invoke(client, "probe", {"do": "large", "bytes": most})
    assert error is None and len(answer) == most
    answer, error = invoke(client, "probe", {"do": "large", "bytes": most + 1})
    assert (error, answer["errorType"]) == ("Unhandled", "Function.ResponseSizeTooLarge")


def test_long_errors_keep_their_type_text_and_instance(client):
    """Lambda's client in Python repeats a description of up to 1 MiB in a header."""
    create(client, "long", zipped(app_py=LONG))
    for calls, length in enumerate([60_000, 70_000, 300_000, 1_000_000, 1_200_000], 1):
        answer, error = invoke(client, "long", length)
        assert (error, answer["errorType"]) == ("Unhandled", "ValueError"), str(answer)[:500]
        assert answer["errorMessage"] == "y" * length + str(calls), "the same instance"
    client.delete_function(FunctionName="long")


def test_idle_instance_is_reused(client):
    first, _ = invoke(client, "single", {"do": "count"})
    second, _ = invoke(client, "single", {"do": "count"})
    assert (second["pid"], second["calls"]) == (first["pid"], first["calls"] + 1)


def test_runtime_reconnects_after_its_connection_closes(client):
    """The worker closes a connection that is idle for half a minute, as in a long request."""
    before, _ = invoke(client, "single", {"do": "count"})
    ended, error = invoke(client, "single", {"do": "hang_up"})
    assert error is None and ended > 0
    after, error = invoke(client, "single", {"do": "count"})
    assert error is None and after["pid"] == before["pid"]


def test_runtime_calls_out_of_order_are_refused(client):
    answer, error = invoke(client, "raw", {})
    assert error is None, answer
    assert answer["early"] == {"response": [403, "InvalidStateTransition"], "unknown": [404, "UnknownPath"]}
    state = [403, "InvalidStateTransition"]
    assert answer["late"] == {"next": state, "init": state, "other": [400, "InvalidRequestID"]}
    headers = answer["headers"]
    assert headers["lambda-runtime-invoked-function-arn"].endswith(":function:raw")
    assert 0 < int(headers["lambda-runtime-deadline-ms"]) - time.time() * 1000 <= 60_000
    assert "lambda-runtime-client-context" not in headers


def test_custom_runtime_reports_its_own_errors(client):
    assert invoke(client, "raw", "error") == ({"errorType": "Own", "errorMessage": "mine"}, "Unhandled")
    assert invoke(client, "raw", "unnamed error") == ({"errorType": "Own.Kind"}, "Unhandled")
    answer, error = invoke(client, "raw", "too large")
    assert (error, answer["errorType"]) == ("Unhandled", "Function.ResponseSizeTooLarge")
    answer, error = invoke(client, "raw", "cut")
    assert error is None and "late" in answer, "half an answer is none"
