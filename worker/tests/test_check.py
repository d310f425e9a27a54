"""`mayfly up --check`: what would be served of a template, told without a start."""

import json
import pathlib
import re
import subprocess

import pytest
from conftest import MAYFLY
from templates import PLAIN, PYTHON, QUEUE, RAW, Case, function, variables
from test_templates import written

INLINE = "def handler(event, context): return 1"
NODE_LAYER = "arn:aws:lambda:us-east-1:123456789012:layer:Tools:3"
POWERTOOLS = "arn:aws:lambda:eu-west-1:017000801446:layer:AWSLambdaPowertoolsPythonV3-python313-x86_64:7"
INSIGHTS = "arn:aws:lambda:us-east-1:580247275435:layer:LambdaInsightsExtension:38"
LONG = "Handles" * 10  # longer than a function's name may be

FILTERED = (
    "Events: { Come: { Type: SQS, Properties: { Queue: !GetAtt Jobs.Arn, "
    """FilterCriteria: { Filters: [{ Pattern: '{"body": {"a": [1]}}' }] } } } }"""
)
LONG_FORM = "V_N: { Ref: Doer }, V_Q: { Fn::GetAtt: [Jobs, Arn] }, V_R: { Fn::GetAtt: Doer.Arn }"
ROUTED = (
    "Events: { A: { Type: Api, Properties: { Path: '/a/{id}', Method: get } }, "
    "B: { Type: HttpApi, Properties: { Path: /b, Method: ANY } } }"
)

# Each with what the functions have by `--check --json`.
CHECKED = {
    "brackets-close-left": Case(
        f"""
  Plain:
    Type: AWS::Serverless::Function
    Properties:
      {{ {RAW}, Environment: {{ Variables: {{ V_1: "one
   two" }} }},
    Layers: [
    ],
      }}""",
        {"Plain": {"Environment": {"V_1": "one two"}}},
    ),
    "code-in-an-archive": Case(
        f"Plain: {function().replace('CodeUri: code', 'CodeUri: fn.zip')}",
        {"Plain": {"Unbuilt": None}},
        files={"fn.zip": b"PK\x05\x06" + bytes(18)},
    ),
    "code-in-a-bucket-beside": Case(
        f"{PLAIN}\n  Far: {function().replace('CodeUri: code', 'CodeUri: { Bucket: b, Key: k.zip }')}",
        {"Plain": {}},
        {"Far": "InvalidZipFileException"},
    ),
    "conditions-of-a-handler": Case(
        f"Plain: {function().replace('Handler: h', 'Handler: !If [Here, one.handler, other.handler]')}",
        {"Plain": {"Handler": "one.handler"}},
        before="Conditions: { Here: !Equals [a, a] }",
    ),
    "functions-of-two-kinds": Case(
        f"""
  {PLAIN}
  Raw: {{ Type: AWS::Lambda::Function, Properties:
    {{ Runtime: provided, Handler: h, Code: code, Timeout: '9', Role: r }} }}
  Text: {{ Type: AWS::Lambda::Function, Properties:
    {{ Runtime: {PYTHON}, Handler: index.handler, Code: {{ ZipFile: "{INLINE}" }} }} }}""",
        {"Plain": {}, "Raw": {"Timeout": 9}, "Text": {"Code": "inline"}},
    ),
    "functions-of-one-name": Case(
        f"{PLAIN}\n  Same: {function('FunctionName: Plain, Timeout: 44')}",
        {"Plain": {}},
        {"Plain": "InvalidConfiguration"},
        ["FunctionName 'Plain' is there twice"],
    ),
    "handler-that-is-not-built": Case(
        f"Plain: {function().replace('CodeUri: code', 'CodeUri: src')}",
        {"Plain": {"Unbuilt": "Handler h: the code has no bootstrap"}},
        files={"src/main.go": "package main"},
    ),
    "image-with-code": Case(
        "Img: { Type: AWS::Serverless::Function, Properties: "
        "{ PackageType: Image, CodeUri: code, ImageUri: gone.tar } }",
        {},
        {"Img": "InvalidImage"},
        ["CodeUri is passed over: the function is an image", "gone.tar"],
    ),
    "layers": Case(
        f"""
  Libs: {{ Type: AWS::Lambda::LayerVersion, Properties: {{ LayerName: libs, Content: layer }} }}
  Lost: {{ Type: AWS::Serverless::LayerVersion, Properties: {{ ContentUri: l.zip }} }}
  With: {function("Layers: [!Ref Libs]")}
  Without: {function("Layers: [!Ref Lost]")}
  Foreign: {function(f"Layers: ['{NODE_LAYER}']")}""",
        {"With": {}},
        {"Without": "DependencyError", "Foreign": "DependencyError"},
        ["layer Lost: .*l.zip: No such file", "there is no arn:aws:lambda:us-east-1:123456789012"],
        files={"layer/python/l.py": "X = 1"},
    ),
    "layers-of-others": Case(
        "".join(
            f"\n  {name}: {function(f'Layers: [{layer!r}]').replace('provided.al2023', runtime)}"
            for name, runtime, layer in (
                ("Tools", "provided.al2023", NODE_LAYER),
                ("Powertools", PYTHON, POWERTOOLS),
                ("Own", "provided.al2023", POWERTOOLS),
                ("Watched", "provided.al2023", INSIGHTS),
            )
        ),
        {"Tools": {}, "Powertools": {"Layers": [POWERTOOLS]}, "Watched": {"Layers": [INSIGHTS]}},
        {"Own": "DependencyError"},
        [
            "Powertools: PyPI has the packages of the layer AWSLambdaPowertoolsPythonV3-python313-x86_64",
            "Watched: the layer LambdaInsightsExtension is left out: it reports to CloudWatch",
            "--layer Other: no function names such a layer",
        ],
        files={"layer/bin/tool": ""},
        options=["--layer", "Tools=layer", "--layer", "Other=layer"],
    ),
    "logical-id-that-is-too-long": Case(
        f"{LONG}: {function()}",
        {f"{LONG[:55]}-a3ac5123": {"Id": LONG}},
        lines=["too long for a function's name"],
    ),
    "name-that-cannot-be-evaluated": Case(
        f"Plain: {function('FunctionName: !Select [7, [a]], Tags: { A: !Select [7, [a]] }')}",
        {"Plain": {}},
        lines=["FunctionName: .*no item 7: it is named Plain", "Tags: .*no item 7.*: it is passed over"],
    ),
    "names-in-the-long-form": Case(
        f"""
  Jobs: {{ Type: AWS::SQS::Queue, Properties: {{ QueueName: {{ Fn::Sub: '${{Stage}}-jobs' }} }} }}
  Doer: {function("FunctionName: { Fn::Sub: '${Stage}-doer' }")}
  Caller: {variables(LONG_FORM)}""",
        {
            "test-doer": {"Id": "Doer"},
            "Caller": {
                "Environment": {
                    "V_N": "test-doer",
                    "V_Q": f"{QUEUE}test-jobs",
                    "V_R": "arn:aws:lambda:us-east-1:000000000000:function:test-doer",
                }
            },
        },
        before="Parameters: { Stage: { Type: String, Default: test } }",
    ),
    "nested-and-gone": Case(
        f"""
  {variables("V_1: !GetAtt Part.Outputs.Queue").join(["Plain: ", ""])}
  Part: {{ Type: AWS::Serverless::Application, Properties: {{ Location: gone/t.yaml }} }}""",
        {"Plain": {"Environment": {"V_1": "Part.Outputs.Queue"}}},
        lines=["Resources.Part: .*gone/t.yaml"],
    ),
    "packages-to-install": Case(
        f"""
  Plain: {{ Type: AWS::Serverless::Function, Properties:
    {{ Runtime: {PYTHON}, Handler: app.handler, CodeUri: code }} }}""",
        {"Plain": {"Unbuilt": None}},
        lines=["code/requirements.txt"],
        files={"code/requirements.txt": "none-of-that-name\n"},
    ),
    "parameters-of-ssm-and-config": Case(
        f"Plain: {variables('V_1: !Ref A, V_2: !Ref B')}",
        {"Plain": {"Environment": {"V_1": "/a/b", "V_2": "from config"}}},
        lines=["there is no SSM here"],
        before="Parameters: { A: { Type: 'AWS::SSM::Parameter::Value<String>', Default: /a/b }, "
        "B: { Type: String } }",
        files={"samconfig.toml": "[default.global.parameters]\nparameter_overrides = \"B='from config'\"\n"},
    ),
    "queues": Case(
        f"""
  Jobs: {{ Type: AWS::SQS::Queue, Properties: {{ QueueName: !Ref Name }} }}
  Plain: {function(FILTERED)}""",
        {"Plain": {}},
        lines=["Plain: Events of Type SQS need a server"],
        before="Parameters: { Name: { Type: String, Default: jobs } }",
    ),
    "routes": Case(
        f"""
  Plain: {function(ROUTED)}""",
        {"Plain": {}},
    ),
    "url": Case(
        f"""
  Plain: {function("FunctionUrlConfig: { AuthType: !Ref Auth, Cors: { AllowOrigins: ['*'] } }")}
  B: {variables("V_1: !GetAtt PlainUrl.FunctionUrl")}""",
        {"Plain": {"FunctionUrlConfig": {"AuthType": "NONE", "InvokeMode": "BUFFERED"}}, "B": {}},
        before="Parameters: { Auth: { Type: String, Default: NONE } }",
    ),
    "values-of-other-types": Case(
        f"Plain: {function('MemorySize: !Ref Size, Tags: { Cost: 42, Live: true }, Tracing: Active')}",
        {"Plain": {"MemorySize": 512}},
        lines=["Properties.Tracing is not supported and passed over"],
        before="Parameters: { Size: { Type: String, Default: '512' } }",
    ),
    "variables-that-lambda-refuses": Case(
        f"Plain: {variables('A: 1, AWS_REGION: eu-west-1, AWS_SECRET_ACCESS_KEY: own, V_1: ')}",
        {"Plain": {"Environment": {"V_1": "", "AWS_REGION": "eu-west-1", "AWS_SECRET_ACCESS_KEY": "own"}}},
        lines=["Variables.A is passed over"],
    ),
}


def checked(template, *options):
    command = [MAYFLY, "up", "--check", "--json", template, *options]
    done = subprocess.run(
        command, cwd=pathlib.Path(template).parent, capture_output=True, text=True, timeout=120
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("name", CHECKED)
def test_check_agrees_with_a_start(name, tmp_path):
    case = CHECKED[name]
    code, found = checked(written(tmp_path, case), *case.options)
    served = {one["FunctionName"]: one for one in found["Functions"] if one["StateReason"] is None}
    assert set(served) == set(case.functions), found
    for function_name, wanted in case.functions.items():
        one = served[function_name]
        assert {key: one.get(key) for key in wanted} == wanted
    failed = {one["FunctionName"]: one["StateReasonCode"] for one in found["Functions"] if one["StateReason"]}
    assert failed == case.failed and code == bool(failed)
    told = [one[key] for one in found["Functions"] for key in ("StateReason", "Installs") if one[key]]
    told += found["Missing"] + found["Notes"]
    for line in case.lines:
        assert any(re.search(line, one) for one in told), (line, told)


def test_check_shows_a_table(tmp_path):
    template = written(tmp_path, CHECKED["routes"])
    done = subprocess.run([MAYFLY, "up", "--check", template], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^function +runtime +state$", done.stdout, re.M)
    assert re.search(r"^Plain +provided.al2023 +served$", done.stdout, re.M)
    assert "REST ServerlessRestApi: GET /a/{id} calls Plain" in done.stdout
    assert "HTTP ServerlessHttpApi: ANY /b calls Plain" in done.stdout


@pytest.mark.parametrize(
    "resources, reason",
    [
        (f"Plain: {function(Condition='Never')}", "no function is left: .*the condition Never does not hold"),
        ("Store: { Type: AWS::S3::Bucket }", "none is an AWS::Serverless::Function"),
        (f"Plain: {function('Layers: [')}", "line"),
    ],
)
def test_check_of_a_template_that_is_none_ends_with_its_reason(resources, reason, tmp_path):
    case = Case(resources, before="Conditions: { Never: !Equals [a, b] }")
    done = subprocess.run(
        [MAYFLY, "up", "--check", written(tmp_path, case)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and not done.stdout
    assert re.search(reason, done.stderr), done.stderr
