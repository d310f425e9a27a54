"""What a running worker makes of templates; test_small_templates.py has how they are read."""

import json
import os
import pathlib
import subprocess

import pytest
from calls import create, invoke, zipped
from conftest import MAYFLY, Worker
from templates import CASES, PYTHON, archive, of


def listed(client):
    return {one["FunctionName"]: one for one in client.list_functions()["Functions"]}


GLOBALS = "Globals: { Function: { Runtime: provided.al2023, Handler: h, CodeUri: code } }\nResources:\n"

TOO_LARGE = "MemorySize is 10240 MB, but this worker has only 1500 MB for all instances (--memory)"


def test_failed_function_says_so_where_it_is_called(tmp_path):
    case = of(
        f"{GLOBALS}"
        "  Plain: { Type: AWS::Serverless::Function }\n"
        "  Old: { Type: AWS::Serverless::Function, Properties: { Runtime: cobol85 } }\n"
        "  Large: { Type: AWS::Serverless::Function, Properties: { MemorySize: 10240 } }\n"
    )
    with Worker(case.written(tmp_path), "--memory", "1500") as running:
        client = running.client()
        states = {name: one["State"] for name, one in listed(client).items()}
        assert states == {"Plain": "Active", "Old": "Failed", "Large": "Failed"}
        found = client.get_function(FunctionName="Old")["Configuration"]
        assert (found["State"], found["StateReasonCode"]) == ("Failed", "InvalidRuntime")
        assert found["Runtime"] == "cobol85" and "cobol85" in found["StateReason"]
        found = client.get_function(FunctionName="Large")["Configuration"]
        assert (found["StateReasonCode"], found["StateReason"]) == ("InvalidConfiguration", TOO_LARGE)
        with pytest.raises(client.exceptions.ResourceConflictException) as caught:
            invoke(client, "Old")
        assert "state: Failed. " in str(caught.value) and "cobol85" in str(caught.value)
        with pytest.raises(client.exceptions.ResourceConflictException):
            create(client, "Old", zipped(app_py="def handler(event, context): return 1"), Runtime=PYTHON)
        client.delete_function(FunctionName="Old")
        assert "Old" not in listed(client)


ONLY_WRONG = of(
    f"{GLOBALS}"
    "  Small: { Type: AWS::Serverless::Function, Properties: { MemorySize: 1 } }\n"
    "  Old: { Type: AWS::Serverless::Function, Properties: { Runtime: cobol85 } }\n"
)


@pytest.mark.parametrize(
    "case, options", [(CASES["wrong-beside"], ["--strict"]), (ONLY_WRONG, [])], ids=["strict", "only-wrong"]
)
def test_all_faults_are_reported_where_the_worker_ends(case, options, tmp_path):
    command = [MAYFLY, "up", case.written(tmp_path), "--listen", "127.0.0.1:0", "--memory", "1500", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode != 0
    assert "Small: Resources.Small.Properties" in ended.stderr and "Old: " in ended.stderr, ended.stderr


def test_code_is_a_text_a_file_an_archive_or_in_a_bucket(tmp_path):
    packed = archive(
        **{
            "app.py": "import shared\ndef bake(event, context): return shared.WORD",
            "lib/shared.py": "WORD = 'archive'",
            "shared.py": "->lib/shared.py",
        }
    )
    case = of(
        """
Globals: { Function: { Runtime: HOST_PYTHON, Handler: app.bake } }
Resources:
  Inline:
    Type: AWS::Serverless::Function
    Properties: { Handler: index.bake, InlineCode: "def bake(event, context): return 'inline'" }
  Raw:
    Type: AWS::Lambda::Function
    Properties:
      Runtime: HOST_PYTHON
      Handler: index.bake
      Code: { ZipFile: "def bake(event, context): return 'raw'" }
  File: { Type: AWS::Serverless::Function, Properties: { CodeUri: one/app.py } }
  Zip: { Type: AWS::Serverless::Function, Properties: { CodeUri: f.zip } }
  Far: { Type: AWS::Serverless::Function, Properties: { CodeUri: s3://own/x/f.zip } }
""",
        files={
            "f.zip": packed,
            "bucket/x/f.zip": packed,
            "one/app.py": "def bake(event, context): return 'file'",
        },
    )
    with Worker(case.written(tmp_path), "--bucket", f"own={tmp_path}/bucket") as running:
        client = running.client()
        wanted = {"Inline": "inline", "Raw": "raw", "File": "file", "Zip": "archive", "Far": "archive"}
        answers = {name: invoke(client, name) for name in wanted}
        assert answers == {name: (word, None) for name, word in wanted.items()}


def test_nearest_version_serves_where_the_host_lacks_one(tmp_path):
    case = of(
        f"{GLOBALS}"
        "  Plain: { Type: AWS::Serverless::Function }\n"
        "  Old: { Type: AWS::Serverless::Function, Properties: { Runtime: python3.250 } }\n"
    )
    template = case.written(tmp_path)
    with Worker(template) as running:
        running.wait_for(
            r"Old is not served: .*no Python 3.250, .*--nearest-runtime serves it with python3\.\d+"
        )
    with Worker(template, "--nearest-runtime") as running:
        assert listed(running.client())["Old"]["Runtime"].startswith("python3.")
        running.wait_for(r"this host has no python3.250: the function runs on python3")


def start_cost(folder, count):
    """Seconds of a processor until a worker serves so many functions of one code and the same layers."""
    code, layers = folder / "code", [folder / f"layer{number}" for number in range(3)]
    template = {"Resources": {
        layer.name: {"Type": "AWS::Serverless::LayerVersion", "Properties": {"ContentUri": layer.name}}
        for layer in layers
    }}  # fmt: skip
    if not code.exists():
        code.mkdir()
        (code / "bootstrap").write_bytes(bytes(64 << 20))
        for layer in layers:
            layer.mkdir()
            for number in range(500):
                (layer / f"{layer.name}-{number}").write_text(str(number))
    properties = {
        "Runtime": "provided.al2023",
        "Handler": "h",
        "CodeUri": "code",
        "Layers": [{"Ref": layer.name} for layer in layers],
    }
    for number in range(count):
        function = {"Type": "AWS::Serverless::Function", "Properties": properties}
        template["Resources"][f"F{number}"] = function
    (folder / "template.json").write_text(json.dumps(template))
    with Worker(str(folder / "template.json")) as running:
        fields = pathlib.Path(f"/proc/{running.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        served = running.client().get_paginator("list_functions").paginate().build_full_result()
        assert len(served["Functions"]) == count
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def test_sixty_functions_of_one_code_start_as_one_does(tmp_path):
    one = start_cost(tmp_path, 1)
    sixty = start_cost(tmp_path, 60)
    assert sixty < 5 * one + 0.5, (one, sixty)
