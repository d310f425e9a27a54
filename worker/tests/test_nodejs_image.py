"""A function in Node.js with AWS' own runtime interface client, as a container image: functions/schema."""

import functools
import pathlib
import shutil
import subprocess

import pytest
from calls import invoke, provider, serves_several
from conftest import ROOT
from images import Image, create_image, layer, root_of
from test_nodejs import version

missing = [tool for tool in ("npm", "cmake", "g++", "make", "xz") if not shutil.which(tool)]
ENTRY = ["/usr/bin/node", "node_modules/aws-lambda-ric/index.mjs"]


@pytest.fixture(scope="module")
def root():
    if missing:
        pytest.skip(f"this host lacks {' '.join(missing)}: apt install nodejs npm cmake g++ make xz-utils")
    return root_of(ROOT / "functions/schema")


@functools.cache
def is_whole_20():
    """Whether the host's Node.js is 20 and one file: Debian's needs libraries, and modules of /usr/share."""
    return version() == "20" and "libnode" not in subprocess.check_output(
        ["ldd", shutil.which("node")], text=True
    )


@pytest.fixture(scope="module")
def running(root, place, running):
    """The function on Node.js 22, which the image brings, and on the host's 20."""
    whole = layer(*((path.name, path) for path in sorted(root.iterdir())))
    config = {"Entrypoint": ENTRY, "Cmd": ["app.handler"], "WorkingDir": "/var/task"}
    client = running.client()
    create_image(client, "node22", Image(whole, **config).archive(place / "node22.tar"))
    if is_whole_20():
        node = pathlib.Path(shutil.which("node")).resolve()
        of_host = layer(("usr/bin/node", node))
        create_image(client, "node20", Image(whole, of_host, **config).archive(place / "node20.tar"))
    return running


SCHEMA = {
    "type": "object",
    "required": ["name", "mail"],
    "properties": {"name": {"type": "string"}, "mail": {"type": "string", "format": "email"}},
}


@pytest.mark.parametrize("major", ["20", "22"])
def test_aws_client_with_npm_packages(running, major):
    if major == "20" and not is_whole_20():
        pytest.skip("this host has no Node.js 20 that is one file")
    client, name = running.client(), f"node{major}"
    for document, errors in [
        ({"name": "Ada", "mail": "ada@example.org"}, []),
        ({"mail": "invalid"}, ["/ must have required property 'name'", '/mail must match format "email"']),
    ]:
        answer, error = invoke(client, name, {"schema": SCHEMA, "document": document})
        assert error is None, answer
        assert len(answer.pop("request")) == 36
        assert answer == {"valid": not errors, "errors": errors, "node": major}
    logged = running.client(service="logs").filter_log_events(logGroupName=f"/aws/lambda/{name}")["events"]
    printed = [event["message"] for event in logged]
    assert any("\tINFO\tfits: " in line for line in printed) and any(
        "does not fit: " in line for line in printed
    )
    # The handler throws, and the instance survives.
    answer, error = invoke(client, name, {"schema": {"type": "colour"}})
    assert (error, answer["errorType"]) == ("Unhandled", "Error"), answer
    assert "schema is invalid" in answer["errorMessage"]
    assert any("app.mjs" in line for line in answer["trace"])
    assert invoke(client, name, {"schema": {}, "document": 1})[0]["valid"]
    assert [event["function"] for event in running.events("start")].count(name) == 1


@pytest.mark.parametrize("major", ["20", "22"])
def test_aws_client_serves_several_requests_in_one_instance(running, root, place, major):
    """`AWS_LAMBDA_MAX_CONCURRENCY` as AWS' client for Node.js reads it."""
    if major == "20" and not is_whole_20():
        pytest.skip("this host has no Node.js 20 that is one file")
    client, name = running.client(), f"node{major}"
    several = f"{name}-several"
    archive = f"oci-archive:{place / name}.tar"
    create_image(client, several, archive, MemorySize=512, CapacityProviderConfig=provider(4))
    expected = {"valid": True, "errors": [], "node": major}
    serves_several(running, several, {"schema": {}, "document": 1}, expected)
    assert [event["function"] for event in running.events("start")].count(several) == 1
