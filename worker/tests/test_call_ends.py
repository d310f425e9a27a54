"""Why a call ended or an instance did not start, in the function's log, in Lambda's words."""

import base64
import json
import re

import pytest
from calls import create, zipped

APP = """
import os, sys, time

if os.environ.get("START") == "exit":
    os._exit(4)
if os.environ.get("START") == "import":
    import a_package_that_does_not_exist
if os.environ.get("START") == "sleep":
    time.sleep(1000)

def handler(event, context):
    print("printed")
    if event == "sleep":
        time.sleep(1000)
    if event == "exit":
        os._exit(3)
    if event == "raise":
        raise ValueError("as asked")
    return "x" * 7_000_000 if event == "large" else None
"""
FIGURES = r"Duration: [\d.]+ ms\tBilled Duration: \d+ ms\tMemory Size: 128 MB\tMax Memory Used: \d+ MB\t"


@pytest.fixture(scope="module")
def log_of(running):
    """Calls a new function, and returns the end of the log with the request's id as ID."""
    client = running.client()

    def of(event, start=""):
        create(client, "ends", zipped(app_py=APP), Timeout=1, Environment={"Variables": {"START": start}})
        answer = client.invoke(FunctionName="ends", Payload=json.dumps(event), LogType="Tail")
        client.delete_function(FunctionName="ends")
        log = base64.b64decode(answer["LogResult"]).decode()
        return log.replace(answer["ResponseMetadata"]["RequestId"], "ID")

    return of


def ending(lines, status):
    init = r"(Init Duration: [\d.]+ ms\t)?"
    return re.compile(rf"{lines}END RequestId: ID\nREPORT RequestId: ID\t{FIGURES}{init}{status}\n\Z")


@pytest.mark.parametrize(
    ("event", "lines", "status"),
    [
        ("sleep", r"printed\n\S+Z ID Task timed out after 1.00 seconds\n\n", r"Status: timeout\t"),
        (
            "exit",
            r"printed\nRequestId: ID Error: Runtime exited with error: exit status 3\nRuntime.ExitError\n",
            r"Status: error\tError Type: Runtime.ExitError\t",
        ),
        (
            "large",
            r"RequestId: ID Response payload size .*\nFunction.ResponseSizeTooLarge\n",
            r"Status: error\tError Type: Function.ResponseSizeTooLarge\t",
        ),
        ("raise", "", ""),
        ("nothing", r"START RequestId: ID Version: \$LATEST\nprinted\n", ""),
    ],
)
def test_log_names_why_the_call_ended(log_of, event, lines, status):
    log = log_of(event)
    assert ending(lines, status).search(log), log


@pytest.mark.parametrize(
    ("start", "lines", "status"),
    [
        (
            "exit",
            "RequestId: ID Error: Runtime exited with error: exit status 4\nRuntime.ExitError\n",
            r"Status: error\tError Type: Runtime.ExitError\t",
        ),
        ("import", "", r"Status: error\tError Type: Runtime.ImportModuleError\t"),
        ("sleep", r"\S+Z ID Task timed out after 10.00 seconds\n\n", r"Status: timeout\t"),
    ],
)
def test_log_reports_failed_starts(log_of, start, lines, status):
    log = log_of("nothing", start)
    init = rf"INIT_REPORT Init Duration: [\d.]+ ms\tPhase: init\t{status}\n"
    assert ending(rf"{init}START RequestId: ID Version: \$LATEST\n{lines}", status).search(log), log


UNENDED = """
import os

os.write(1, b"of the start")
if os.environ.get("FAILS"):
    os._exit(4)

def handler(event, context):
    os.write(1, b"first\\nsecond, ")
    os.write(2, event.encode())
    if event == "exit":
        os._exit(3)
"""


def test_line_without_its_end_stays_in_its_invocation(running):
    client = running.client()
    create(client, "unended", zipped(app_py=UNENDED))
    tails = []
    for event in ["one", "two", "exit"]:
        answer = client.invoke(FunctionName="unended", Payload=json.dumps(event), LogType="Tail")
        tails.append(base64.b64decode(answer["LogResult"]).decode().splitlines())
    logged = [line.split(" ", 2)[2] for line in running.get("/log?function=unended").splitlines()]
    assert logged == ["of the start", *(line for tail in tails for line in tail)]
    for tail, event in zip(tails, ["one", "two", "exit"], strict=True):
        assert [tail[0].split()[0], *tail[1:3]] == ["START", "first", f"second, {event}"], tail
    assert [line.split()[0] for line in tails[0][3:]] == ["END", "REPORT"], tails
    assert tails[2][3].endswith("Runtime exited with error: exit status 3"), tails
    create(client, "unended-start", zipped(app_py=UNENDED), Environment={"Variables": {"FAILS": "1"}})
    client.invoke(FunctionName="unended-start")
    logged = [line.split(" ", 2)[2] for line in running.get("/log?function=unended-start").splitlines()]
    assert logged[0] == "of the start" and logged[1].startswith("INIT_REPORT"), logged
