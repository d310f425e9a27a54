"""Templates whose instances live in VMs: images and extensions, reloads, and the handover to a new version of
the worker. Features that VMs lack are refused in one line.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest
from calls import PATIENCE_S, PYTHON, at_work, create, invoke, open_folder, until, zipped
from conftest import HERE, MAYFLY, Worker, is_alive
from images import Image, folder, layer, link, python_layer
from test_extensions import WATCH
from test_vm import PATIENT, SHELL, qemu_of

APP = """
import subprocess, time
CALLS = []
def handler(event, context):
    CALLS.append(event)
    time.sleep(event.get("seconds", 0))
    return {"text": "first", "calls": len(CALLS), "memory": context.memory_limit_in_mb}
"""
TEMPLATE = """
Globals:
  Function: {{ Handler: app.handler, Runtime: python3.11, MemorySize: 128, Timeout: 300, CodeUri: code }}
Resources:
  One:
    Type: AWS::Serverless::Function
    Properties: {{ MemorySize: {memory} }}
  Picture:
    Type: AWS::Serverless::Function
    Metadata: {{ Mayfly: {{ Vm: calm }} }}
    Properties: {{ PackageType: Image, ImageUri: image.tar }}
  Watched:
    Type: AWS::Serverless::Function
    Metadata: {{ Mayfly: {{ Vm: calm }} }}
    Properties:
      CodeUri: shell
      Layers: [!Ref Watch]
      Environment: {{ Variables: {{ DOES: {does} }} }}
  Watch:
    Type: AWS::Serverless::LayerVersion
    Properties: {{ ContentUri: watch }}
{more}
""".replace("python3.11", PYTHON)
KEPT = ["--keep-alive", "3600"]
MORE = """
  Two:
    Type: AWS::Serverless::Function
    Properties: { Description: another }
"""
# An image whose links would lead out of it, if the agent followed them before it enters the root.
ODD = [link("dev", "/etc"), link("tmp", "/var/task"), folder("etc"), ("etc/hosts", b"192.0.2.1 elsewhere\n")]
INSIDE = """
import http.client, json, os

api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])

def call(method, path, body=None):
    api.request(method, "/2018-06-01/runtime/invocation/" + path, body)
    answer = api.getresponse()
    return answer.headers.get("Lambda-Runtime-Aws-Request-Id"), json.loads(answer.read() or b"null")

def written(path):
    try:
        open(path, "w").close()
        return True
    except OSError:
        return False

while True:
    request, _ = call("GET", "next")
    call("POST", request + "/response", json.dumps({
        "root": sorted(os.listdir("/")),
        "cwd": os.getcwd(),
        "user": os.getuid(),
        "hosts": open("/etc/hosts").read(),
        "own": os.environ["OF_THE_IMAGE"],
        "kernel": open("/proc/sys/kernel/random/boot_id").read(),
        "written": [path for path in ["/tmp/x", "/dev/shm/x", "/x", "/etc/x", "/usr/x"] if written(path)],
        "null": os.stat("/dev/null").st_rdev,
        "heap": sorted({line.split()[-1] for line in open("/proc/self/maps") if "mayfly" in line}),
    }))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    made = open_folder(tmp_path_factory, "vm")
    for name, text in [("code/app.py", APP), ("shell/app.py", SHELL), ("watch/extensions/watch", WATCH)]:
        (made / name).parent.mkdir(parents=True)
        (made / name).write_text(text)
    (made / "watch/extensions/watch").chmod(0o755)
    Image(
        python_layer(made / "nothing"),
        layer(*ODD, ("srv/inside.py", INSIDE.encode())),
        Entrypoint=[f"/usr/bin/{PYTHON}", "inside.py"],
        Env=["OF_THE_IMAGE=yes"],
        WorkingDir="/srv",
    ).archive(made / "image.tar")
    (made / "template.yaml").write_text(TEMPLATE.format(memory=128, does="nothing", more=""))
    return made


@pytest.fixture(scope="module")
def running(place):
    subprocess.run([MAYFLY, "vm", "image"], check=True, stdout=subprocess.DEVNULL)
    template = str(place / "template.yaml")
    with Worker(template, *PATIENT, "--without", "merge", "--partitions", "4", *KEPT) as worker:
        yield worker


def test_an_image_is_the_root_of_its_instances(running):
    answer, error = invoke(running.client(), "Picture", {})
    assert error is None, answer
    assert answer.pop("user") > 2_000_000_000 and len(answer.pop("kernel")) == 37
    # The instance's own name is there beside localhost.
    assert re.fullmatch(
        r"127\.0\.0\.1 localhost sandbox\.localdomain sandbox\n127\.0\.1\.1 [\w.-]+\n", answer.pop("hosts")
    )
    # /dev/null is the device 1:3.
    assert answer == {
        "root": ["dev", "etc", "lib", "lib64", "proc", "srv", "sys", "tmp", "usr"],
        "cwd": "/srv",
        "own": "yes",
        "written": ["/tmp/x", "/dev/shm/x"],
        "null": os.makedev(1, 3),
        "heap": ["/dev/mayfly/libmayfly_heap.so"],
    }


def test_extensions_receive_invocations(running):
    answer, error = invoke(running.client(), "Watched", "echo here")
    assert (answer, error) == ([1, "here\n"], None)
    running.wait_for(r"\[Watched#\d+\] watch INVOKE \S+ Watched X-Amzn-Trace-Id", PATIENCE_S)
    assert invoke(running.client(), "Watched", "echo again") == ([2, "again\n"], None)


def test_code_of_api_callers_is_refused(running):
    client = running.client()
    refused = client.exceptions.InvalidParameterValueException
    with pytest.raises(refused, match="come from the template"):
        create(client, "made", zipped(app_py=APP))
    with pytest.raises(refused, match="come from the template"):
        client.update_function_code(FunctionName="One", ZipFile=zipped(app_py=APP))
    with pytest.raises(refused, match="has no versions"):
        client.publish_version(FunctionName="One")


def test_template_reload_keeps_unchanged_vms(running, place):
    client = running.client()
    assert invoke(client, "One", {})[0] == {"text": "first", "calls": 1, "memory": "128"}
    before, calm = qemu_of(running), qemu_of(running, "calm")
    calls = invoke(client, "Watched", "true")[0][0]
    template = place / "template.yaml"
    good = template.read_text()
    # A template that cannot be read is reported, and changes nothing.
    template.write_text(good + "  Wrong: [\n")
    os.kill(running.process.pid, signal.SIGHUP)
    running.wait_for(r"SIGHUP: .*template.yaml")
    # Of one that can, a function that cannot be had is reported, and the others are served.
    template.write_text(
        good + "  Wrong: { Type: AWS::Serverless::Function, Properties: { CodeUri: nowhere } }\n"
    )
    os.kill(running.process.pid, signal.SIGHUP)
    running.wait_for(r"Wrong is not served: .*nowhere")
    # A running request continues in the replaced VM until its answer.
    with at_work(running, "One", {"seconds": 40}) as asked:
        (place / "code/app.py").write_text(APP.replace("first", "second"))
        template.write_text(TEMPLATE.format(memory=384, does="nothing", more=MORE))
        os.kill(running.process.pid, signal.SIGHUP)
        running.wait_for("was read anew: 4 functions", PATIENCE_S)
        assert invoke(client, "One", {})[0] == {"text": "second", "calls": 1, "memory": "384"}
        assert asked.result(timeout=PATIENCE_S) == (
            {"text": "first", "calls": 2, "memory": "128"},
            None,
        )
    assert invoke(client, "Two", {})[0]["text"] == "second"
    until(lambda: replaced(running), running.log)
    until(lambda: not is_alive(before), running.log)
    # An unchanged function keeps its instance and its VM.
    assert qemu_of(running, "calm") == calm
    assert invoke(client, "Watched", "echo there") == ([calls + 1, "there\n"], None)
    # The failure of an extension is reported as on the host.
    template.write_text(TEMPLATE.format(memory=384, does="crash", more=MORE))
    os.kill(running.process.pid, signal.SIGHUP)
    until(lambda: running.log().count("was read anew: 4 functions") == 2, running.log)
    assert qemu_of(running, "calm") == calm, "another environment needs no other VM"
    answer, error = invoke(client, "Watched", "sleep 200")
    assert error == "Unhandled" and answer["errorType"] == "Extension.Crash", answer
    assert "extension watch exited with error: signal: aborted" in answer["errorMessage"]


def replaced(running):
    return [event for event in running.events("vm") if "gone with its last instance" in event["message"]]


def test_new_version_serves_from_vms_of_its_own(running, place):
    """Runs last: it ends the worker that the other tests use."""
    client = running.client()
    # The template that the test before leaves, also when this one runs alone.
    (place / "code/app.py").write_text(APP.replace("first", "second"))
    (place / "template.yaml").write_text(TEMPLATE.format(memory=384, does="crash", more=MORE))
    read = running.log().count("was read anew: 4 functions")
    os.kill(running.process.pid, signal.SIGHUP)
    until(lambda: running.log().count("was read anew: 4 functions") > read, running.log, PATIENCE_S)
    assert invoke(client, "One", {})[0]["text"] == "second"
    vms = [qemu_of(running), qemu_of(running, "calm")]
    try:
        with at_work(running, "One", {"seconds": 40}) as asked:
            os.kill(running.process.pid, signal.SIGUSR2)
            answers = []
            # One of both serves while the new VMs boot.
            while not (found := re.search(r"handed over to PID (\d+)", running.log())):
                answers.append(invoke(client, "Two", {}))
                ended = running.process.poll() is not None
                # Once it has handed over, and all requests are answered, it ends.
                assert not ended or "handed over" in running.log(), running.log()
                assert "SIGUSR2:" not in running.log(), running.log()
            successor = int(found.group(1))
            answers.append(invoke(client, "Two", {}))
            assert {error for _, error in answers} == {None}, answers
            assert asked.result(timeout=PATIENCE_S)[1] is None
        assert running.process.wait(timeout=PATIENCE_S) == 0
        until(lambda: not any(map(is_alive, vms)), running.log)
        assert invoke(running.client(), "One", {})[0] == {"text": "second", "calls": 1, "memory": "384"}
        os.kill(successor, signal.SIGTERM)
        until(lambda: not is_alive(successor), running.log)
    finally:
        # While it starts it is a child of the worker, and the log does not name it yet.
        handed_over = re.findall(r"handed over to PID (\d+)", running.log())
        for process in {*map(int, handed_over), *running.descendants()}:
            if is_worker(process):
                os.kill(process, signal.SIGKILL)


def is_worker(process):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[1:2] == [b"up"]
    return False


ALIAS = """
Resources:
  It:
    Type: AWS::Serverless::Function
    Properties: { CodeUri: code, Handler: app.handler, Runtime: python3.11, AutoPublishAlias: live }
""".replace("python3.11", PYTHON)


PLAIN = ALIAS.replace(", AutoPublishAlias: live", "")


@pytest.mark.parametrize(
    "template, options, reason",
    [
        (ALIAS, [], "It: AutoPublishAlias needs instances that are processes of this host"),
        (
            PLAIN.replace("Properties:", "Metadata: { Mayfly: { PageOutAfter: 1 } }\n    Properties:"),
            [],
            "PageOutAfter needs instances that are processes of this host",
        ),
    ],
)
def test_features_unsupported_in_vms_are_refused_in_one_line(tmp_path, template, options, reason):
    shutil.copytree(HERE / "functions/probe", tmp_path / "code")
    (tmp_path / "template.yaml").write_text(template)
    done = subprocess.run(
        [MAYFLY, "up", tmp_path / "template.yaml", "--sandbox", "vm", "--listen", "127.0.0.1:0", *options],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1 and reason in done.stderr.splitlines()[-1], done.stderr
