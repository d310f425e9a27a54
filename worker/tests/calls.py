"""Helpers with which the tests call functions and build their code."""

import concurrent.futures
import contextlib
import io
import json
import os
import random
import signal
import sys
import threading
import time
import zipfile

# The host's Python, which runs both these tests and the functions.
PYTHON = f"python3.{sys.version_info.minor}"
EXTENSION = sys.implementation.cache_tag  # part of the names of its compiled modules

# The boot time of a VM under emulation.
PATIENCE_S = 300


def invoke(client, name, payload=None, **arguments):
    """The answer's payload, and the error kind or None."""
    answer = client.invoke(FunctionName=name, Payload=json.dumps(payload), **arguments)
    return json.loads(answer["Payload"].read() or b"null"), answer.get("FunctionError")


def until(condition, details="", seconds=PATIENCE_S):
    """Polls the condition, and returns its first true value; `details` explains a failure."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, details() if callable(details) else details
        time.sleep(0.05)
    return found


def phases(running, name):
    """The phases of a function's instances."""
    instances = json.loads(running.get("/instances"))["instances"]
    return [instance["phase"] for instance in instances if instance["function"] == name]


@contextlib.contextmanager
def at_work(running, name, event):
    """The future of a call at which an instance of the function works. An instance that has just answered is
    busy until it asks for the next request, so this waits for those first."""
    until(lambda: "busy" not in phases(running, name), running.log)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        asked = thread.submit(invoke, running.client(), name, event)
        until(lambda: "busy" in phases(running, name) or asked.done(), running.log)
        assert not asked.done(), asked.result()
        yield asked


def in_shell(client, command, name="probe"):
    """Runs a shell command in an instance of a function: code, out, err."""
    answer, error = invoke(client, name, {"do": "shell", "command": command})
    assert error is None, answer
    return answer


def shell(client, command, name="probe"):
    return in_shell(client, command, name)["out"]


@contextlib.contextmanager
def killing(choose_from, requests_done, every, seed):
    """Kills a process at random after every so many requests; yields the list of those killed."""
    choose, over, killed = random.Random(seed), threading.Event(), []

    def kill_at_random():
        while not over.wait(0.02):
            # Kills by time would hit a slow machine's instances before they have started.
            processes = choose_from() if requests_done() >= every * len(killed) else []
            if processes:
                process = choose.choice(processes)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)

    killer = threading.Thread(target=kill_at_random)
    killer.start()
    try:
        yield killed
    finally:
        over.set()
        killer.join()


def open_folder(tmp_path_factory, name):
    """A new folder that other users may read, as the users of instances and of their servers do."""
    made = tmp_path_factory.mktemp(name)
    for path in [made, *made.parents[:3]]:
        path.chmod(path.stat().st_mode | 0o055)
    return made


def one_function(folder, name, runtime, handler="app.handler", metadata=None, **properties):
    """Writes the template of a function, whose code is in the folder `code` beside it; returns its path."""
    properties |= {"FunctionName": name, "Runtime": runtime, "Handler": handler, "CodeUri": "code"}
    function = {"Type": "AWS::Serverless::Function", "Properties": properties}
    if metadata:
        function["Metadata"] = {"Mayfly": metadata}
    template = {"Transform": "AWS::Serverless-2016-10-31", "Resources": {"Function": function}}
    path = folder / "template.yaml"
    path.write_text(json.dumps(template))
    return str(path)


def zipped(**files):
    """A .zip of files; the argument `app_py` is the file app.py."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name.replace("_py", ".py"), text)
    return content.getvalue()


def programs(files, beside=None):
    """A .zip of programs, and of files beside them that are none: their text, by name."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            program = zipfile.ZipInfo(name)
            program.external_attr = 0o100755 << 16
            archive.writestr(program, text)
        for name, text in (beside or {}).items():
            archive.writestr(name, text)
    return content.getvalue()


def create(client, name, code, **settings):
    settings = {
        "Runtime": PYTHON,
        "Handler": "app.handler",
        "Role": "arn:aws:iam::000000000000:role/r",
        **settings,
    }
    return client.create_function(FunctionName=name, Code={"ZipFile": code}, **settings)


def provider(at_once):
    """`CapacityProviderConfig` for so many requests at once in one instance."""
    arn = "arn:aws:lambda:us-east-1:000000000000:capacity-provider:any"
    config = {"CapacityProviderArn": arn, "PerExecutionEnvironmentMaxConcurrency": at_once}
    return {"LambdaManagedInstancesCapacityProviderConfig": config}


def serves_several(running, name, event, expected, calls=200, at_once=4):
    """Calls a function's only instance several times at once: each answer has its request's id, and the log
    lines of requests overlap."""
    client = running.client()
    client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=1)

    def call(_):
        answer = client.invoke(FunctionName=name, Payload=json.dumps(event))
        body = json.loads(answer["Payload"].read())
        assert body == {**expected, "request": answer["ResponseMetadata"]["RequestId"]}

    with concurrent.futures.ThreadPoolExecutor(2 * at_once) as threads:
        list(threads.map(call, range(calls)))
    logged = running.client(service="logs").filter_log_events(logGroupName=f"/aws/lambda/{name}")["events"]
    now, most = {}, 0
    for line in logged:
        running_now = now.setdefault(line["logStreamName"], set())
        kind, _, rest = line["message"].partition(" RequestId: ")
        if kind == "START":
            running_now.add(rest[:36])
        elif kind == "END":
            running_now.discard(rest[:36])
        most = max(most, len(running_now))
    assert 2 <= most <= at_once, most
