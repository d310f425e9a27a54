"""Extensions in VMs as in processes: the runtime's SIGTERM, SHUTDOWN with its reason, and the Telemetry API.
One VM has them all, for one under emulation takes a minute to boot.
"""

import json
import subprocess

import pytest
from calls import PATIENCE_S, PYTHON, invoke, open_folder, until
from conftest import MAYFLY, Worker
from test_extensions import WATCH
from test_extensions import lines as all_lines
from test_telemetry import APP as HEARD
from test_telemetry import LISTENER, received, subscription
from test_termination_signal import APP, without_calls
from test_vm import PATIENT

# A request on each of many connections, which are all open at once.
CONNECTS = """
import http.client, os

def handler(event, context):
    api = os.environ["AWS_LAMBDA_RUNTIME_API"]
    many = [http.client.HTTPConnection(api) for _ in range(event["connections"])]
    for connection in many:
        connection.request("GET", "/nothing")
    return [connection.getresponse().status for connection in many]
"""
TEMPLATE = f"""
Globals:
  Function:
    Handler: app.handler
    Runtime: {PYTHON}
    MemorySize: 128
    Timeout: 300
    CodeUri: ends
    Environment: {{ Variables: {{ DOES: nothing }} }}
Resources:
  Two: {{ Type: AWS::Serverless::LayerVersion, Properties: {{ ContentUri: two }} }}
  Listening: {{ Type: AWS::Serverless::LayerVersion, Properties: {{ ContentUri: listening }} }}
  Both: {{ Type: AWS::Serverless::Function, Properties: {{ Layers: [!Ref Two] }} }}
  Deaf:
    Type: AWS::Serverless::Function
    Properties: {{ Layers: [!Ref Two], Environment: {{ Variables: {{ DOES: runtime stays }} }} }}
  Crashed: {{ Type: AWS::Serverless::Function, Properties: {{ Layers: [!Ref Two] }} }}
  Inner:
    Type: AWS::Serverless::Function
    Properties: {{ Environment: {{ Variables: {{ DOES: internal }} }} }}
  Alone: {{ Type: AWS::Serverless::Function, Properties: {{ }} }}
  Connects: {{ Type: AWS::Serverless::Function, Properties: {{ CodeUri: connects }} }}
  Http:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: heard
      Layers: [!Ref Listening]
      Environment: {{ Variables: {{ SUBSCRIPTION: '{json.dumps(subscription())}' }} }}
  Tcp:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: heard
      Layers: [!Ref Listening]
      Environment: {{ Variables: {{ SUBSCRIPTION: 'BY_TCP' }} }}
"""
BY_TCP = subscription(destination={"protocol": "TCP", "port": 4243})


@pytest.fixture(scope="module")
def vm(tmp_path_factory):
    subprocess.run([MAYFLY, "vm", "image"], check=True, stdout=subprocess.DEVNULL)
    folder = open_folder(tmp_path_factory, "extensions")
    for name, text in [
        ("ends/app.py", APP),
        ("heard/app.py", HEARD),
        ("connects/app.py", CONNECTS),
        ("two/extensions/watch", WATCH),
        ("two/extensions/other", WATCH),
        ("listening/extensions/listener", LISTENER),
    ]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "template.yaml").write_text(TEMPLATE.replace("BY_TCP", json.dumps(BY_TCP)))
    plain = ["--without", "merge", "--partitions", "2", "--keep-alive", "3600"]
    with Worker(str(folder / "template.yaml"), *PATIENT, *plain) as running:
        yield running


def logged(vm, name, do=""):
    """The lines of an instance from its one call on, once it has ended because its function has changed."""
    client, before = vm.client(), (len(all_lines(vm, name)), len(vm.events("gone", function=name)))
    invoke(client, name, {"do": do})
    client.update_function_configuration(FunctionName=name, Timeout=200 + before[1])
    until(lambda: len(vm.events("gone", function=name)) > before[1], vm.state)
    lines = all_lines(vm, name)[before[0] :]
    return without_calls([line for line in lines if line.startswith(("runtime", "watch", "other"))])


def seen(vm, name, do=""):
    """The same, of an instance that had processor time in its seconds: a busy machine may leave it none."""
    for _ in range(4):
        lines = logged(vm, name, do)
        if "runtime SIGTERM" in lines and (name == "Inner" or "watch goodbye" in lines):
            break
    return lines


def test_runtime_receives_sigterm_before_extensions_receive_shutdown(vm):
    lines = seen(vm, "Both")
    assert lines[:2] == ["runtime SIGTERM", "runtime goodbye"], vm.log()
    expected = [f"{name} {what}" for name in ("other", "watch") for what in ("SHUTDOWN spindown", "goodbye")]
    assert sorted(lines[2:]) == sorted(expected), vm.log()


def test_runtime_that_ignores_sigterm_is_killed_before_shutdown(vm):
    lines = seen(vm, "Deaf")
    assert lines[0] == "runtime SIGTERM" and "runtime goodbye" not in lines, vm.log()
    assert lines.count("runtime SIGTERM") == 1 and "watch goodbye" in lines, vm.log()


def test_shutdown_names_a_failed_runtime_which_extensions_outlive(vm):
    client = vm.client()
    answer, error = invoke(client, "Crashed", {"do": "exit"})
    assert error == "Unhandled" and answer["errorType"] == "Runtime.ExitError", answer
    assert "exit status 7" in answer["errorMessage"], answer
    for name in ["watch", "other"]:
        vm.wait_for(rf"\[Crashed#\d+\] {name} SHUTDOWN failure", PATIENCE_S)
        vm.wait_for(rf"\[Crashed#\d+\] {name} goodbye", PATIENCE_S)
    until(lambda: vm.events("unplug"), vm.log)
    assert "runtime SIGTERM" not in all_lines(vm, "Crashed"), vm.log()


def test_sigterm_is_for_runtimes_with_extensions(vm):
    assert logged(vm, "Alone") == []
    assert seen(vm, "Inner") == ["runtime SIGTERM", "runtime goodbye"], vm.log()


@pytest.mark.parametrize("function", ["Http", "Tcp"])
def test_subscriber_receives_events_and_lines(vm, function):
    client = vm.client()
    client.put_function_concurrency(FunctionName=function, ReservedConcurrentExecutions=1)
    request, error = invoke(client, function, {"do": "print", "lines": 2})
    assert error is None, (request, vm.log())

    def printed():
        events = received(client, function, "platform.report", request)
        # Output arrives later than answers.
        lines = [event["record"] for event in events if event["type"] == "function"]
        return lines[:2] == ["line 0", "line 1"]

    until(printed, vm.log)
    events = received(client, function, "platform.report", request)
    kinds = [event["type"] for event in events if event["type"] not in ("extension", "function")]
    assert kinds[0] == "platform.initStart", events
    assert set(kinds[1:3]) == {"platform.telemetrySubscription", "platform.initRuntimeDone"}, events
    ends = ["extension", "initReport", "start", "runtimeDone", "report"]
    assert kinds[3:8] == [f"platform.{kind}" for kind in ends], events
    assert "subscribed 200 OK" in [event["record"] for event in events if event["type"] == "extension"]
    records = {event["type"]: event["record"] for event in reversed(events)}
    assert records["platform.runtimeDone"]["status"] == "success" == records["platform.report"]["status"]
    client.update_function_configuration(FunctionName=function, Timeout=200)
    vm.wait_for(rf"\[{function}#\d+\] SHUTDOWN after platform", PATIENCE_S)
    client.delete_function_concurrency(FunctionName=function)  # of two; others need them
    assert "API, which is not supported" not in vm.log()


def test_instance_may_have_as_many_connections_as_a_process(vm):
    answer, error = invoke(vm.client(), "Connects", {"connections": 12})
    assert (answer, error) == ([404] * 12, None), vm.log()
