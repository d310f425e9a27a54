"""`LoggingConfig`: logs in JSON, with levels, and their groups."""

import json

import pytest
from calls import PYTHON, create, invoke, zipped
from conftest import Worker
from test_nodejs import RUNTIME, version

has_node = version() in ("20", "22", "24")
needs_node = pytest.mark.skipif(not has_node, reason="this host has no such Node.js")

PYTHON_APP = """
import logging, os, time
logging.getLogger().debug("a debug line of the start")

def handler(event, context):
    for level in ["debug", "info", "warning"]:
        getattr(logging.getLogger(), level)("a %s line", level)
    print('{"level": "debug", "text": "printed debug"}')
    print("printed")
    if event.get("do") == "exit":
        os._exit(3)
    if event.get("do") == "raise":
        raise ValueError("no")
    time.sleep(event.get("seconds", 0))
    return [os.environ.get("AWS_LAMBDA_LOG_FORMAT"), os.environ.get("AWS_LAMBDA_LOG_LEVEL")]
"""
NODE_APP = """
exports.handler = async (event) => {
  console.debug("a debug line");
  console.log("two", { words: 1 });
  console.warn({ own: "object" });
  console.error("failed:", new TypeError("not so"));
  const circle = {};
  circle.circle = circle;
  console.info(circle);
  if (event.fails) throw new RangeError("no");
  return [process.env.AWS_LAMBDA_LOG_FORMAT, process.env.AWS_LAMBDA_LOG_LEVEL];
};
"""


def logging(format="JSON", **levels):
    return {"LogFormat": format, **levels}


def in_log(running, function):
    """The lines of a function's log: objects, or text."""

    def parsed(line):
        text = line.split(" ", 2)[2]
        return json.loads(text) if text.startswith("{") else text

    return [parsed(line) for line in running.get(f"/log?function={function}").splitlines()]


def platform(lines, kind):
    return [
        line["record"] for line in lines if isinstance(line, dict) and line.get("type") == f"platform.{kind}"
    ]


def kinds(lines):
    return [line["type"] for line in lines if isinstance(line, dict) and "type" in line]


def test_python_log_in_json_has_records_of_both_kinds(running):
    client = running.client()
    config = logging(ApplicationLogLevel="INFO", SystemLogLevel="DEBUG")
    create(client, "py-json", zipped(app_py=PYTHON_APP), LoggingConfig=config)
    assert invoke(client, "py-json", {}) == (["JSON", "INFO"], None)
    lines = in_log(running, "py-json")
    expected = [f"platform.{kind}" for kind in ("initStart", "initRuntimeDone", "initReport", "start")]
    assert kinds(lines) == [*expected, "platform.runtimeDone", "platform.report"], lines
    [start], [report] = platform(lines, "start"), platform(lines, "report")
    assert start["version"] == "$LATEST" and start["requestId"] == report["requestId"]
    assert report["status"] == "success" and report["metrics"]["memorySizeMB"] == 128, report
    assert report["metrics"]["billedDurationMs"] >= report["metrics"]["durationMs"] > 0, report
    assert report["metrics"]["initDurationMs"] > 0, report
    own = [line for line in lines if isinstance(line, dict) and "level" in line]
    assert [(line["level"], line["message"]) for line in own] == [
        ("INFO", "a info line"),
        ("WARNING", "a warning line"),
    ], lines
    assert all(line["requestId"] == start["requestId"] and line["timestamp"] for line in own)
    assert [line for line in lines if isinstance(line, str)] == ["printed"], (
        "what is below the level is not shown"
    )


def test_levels_filter_a_log(running):
    client = running.client()
    config = logging(ApplicationLogLevel="TRACE", SystemLogLevel="WARN")
    create(client, "quiet", zipped(app_py=PYTHON_APP), LoggingConfig=config, Timeout=2)
    assert invoke(client, "quiet", {})[1] is None
    assert kinds(in_log(running, "quiet")) == []
    assert {"level": "debug", "text": "printed debug"} in in_log(running, "quiet")
    client.update_function_configuration(FunctionName="quiet", LoggingConfig={"SystemLogLevel": "INFO"})
    assert invoke(client, "quiet", {})[1] is None
    assert kinds(in_log(running, "quiet")) == ["platform.start", "platform.report"]


def test_failed_calls_are_named_in_json(running):
    client = running.client()
    create(client, "failing", zipped(app_py=PYTHON_APP), LoggingConfig=logging(), Timeout=2)
    for event, status, kind in [
        ({"do": "raise"}, "error", "ValueError"),
        ({"do": "exit"}, "error", "Runtime.ExitError"),
        ({"seconds": 60}, "timeout", None),
    ]:
        assert invoke(client, "failing", event)[1] == "Unhandled"
        lines = in_log(running, "failing")
        report, done = platform(lines, "report")[-1], platform(lines, "runtimeDone")[-1]
        for record in report, done:
            assert (record["status"], record.get("errorType")) == (status, kind), record
    assert any("Task timed out after 2.00 seconds" in record for record in platform(lines, "fault")), lines
    assert not any("REPORT RequestId" in str(line) for line in lines)
    broken = zipped(app_py="raise KeyError('start')")
    create(client, "unstarted", broken, LoggingConfig=logging(SystemLogLevel="DEBUG"))
    assert invoke(client, "unstarted", {})[1] == "Unhandled"
    [report] = platform(in_log(running, "unstarted"), "initReport")
    assert report["status"] == "error" and report["errorType"], report


@needs_node
def test_nodejs_log_in_json(running):
    client = running.client()
    settings = {"Runtime": RUNTIME, "Handler": "app.handler"}
    config = logging(ApplicationLogLevel="INFO", SystemLogLevel="WARN")
    create(client, "js-json", zipped(**{"app.js": NODE_APP}), LoggingConfig=config, **settings)
    assert invoke(client, "js-json", {}) == (["JSON", "INFO"], None)
    two, own, failed, circle = in_log(running, "js-json")
    assert two["message"] == "two { words: 1 }" and two["level"] == "INFO" and two["timestamp"], two
    assert own["message"] == {"own": "object"} and own["level"] == "WARN", own
    assert (failed["errorType"], failed["errorMessage"]) == ("TypeError", "not so"), failed
    assert failed["stackTrace"][0] == "TypeError: not so" and failed["level"] == "ERROR", failed
    assert "circle" in circle["message"], circle
    assert len({line["requestId"] for line in (two, own, failed, circle)}) == 1
    invoke(client, "js-json", {"fails": True})
    errors = [line for line in in_log(running, "js-json") if line.get("level") == "ERROR"]
    assert errors[-1]["message"]["errorType"] == "RangeError", errors


def test_settings_read_back_and_wrong_ones_are_refused(running):
    client = running.client()
    code = zipped(app_py=PYTHON_APP)
    made = create(client, "settings", code)
    assert made["LoggingConfig"] == {"LogFormat": "Text", "LogGroup": "/aws/lambda/settings"}
    given = {
        "LogFormat": "JSON",
        "ApplicationLogLevel": "FATAL",
        "SystemLogLevel": "DEBUG",
        "LogGroup": "/our/group",
    }
    client.update_function_configuration(FunctionName="settings", LoggingConfig=given)
    assert client.get_function_configuration(FunctionName="settings")["LoggingConfig"] == given
    assert invoke(client, "settings", {})[1] is None
    logs = running.client(service="logs")
    events = logs.filter_log_events(logGroupName="/our/group")["events"]
    assert any("platform.report" in event["message"] for event in events), events
    for wrong in [
        {"SystemLogLevel": "INFO"},
        {"LogFormat": "JSON", "SystemLogLevel": "ERROR"},
        {"LogGroup": "a b"},
    ]:
        with pytest.raises(client.exceptions.InvalidParameterValueException, match="LoggingConfig|LogFormat"):
            create(client, "wrong", code, LoggingConfig=wrong)


TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Globals:
  Function:
    LoggingConfig: { LogFormat: JSON, SystemLogLevel: WARN }
Resources:
  Declared:
    Type: AWS::Serverless::Function
    Properties:
      InlineCode: "def handler(event, context): return 1"
      Handler: index.handler
      Runtime: RUNTIME
      LoggingConfig: { ApplicationLogLevel: DEBUG, LogGroup: /declared }
"""


def test_template_declares_the_log_format(tmp_path):
    path = tmp_path / "template.yaml"
    path.write_text(TEMPLATE.replace("RUNTIME", PYTHON))
    with Worker(str(path)) as running:
        client = running.client()
        described = client.get_function_configuration(FunctionName="Declared")["LoggingConfig"]
        assert described == {
            "LogFormat": "JSON",
            "ApplicationLogLevel": "DEBUG",
            "SystemLogLevel": "WARN",
            "LogGroup": "/declared",
        }
        assert invoke(client, "Declared", {}) == (1, None)
