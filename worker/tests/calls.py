"""How the tests call functions and make their code."""

import io
import json
import zipfile


def invoke(client, name, payload=None, **arguments):
    """The answer's payload, and the error kind or None."""
    answer = client.invoke(FunctionName=name, Payload=json.dumps(payload), **arguments)
    return json.loads(answer["Payload"].read() or b"null"), answer.get("FunctionError")


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
