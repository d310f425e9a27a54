"""Every version of Python that both AWS and this machine have: the worker runs in a mount namespace with all
of them below /usr/local, as on a host that has them there.
"""

import json
import os
import pathlib
import shutil
import subprocess

import pytest
from calls import PYTHON, create, invoke, open_folder, until, zipped
from conftest import MAYFLY, Worker

OWN = PYTHON.removeprefix("python")
LATE = "3.13"  # a function of it is created while the worker runs
VERSIONS = [version for version in ("3.9", "3.10", "3.11", "3.12", LATE) if version != OWN]
APP = """
import os, sys
import awslambdaric, mayfly

table = bytearray(os.urandom(1 << 20))
mayfly.advise(memoryview(table))

def handler(event, context):
    if event.get("fails"):
        raise KeyError("as asked")
    return {
        "version": "{}.{}".format(*sys.version_info),
        "name": context.function_name,
        "preloaded": os.environ.get("LD_PRELOAD", ""),
        "sum": sum(table[:100]) == sum(memoryview(table)[:100]),
        # What Lambda's client imports to ask for work in a thread.
        "pool": "concurrent.futures.thread" in sys.modules,
        "event": event,
    }
"""
TEMPLATE = """
Globals:
  Function: { CodeUri: code, Handler: app.handler, MemorySize: 256, Timeout: 30 }
Resources:
"""


def prefix_of(version):
    """The prefix of an installation apart from the system's: pyenv's, or one on the PATH."""
    places = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv")).glob(
        f"versions/{version}.*/bin/python{version}"
    )
    for program in [*sorted(places), shutil.which(f"python{version}")]:
        if program and pathlib.Path(program).exists():
            command = [program, "-c", "import sys; print(sys.prefix)"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0 and done.stdout.strip() not in ("/usr", "/usr/local"):
                return done.stdout.strip()
    return None


FOUND = {version: prefix for version in VERSIONS if (prefix := prefix_of(version))}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    place = open_folder(tmp_path_factory, "pythons")
    (place / "code").mkdir()
    (place / "code/app.py").write_text(APP)
    template = place / "template.yaml"
    declared = [
        f"  V{version.replace('.', '')}: "
        + json.dumps({"Type": "AWS::Serverless::Function", "Properties": {"Runtime": f"python{version}"}})
        for version in [OWN, *FOUND]
        if version == OWN or version != LATE
    ]
    template.write_text(TEMPLATE + "\n".join(declared) + "\n")
    layers = ":".join([*FOUND.values(), "/usr/local"])
    # The loader finds their libraries, as after an installation there.
    mounted = f"""
        {f"mount -t overlay overlay -o lowerdir={layers} /usr/local" if FOUND else ""}
        PATH=$PATH:/sbin:/usr/sbin ldconfig -C {place}/cache && mount --bind {place}/cache /etc/ld.so.cache
        exec {MAYFLY} "$@"
    """
    with Worker(str(template), before=["unshare", "--mount", "sh", "-ec", mounted, "sh"]) as worker:
        yield worker


def check(running, name, version):
    client = running.client()
    answer, error = invoke(client, name, {"a": "é"})
    assert error is None, answer
    assert "libmayfly_heap.so" in answer.pop("preloaded")
    assert answer == {"version": version, "name": name, "sum": True, "pool": False, "event": {"a": "é"}}
    answer, error = invoke(client, name, {"fails": True})
    assert (error, answer["errorType"]) == ("Unhandled", "KeyError")
    # It rests as any other: its heap returns memory, and named memory is advised.
    rests = until(lambda: running.events("rest", function=name), running.log)
    assert rests[0].get("message") is None, rests
    assert len(running.events("start", function=name)) == 1


@pytest.mark.parametrize("version", [OWN, *(version for version in VERSIONS if version != LATE)])
def test_template_function_runs_on_its_python(running, version):
    if version not in [OWN, *FOUND]:
        pytest.skip(f"this machine has no Python {version} of its own")
    check(running, f"V{version.replace('.', '')}", version)


def test_api_function_runs_on_its_python(running):
    """Of a version that no other function has: the worker fetches the runtime's client at its creation."""
    if LATE not in FOUND:
        pytest.skip(f"this machine has no Python {LATE} beside its own")
    create(running.client(), "made", zipped(app_py=APP), Runtime=f"python{LATE}", MemorySize=256, Timeout=30)
    check(running, "made", LATE)
