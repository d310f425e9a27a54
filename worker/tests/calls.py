"""How the tests call functions and make their code."""

import io
import json
import time
import zipfile

# As long as a VM takes to boot where it is translated.
PATIENCE_S = 300


def invoke(client, name, payload=None, **arguments):
    """The answer's payload, and the error kind or None."""
    answer = client.invoke(FunctionName=name, Payload=json.dumps(payload), **arguments)
    return json.loads(answer["Payload"].read() or b"null"), answer.get("FunctionError")


def until(condition, told="", seconds=PATIENCE_S):
    """What the condition finds, once it does; `told` is said, or says more, where it never does."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, told() if callable(told) else told
        time.sleep(0.05)
    return found


def in_shell(client, command, name="probe"):
    """What a shell says in an instance of a function: code, out, err."""
    answer, error = invoke(client, name, {"do": "shell", "command": command})
    assert error is None, answer
    return answer


def shell(client, command, name="probe"):
    return in_shell(client, command, name)["out"]


def open_folder(tmp_path_factory, name):
    """A new folder of the tests' that other users may look into, as instances and those who serve them do."""
    made = tmp_path_factory.mktemp(name)
    for path in [made, *made.parents[:3]]:
        path.chmod(path.stat().st_mode | 0o055)
    return made


def zipped(**files):
    """A .zip of files; `app_py` stands for app.py."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name.replace("_py", ".py"), text)
    return content.getvalue()


def create(client, name, code, **settings):
    settings = {
        "Runtime": "python3.11",
        "Handler": "app.handler",
        "Role": "arn:aws:iam::000000000000:role/r",
        **settings,
    }
    return client.create_function(FunctionName=name, Code={"ZipFile": code}, **settings)
