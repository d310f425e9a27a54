"""Helpers with which the tests call functions and build their code."""

import io
import json
import sys
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


def in_shell(client, command, name="probe"):
    """Runs a shell command in an instance of a function: code, out, err."""
    answer, error = invoke(client, name, {"do": "shell", "command": command})
    assert error is None, answer
    return answer


def shell(client, command, name="probe"):
    return in_shell(client, command, name)["out"]


def open_folder(tmp_path_factory, name):
    """A new folder that other users may read, as the users of instances and of their servers do."""
    made = tmp_path_factory.mktemp(name)
    for path in [made, *made.parents[:3]]:
        path.chmod(path.stat().st_mode | 0o055)
    return made


def zipped(**files):
    """A .zip of files; the argument `app_py` is the file app.py."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name.replace("_py", ".py"), text)
    return content.getvalue()


def create(client, name, code, **settings):
    settings = {
        "Runtime": PYTHON,
        "Handler": "app.handler",
        "Role": "arn:aws:iam::000000000000:role/r",
        **settings,
    }
    return client.create_function(FunctionName=name, Code={"ZipFile": code}, **settings)
