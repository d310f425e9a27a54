"""An instance's end, as Lambda's guide has it: the runtime's SIGTERM, then SHUTDOWN with its reason."""

import pytest
from calls import create, invoke, until, zipped
from test_extensions import WATCH, archive
from test_extensions import lines as all_lines

APP = """
import os, signal, threading, time, urllib.request

def register():
    api = f"http://{os.environ['AWS_LAMBDA_RUNTIME_API']}/2020-01-01/extension/register"
    headers = {"Lambda-Extension-Name": "inside"}
    answer = urllib.request.urlopen(urllib.request.Request(api, b'{"events": []}', headers))
    own = {"Lambda-Extension-Identifier": answer.headers["Lambda-Extension-Identifier"]}
    wait = urllib.request.Request(api.replace("register", "event/next"), headers=own)
    threading.Thread(target=urllib.request.urlopen, args=[wait], daemon=True).start()

def ends(*_):
    print("runtime SIGTERM", flush=True)
    if os.environ["DOES"] != "runtime stays":
        print("runtime goodbye", flush=True)
        os._exit(0)

signal.signal(signal.SIGTERM, ends)
if os.environ["DOES"] == "internal":
    register()

def handler(event, context):
    if event["do"] == "exit":
        os._exit(7)
    if event["do"] == "hang":
        time.sleep(60)
    return 1
"""


@pytest.fixture(scope="module")
def layer(running):
    content = archive({"extensions/watch": WATCH, "extensions/other": WATCH})
    made = running.client().publish_layer_version(LayerName="two", Content={"ZipFile": content})
    return made["LayerVersionArn"]


def logged(running, client, name, layers, does="", do="", **settings):
    """The lines of an instance from its one call on, once it has ended."""
    settings = {"Timeout": 20, "Environment": {"Variables": {"DOES": does}}, **settings}
    create(client, name, zipped(app_py=APP), Layers=layers, **settings)
    invoke(client, name, {"do": do})
    client.delete_function(FunctionName=name)
    until(lambda: running.events("gone", function=name), running.state)
    return [
        line for line in all_lines(running, name) if line.startswith(("runtime", "watch", "other", "START"))
    ]


def seen(running, name, *arguments, **settings):
    """The same without calls, of an instance whose runtime had processor time for its signal: on a busy
    machine its 0.6 s may pass before."""
    for attempt in range(8):
        lines = without_calls(logged(running, running.client(), f"{name}-{attempt}", *arguments, **settings))
        if "runtime SIGTERM" in lines:
            break
    return lines


def without_calls(lines):
    return [line for line in lines if "START" not in line and "INVOKE" not in line and " done" not in line]


def test_runtime_receives_sigterm_before_extensions_receive_shutdown(running, layer):
    lines = seen(running, "both", [layer])
    assert lines[:2] == ["runtime SIGTERM", "runtime goodbye"], lines
    expected = [f"{name} {what}" for name in ("other", "watch") for what in ("SHUTDOWN spindown", "goodbye")]
    assert sorted(lines[2:]) == sorted(expected), lines


def test_runtime_without_extensions_receives_no_sigterm(running):
    lines = logged(running, running.client(), "alone", [])
    assert len(lines) == 1 and lines[0].startswith("START"), lines


def test_runtime_with_an_internal_extension_receives_sigterm(running):
    lines = seen(running, "inner", [], "internal")
    assert lines == ["runtime SIGTERM", "runtime goodbye"]


def test_runtime_that_ignores_sigterm_is_killed_before_shutdown(running, layer):
    lines = seen(running, "deaf", [layer], "runtime stays")
    assert lines[0] == "runtime SIGTERM" and "runtime goodbye" not in lines, lines
    assert lines.count("runtime SIGTERM") == 1 and "watch goodbye" in lines, lines


def test_shutdown_names_a_failed_runtime(running, layer):
    lines = without_calls(logged(running, running.client(), "crashed", [layer], do="exit"))
    assert {"watch SHUTDOWN failure", "other SHUTDOWN failure", "watch goodbye"} <= set(lines), lines
    assert "runtime SIGTERM" not in lines, lines


def test_shutdown_names_a_timeout(running, layer):
    lines = seen(running, "late", [layer], do="hang", Timeout=2)
    assert lines[0] == "runtime SIGTERM" and "watch SHUTDOWN timeout" in lines, lines


def test_shutdown_names_an_extension_that_failed(running, layer):
    client = running.client()
    content = archive({"extensions/watch": WATCH, "extensions/weak": WATCH.replace('"DOES"', '"WEAK"')})
    arn = client.publish_layer_version(LayerName="weak", Content={"ZipFile": content})["LayerVersionArn"]
    variables = {"Variables": {"DOES": "", "WEAK": "crash"}}
    lines = seen(running, "weak", [arn], Environment=variables)
    assert "watch SHUTDOWN failure" in lines and "runtime SIGTERM" in lines, lines
