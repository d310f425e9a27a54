"""What Lambda's runtimes find in layers and variables: a wrapper, a bootstrap, programs, Python's folders."""

import pytest
from calls import PYTHON, create, invoke, programs, zipped

WRAPPER = """#!/bin/sh
export WRAPPED="$(tool) $#"
exec "$@"
"""
APP = """
import os, sys
import shared

def handler(event, context):
    return [os.environ.get("WRAPPED"), shared.TEXT, sys.path]
"""
BOOTSTRAP = """#!/usr/bin/python3
import http.client, os

api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
while True:
    api.request("GET", "/2018-06-01/runtime/invocation/next")
    event = api.getresponse()
    event.read()
    id = event.headers["Lambda-Runtime-Aws-Request-Id"]
    api.request("POST", f"/2018-06-01/runtime/invocation/{id}/response", '"%s"' % __file__)
    api.getresponse().read()
"""


@pytest.fixture(scope="module")
def layer(running):
    files = {
        "wrapper": WRAPPER,
        "bin/tool": "#!/bin/sh\necho of a layer\n",
        "bootstrap": BOOTSTRAP,
        f"python/lib/{PYTHON}/site-packages/shared.py": "TEXT = 'site-packages'",
        "python/shared.py": "TEXT = 'python'",
    }
    made = running.client().publish_layer_version(LayerName="runtime", Content={"ZipFile": programs(files)})
    return made["LayerVersionArn"]


def test_wrapper_starts_the_runtime(running, layer):
    client = running.client()
    variables = {"AWS_LAMBDA_EXEC_WRAPPER": "/opt/wrapper"}
    create(client, "wrapped", zipped(app_py=APP), Layers=[layer], Environment={"Variables": variables})
    (wrapped, *_), error = invoke(client, "wrapped")
    assert (wrapped, error) == ("of a layer 4", None), "an interpreter, -m, its client and the handler"
    variables["AWS_LAMBDA_EXEC_WRAPPER"] = "/opt/absent"
    client.update_function_configuration(FunctionName="wrapped", Environment={"Variables": variables})
    answer, error = invoke(client, "wrapped")
    assert error == "Unhandled" and "/opt/absent" in answer["errorMessage"], answer


def test_layer_brings_the_bootstrap_of_code_without_one(running, layer):
    client = running.client()
    settings = {"Runtime": "provided.al2023", "Handler": "any", "Layers": [layer]}
    create(client, "borrowed", zipped(other="x"), **settings)
    assert invoke(client, "borrowed") == ("/opt/bootstrap", None)
    create(client, "owned", programs({"bootstrap": BOOTSTRAP}), **settings)
    assert invoke(client, "owned") == ("/var/task/bootstrap", None)


def test_python_searches_own_folders_first_and_layers_too(running, layer):
    client = running.client()
    create(client, "searching", zipped(app_py=APP, **{"lib/shared_py": "TEXT = 'own'"}), Layers=[layer])
    layers = [f"/opt/python/lib/{PYTHON}/site-packages", "/opt/python"]
    (_, text, folders), error = invoke(client, "searching")
    assert error is None and text == "site-packages"
    assert [folder for folder in folders if folder.startswith("/opt")] == layers
    variables = {"Variables": {"PYTHONPATH": "/var/task/lib:/elsewhere"}}
    client.update_function_configuration(FunctionName="searching", Environment=variables)
    (_, text, folders), error = invoke(client, "searching")
    assert error is None and text == "own"
    wanted = ["/var/task/lib", "/elsewhere", *layers]
    assert [folder for folder in folders if folder in wanted] == wanted
