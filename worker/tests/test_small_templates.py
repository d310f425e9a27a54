"""The templates in `templates/` are read as CloudFormation and SAM read them (`mayfly up --check`)."""

import json
import pathlib
import re
import subprocess

import pytest
from conftest import MAYFLY, Worker
from templates import CASES, of


def checked(template, *options):
    """The exit status and what is printed, run in the template's folder."""
    command = [MAYFLY, "up", "--check", "--json", template, *options]
    done = subprocess.run(
        command, cwd=pathlib.Path(template).parent, capture_output=True, text=True, timeout=120
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def relative(function, folder):
    """The function with its paths as the template has them."""
    shown = {key: function[key] for key in ("Code", "Installs") if isinstance(function.get(key), str)}
    paths = {key: str(pathlib.Path(folder, path)) for key, path in shown.items() if path != "inline"}
    return function | {
        key: str(pathlib.Path(path).relative_to(folder)) if path.startswith(str(folder)) else path
        for key, path in paths.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_template_is_read_as_cloudformation_and_sam_read_it(name, tmp_path):
    case = CASES[name]
    code, found = checked(case.written(tmp_path), *case.options)
    served = {
        one["FunctionName"]: relative(one, tmp_path) for one in found["Functions"] if not one["StateReason"]
    }
    assert set(served) == set(case.served), found
    for function, wanted in case.served.items():
        assert {key: served[function].get(key) for key in wanted} == wanted, function
    failed = {one["FunctionName"]: one["StateReasonCode"] for one in found["Functions"] if one["StateReason"]}
    assert failed == case.failed and code == bool(failed)
    lines = [f"{one['Id']}: {one['StateReason']}" for one in found["Functions"] if one["StateReason"]]
    lines += found["Missing"] + found["Notes"]
    for line in case.lines:
        assert any(re.search(line, one) for one in lines), (line, lines)
    if case.routes is not None:
        routes = [
            f"{api['Id']} {one['Method']} {one['Path']} {one['Function']} {one['PayloadFormatVersion']}"
            for api in found["HttpApis"]
            for one in api["Routes"]
        ]
        assert sorted(routes) == sorted(case.routes)
    for wanted, key in ((case.queues, "Queues"), (case.schedules, "Schedules")):
        assert wanted is None or found[key] == wanted


@pytest.mark.parametrize("name", ["function-name-long-form", "nested", "wrong-beside"])
def test_worker_serves_the_functions_that_the_check_shows(name, tmp_path):
    case = CASES[name]
    template = case.written(tmp_path)
    shown = {one["FunctionName"]: one for one in checked(template, *case.options)[1]["Functions"]}
    with Worker(template, *case.options) as running:
        known = {one["FunctionName"]: one for one in running.client().list_functions()["Functions"]}
        assert set(known) == set(shown)
        for function, one in known.items():
            state = "Failed" if shown[function]["StateReason"] else "Active"
            assert one["State"] == state
            assert one.get("StateReasonCode") == shown[function]["StateReasonCode"]
            for key in ("Handler", "Timeout") if state == "Active" else ():
                assert one[key] == shown[function][key]
            environment = one.get("Environment", {}).get("Variables", {})
            assert environment == shown[function]["Environment"]
        for line in case.lines:
            running.wait_for(line)


def test_check_knows_how_much_memory_the_worker_has(tmp_path):
    template = of(
        "Globals: { Function: { Runtime: provided.al2023, Handler: h, CodeUri: code } }\nResources:\n"
        "  Plain: { Type: AWS::Serverless::Function }\n"
        "  Large: { Type: AWS::Serverless::Function, Properties: { MemorySize: 1024 } }\n"
    ).written(tmp_path)
    code, found = checked(template, "--memory", "1023")
    reasons = {one["Id"]: (one["StateReasonCode"], one["StateReason"]) for one in found["Functions"]}
    large = "MemorySize is 1024 MB, but this worker has only 1023 MB for all instances (--memory)"
    assert reasons == {"Plain": (None, None), "Large": ("InvalidConfiguration", large)} and code == 1
    assert checked(template, "--memory", "1024")[0] == 0


def test_check_shows_a_table(tmp_path):
    template = CASES["implicit-api-ref"].written(tmp_path)
    done = subprocess.run([MAYFLY, "up", "--check", template], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^function +runtime +state$", done.stdout, re.M)
    assert re.search(r"^Bread +provided.al2023 +served$", done.stdout, re.M)
    assert "REST ServerlessRestApi: GET /bread/{kind} calls Bread" in done.stdout
    assert "HTTP ServerlessHttpApi: ANY /cake calls Bread" in done.stdout


FUNCTION = "Type: AWS::Serverless::Function"


@pytest.mark.parametrize(
    "resource, reason",
    [
        (f"{FUNCTION}, Condition: Never", "no function is left: .*the condition Never does not hold"),
        ("Type: AWS::S3::Bucket", "none is an AWS::Serverless::Function"),
        (f"{FUNCTION}, Properties: [", "line"),
    ],
)
def test_check_of_a_template_that_is_none_ends_with_its_reason(resource, reason, tmp_path):
    case = of(f"Conditions: {{ Never: !Equals [a, b] }}\nResources:\n  One: {{ {resource} }}\n")
    command = [MAYFLY, "up", "--check", case.written(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and not done.stdout
    assert re.search(reason, done.stderr), done.stderr
