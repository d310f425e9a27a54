"""What the worker makes of templates: what can be served is served as written, all else is a line."""

import io
import subprocess
import zipfile

import pytest
from calls import create, invoke, zipped
from conftest import MAYFLY, Worker
from templates import CASES, PLAIN, PYTHON, Case, function


def written(folder, case):
    """The template of a case in a folder, with its code."""
    files = {"code/bootstrap": "#!", "code/app.py": "1\n", **case.files}
    template = (
        f"Transform: AWS::Serverless-2016-10-31\n{case.before}\nResources:\n  {case.resources.lstrip()}\n"
    )
    for name, text in {**files, "template.yaml": template}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text) if isinstance(text, str) else path.write_bytes(text)
    return str(folder / "template.yaml")


def listed(client):
    return {one["FunctionName"]: one for one in client.list_functions()["Functions"]}


@pytest.mark.parametrize("name", CASES)
def test_template_is_read_as_cloudformation_and_sam_read_it(name, tmp_path, monkeypatch):
    case = CASES[name]
    monkeypatch.chdir(tmp_path)
    with Worker(written(tmp_path, case), *case.options) as running:
        known = listed(running.client())
        served = {name: one for name, one in known.items() if one["State"] == "Active"}
        assert set(served) == set(case.functions), known
        for function_name, wanted in case.functions.items():
            found = served[function_name]
            assert {key: found.get(key) for key in wanted} == wanted
        failed = {name: one["StateReasonCode"] for name, one in known.items() if one["State"] == "Failed"}
        assert failed == case.failed
        for line in case.lines:
            running.wait_for(line)


def test_failed_function_says_so_where_it_is_called(tmp_path):
    with Worker(written(tmp_path, CASES["wrong-beside"])) as running:
        client = running.client()
        found = client.get_function(FunctionName="Old")["Configuration"]
        assert (found["State"], found["StateReasonCode"]) == ("Failed", "InvalidRuntime")
        assert found["Runtime"] == "cobol85" and "cobol85" in found["StateReason"]
        with pytest.raises(client.exceptions.ResourceConflictException) as caught:
            invoke(client, "Old")
        assert "state: Failed. " in str(caught.value) and "cobol85" in str(caught.value)
        with pytest.raises(client.exceptions.ResourceConflictException):
            create(client, "Old", zipped(app_py="def handler(event, context): return 1"), Runtime=PYTHON)
        client.delete_function(FunctionName="Old")
        assert "Old" not in listed(client)


@pytest.mark.parametrize("case, options", [("wrong-beside", ["--strict"]), (None, [])])
def test_all_faults_are_reported_where_the_worker_ends(case, options, tmp_path):
    only_wrong = Case(f"Small: {function('MemorySize: 1')}\n  Old: {function('Timeout: 0')}")
    template = written(tmp_path, CASES[case] if case else only_wrong)
    command = [MAYFLY, "up", template, "--listen", "127.0.0.1:0", "--memory", "1500", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode != 0
    assert "Small: Resources.Small.Properties" in ended.stderr and "Old: " in ended.stderr, ended.stderr


def test_code_is_inline_in_an_archive_or_in_a_bucket(tmp_path):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("app.py", "import shared\ndef handler(event, context): return shared.WORD")
        made.writestr("lib/shared.py", "WORD = 'archive'")
        link = zipfile.ZipInfo("shared.py")
        link.external_attr = 0o120777 << 16
        made.writestr(link, "lib/shared.py")
    python = f"Runtime: {PYTHON}, Handler"
    case = Case(
        f"""
  Inline:
    Type: AWS::Serverless::Function
    Properties: {{ {python}: index.handler, InlineCode: "def handler(event, context): return 'inline'" }}
  Raw:
    Type: AWS::Lambda::Function
    Properties: {{ {python}: index.handler, Code: {{ ZipFile: "def handler(e, c): return 'raw'" }} }}
  Zip: {{ Type: AWS::Serverless::Function, Properties: {{ {python}: app.handler, CodeUri: f.zip }} }}
  Far: {{ Type: AWS::Serverless::Function, Properties:
    {{ {python}: app.handler, CodeUri: s3://own/x/f.zip }} }}""",
        files={"f.zip": archive.getvalue(), "bucket/x/f.zip": archive.getvalue()},
    )
    with Worker(written(tmp_path, case), "--bucket", f"own={tmp_path}/bucket") as running:
        client = running.client()
        answers = {name: invoke(client, name) for name in ["Inline", "Raw", "Zip", "Far"]}
        wanted = {"Inline": "inline", "Raw": "raw", "Zip": "archive", "Far": "archive"}
        assert answers == {name: (word, None) for name, word in wanted.items()}


def test_nearest_version_serves_where_the_host_lacks_one(tmp_path):
    missing = function("").replace("provided.al2023", "python3.250")
    case = Case(f"{PLAIN}\n  Old: {missing}")
    with Worker(written(tmp_path, case)) as running:
        running.wait_for(
            r"Old is not served: .*no Python 3.250, .*--nearest-runtime serves it with python3\.\d+"
        )
    with Worker(written(tmp_path, case), "--nearest-runtime") as running:
        assert listed(running.client())["Old"]["Runtime"].startswith("python3.")
        running.wait_for(r"this host has no python3.250: the function runs on python3")
