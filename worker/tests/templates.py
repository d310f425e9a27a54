"""Small templates as people write them, each with what the worker must make of it."""

import dataclasses
import pathlib

# The host's own Python, by Lambda's name.
PYTHON = pathlib.Path("/usr/bin/python3").resolve().name
HOST = "Runtime: provided.al2023, "
RAW = "Runtime: provided.al2023, Handler: h, CodeUri: code"


@dataclasses.dataclass
class Case:
    """A template, the configurations that its functions have, and lines of the log."""

    resources: str
    functions: dict = dataclasses.field(default_factory=dict)
    failed: dict = dataclasses.field(default_factory=dict)
    lines: list = dataclasses.field(default_factory=list)
    before: str = ""
    files: dict = dataclasses.field(default_factory=dict)
    options: list = dataclasses.field(default_factory=list)


def function(properties="", **more):
    """A function in one line."""
    attributes = "".join(f", {key}: {value}" for key, value in more.items())
    kind = "AWS::Serverless::Function"
    return f"{{ Type: {kind}{attributes}, Properties: {{ {RAW}{', ' if properties else ''}{properties} }} }}"


def variables(text):
    return function(f"Environment: {{ Variables: {{ {text} }} }}")


def having(**values):
    """A function's configuration with these variables."""
    return {"Environment": {"Variables": values}}


ARN = "arn:aws:lambda:us-east-1:000000000000:function:"
QUEUE = "arn:aws:sqs:us-east-1:000000000000:"
PLAIN = f"Plain: {function()}"
TENANCY = "TenancyConfig: { TenantIsolationMode: PER_TENANT }"
EVERY = "{ Schedule: rate(1 hour) }"
NEEDS_QUEUES = "Events of Type SQS need a server"

CASES = {
    "alias-ref": Case(
        f"""
  Plain: {function("AutoPublishAlias: live")}
  B: {variables("V_1: !Ref Plain.Alias")}""",
        {"Plain": {}, "B": having(V_1=f"{ARN}Plain:live")},
    ),
    "arm64-beside": Case(
        f"""
  {PLAIN}
  Arm: {function("Architectures: [arm64]")}
  Python: {function(f"Runtime: {PYTHON}, Architectures: [arm64]").replace(HOST, "")}""",
        {"Plain": {}, "Python": {"Architectures": ["x86_64"]}},
        {"Arm": "InvalidConfiguration"},
        ["Python.Properties.Architectures: this host is no arm64"],
    ),
    "cdk": Case(
        """
  Fn9270CBC0:
    Type: AWS::Lambda::Function
    Properties: { Code: { S3Bucket: !Sub 'a-${AWS::Region}', S3Key: a.zip }, Handler: h, Runtime: provided }
    Metadata: { 'aws:asset:path': asset.abc, 'aws:asset:property': Code }""",
        {"Fn9270CBC0": {"Handler": "h"}},
        files={"asset.abc/app.py": ""},
    ),
    "code-is-file": Case(
        f"Plain: {function().replace('CodeUri: code', 'CodeUri: code/app.py')}", {"Plain": {"CodeSize": 2}}
    ),
    "codeuri-in-bucket": Case(
        f"""
  {PLAIN}
  Far: {function().replace("CodeUri: code", "CodeUri: { Bucket: b, Key: k.zip }")}
  Farther: {function().replace("CodeUri: code", "CodeUri: s3://b/k.zip")}""",
        {"Plain": {}},
        {"Far": "InvalidZipFileException", "Farther": "InvalidZipFileException"},
        ["Far is not served: .* there is no bucket b here"],
    ),
    "conditions": Case(
        f"""
  Plain:
    Type: AWS::Serverless::Function
    Properties:
      {{ {RAW}, MemorySize: !If [IsLocal, 256, 1024], Timeout: !If [IsProd, 30, 60], Environment:
        {{ Variables: {{ V_URL: !If [IsLocal, 'http://here', 'https://there'],
          V_SECOND: !Select [1, !Split [',', 'a,b,c']],
          V_B64: !Base64 hello, V_AZ: !Select [0, !GetAZs ''] }} }} }}
  Prod: {function(Condition="IsProd")}""",
        {
            "Plain": {
                "MemorySize": 256,
                "Timeout": 60,
                **having(V_URL="http://here", V_SECOND="b", V_B64="aGVsbG8=", V_AZ="us-east-1a"),
            }
        },
        lines=["Prod: the condition IsProd does not hold"],
        before="""
Parameters: { Env: { Type: String, Default: local } }
Conditions: { IsLocal: !Equals [!Ref Env, local], IsProd: !Not [!Condition IsLocal] }""",
    ),
    "duplicate-key": Case(
        f"""
  Other: {{ Type: AWS::S3::Bucket, Properties: {{ BucketName: a, BucketName: b }} }}
  Plain: {function("Timeout: 4, Timeout: 5")}""",
        {"Plain": {"Timeout": 5}},
    ),
    "events-null": Case(f"Plain: {function('Events: ')}", {"Plain": {}}),
    "find-in-map": Case(
        f"Plain: {variables('V_1: !FindInMap [M, !Ref AWS::Region, k], V_2: !FindInMap [M, elsewhere, k]')}",
        {"Plain": having(V_1="v")},
        lines=["V_2: !FindInMap M, elsewhere, k: not in Mappings"],
        before="Mappings: { M: { us-east-1: { k: v } } }",
    ),
    "for-each": Case(
        f"""
  Fn::ForEach::Each: [Word, !Ref Words,
    {{ 'F${{Word}}': {variables("V_W: !Ref Word, V_S: !Sub '${Word}!'")} }}]""",
        {"Fred": having(V_W="red", V_S="red!"), "Fblue": having(V_W="blue", V_S="blue!")},
        before="Parameters: { Words: { Type: CommaDelimitedList, Default: 'red, blue' } }",
    ),
    "function-name-by-sub": Case(
        f"""
  Worker: {function("FunctionName: !Sub '${Stage}-worker'")}
  Caller: {variables("V_NAME: !Ref Worker, V_ARN: !GetAtt Worker.Arn, V_SUB: !Sub 'x/${Worker}'")}""",
        {
            "dev-worker": {},
            "Caller": having(V_NAME="dev-worker", V_ARN=f"{ARN}dev-worker", V_SUB="x/dev-worker"),
        },
        before="Parameters: { Stage: { Type: String, Default: dev } }",
    ),
    "function-url": Case(
        f"""
  Plain: {function("FunctionUrlConfig: { AuthType: !Ref A, Cors: { AllowOrigins: ['*'] } }")}
  B: {variables("V_1: !GetAtt PlainUrl.FunctionUrl")}""",
        {"Plain": {}, "B": having(V_1="PlainUrl.FunctionUrl")},
        lines=["V_1: there is no PlainUrl.FunctionUrl here"],
        before="Parameters: { A: { Type: String, Default: NONE } }",
    ),
    "image-not-built": Case(
        f"""
  {PLAIN}
  Img: {{ Type: AWS::Serverless::Function, Metadata: {{ Dockerfile: D }}, Properties:
    {{ PackageType: Image }} }}""",
        {"Plain": {}},
        {"Img": "InvalidImage"},
        ["Img is not served: .*ImageUri is needed"],
    ),
    "generated-names": Case(
        f"""
  Plain: {variables("V_1: !Ref ServerlessRestApi, V_2: !Ref PlainRole, V_3: !GetAtt PlainRole.Arn")}""",
        {
            "Plain": having(
                V_1="ServerlessRestApi", V_2="PlainRole", V_3="arn:aws:iam::000000000000:role/PlainRole"
            )
        },
    ),
    "layers": Case(
        f"""
  {PLAIN}
  Libs: {{ Type: AWS::Lambda::LayerVersion, Properties: {{ LayerName: libs, Content: layer }} }}
  Lost: {{ Type: AWS::Serverless::LayerVersion, Properties: {{ ContentUri: l.zip }} }}
  With: {function("Layers: [!Ref Libs]")}
  Without: {function("Layers: [!Ref Lost]")}
  Foreign: {function("Layers: ['arn:aws:lambda:us-east-1:123456789012:layer:Tools:3']")}""",
        {"Plain": {}, "With": {}},
        {"Without": "DependencyError", "Foreign": "DependencyError"},
        ["Without is not served: layer Lost: ContentUri: .*l.zip: No such file"],
        files={"layer/python/l.py": "X = 1"},
    ),
    "length-tojson": Case(
        f"Plain: {variables('V_1: { Fn::ToJsonString: { a: 1 } }, V_2: { Fn::Length: [1, 2] }')}",
        {"Plain": having(V_1='{"a":1}', V_2="2")},
    ),
    "list-parameter": Case(
        f"""
  Plain: {variables("V_S: !Join ['+', !Ref P]").replace(RAW, f"{RAW}, Architectures: !Ref L")}""",
        {"Plain": having(V_S="a+b")},
        before="Parameters: { P: { Type: CommaDelimitedList, Default: 'a,b' }, L: { Type: "
        "CommaDelimitedList, Default: x86_64 } }",
    ),
    "merge-keys": Case(
        f"""
  Plain: {{ Type: AWS::Serverless::Function, Properties: &common {{ {RAW}, Timeout: 33 }} }}
  Again: {{ Type: AWS::Serverless::Function, Properties: {{ <<: *common, MemorySize: 256 }} }}""",
        {"Plain": {"Timeout": 33}, "Again": {"Timeout": 33, "MemorySize": 256}},
    ),
    "nested": Case(
        f"""
  {PLAIN}
  Part: {{ Type: AWS::Serverless::Application, Properties:
    {{ Location: part/t.yaml, Parameters: {{ Word: given }} }} }}
  Outer: {variables("V_O: !GetAtt Part.Outputs.Answer")}
  Far: {{ Type: AWS::Serverless::Application, Properties: {{ Location: {{ ApplicationId: x }} }} }}""",
        {"Plain": {}, "Inner": having(V_W="given"), "Part-like": {}, "Outer": having(V_O="given!")},
        lines=["Resources.Far: its template is in a repository"],
        files={
            "part/t.yaml": f"""
Parameters: {{ Word: {{ Type: String }} }}
Resources:
  Inner: {variables("V_W: !Ref Word")}
  Other: {function("FunctionName: Part-like")}
Outputs: {{ Answer: {{ Value: !Sub '${{Word}}!' }} }}""",
            "part/code/bootstrap": "#",
        },
    ),
    "no-codeuri": Case(f"Here: {function().replace(', CodeUri: code', '')}", {"Here": {}}),
    "own-variables": Case(
        f"Plain: {variables('V_NULL: , V_LIST: [a], AWS_ACCESS_KEY_ID: dummy, AWS_REGION: eu-west-1, A: 1')}",
        {"Plain": having(V_NULL="", V_LIST="", AWS_ACCESS_KEY_ID="dummy", AWS_REGION="eu-west-1")},
        lines=["Variables.A is passed over", "V_LIST: .* is no text", "AWS_REGION is set as it is"],
    ),
    "parameter-without-default": Case(
        f"Plain: {variables('V_B: !Ref BucketName, V_C: x')}",
        {"Plain": having(V_B="BucketName", V_C="x")},
        lines=["the parameter BucketName has no Default"],
        before="Parameters: { BucketName: { Type: String } }",
    ),
    "parameter-overrides": Case(
        f"Plain: {variables('V_A: !Ref Aa, V_B: !Ref Bb, V_C: c')}",
        {"Plain": having(V_A="one two", V_B="config", V_C="file")},
        lines=["there is no parameter Cc"],
        before="Parameters: { Aa: { Type: String, Default: a }, Bb: { Type: String, Default: b } }",
        files={
            "samconfig.toml": '[default.global.parameters]\nparameter_overrides = "Aa=config Bb=config"\n',
            "env.json": '{"Plain": {"V_C": "file"}}',
        },
        options=["--parameter-overrides", "Aa='one two' Cc=3", "--env-vars", "env.json"],
    ),
    "pseudo": Case(
        f"Plain: {variables('V_1: !Ref AWS::StackName, V_2: !Ref AWS::NotificationARNs')}",
        {"Plain": having(V_1="mayfly", V_2="")},
    ),
    "queues": Case(
        f"""
  Queue: {{ Type: AWS::SQS::Queue, Properties: {{ QueueName: !Sub '${{AWS::StackName}}-orders' }} }}
  Plain: {function("Events: { Come: { Type: SQS, Properties: { Queue: !GetAtt Queue.Arn } } }")}
  Filters: {
            function(
                "Events: { Come: { Type: SQS, Properties: { Queue: !GetAtt Queue.Arn, "
                "FilterCriteria: {} } } }"
            )
        }
  Sends: {variables("V_1: !GetAtt Queue.Arn, V_2: !GetAtt Queue.QueueName")}""",
        {"Plain": {}, "Filters": {}, "Sends": having(V_1=f"{QUEUE}mayfly-orders", V_2="mayfly-orders")},
        lines=[f"Plain: {NEEDS_QUEUES}", f"Filters: {NEEDS_QUEUES}"],
    ),
    "resolve-dynamic": Case(
        f"""
  Plain: {variables("V_S: '{{resolve:ssm:/a/b:1}}', V_P: !Ref P")}""",
        {"Plain": having(V_S="{{resolve:ssm:/a/b:1}}", V_P="/a/b")},
        lines=["V_S: there are no secrets", "Parameters.P: there is no SSM here"],
        before="Parameters: { P: { Type: 'AWS::SSM::Parameter::Value<String>', Default: /a/b } }",
    ),
    "scalars": Case(
        f"""
  Plain: {
            variables(
                "V_A: 012345678901, V_B: 0123, V_C: yes, V_D: 3.10, V_E: 1e3, V_F: 0x1F, V_G: 12_000, "
                "V_H: 2024-01-01, V_I: null, V_J: on, V_K: 1:30, V_M: !Ref Account, V_N: !Sub '${Account}', "
                "V_O: 0o17, V_P: .5, V_Q: True"
            )
        }""",
        {
            "Plain": having(
                V_A="012345678901",
                V_B="83",
                V_C="true",
                V_D="3.1",
                V_E="1e3",
                V_F="31",
                V_G="12000",
                V_H="2024-01-01",
                V_I="",
                V_J="true",
                V_K="90",
                V_M="012345678901",
                V_N="012345678901",
                V_O="0o17",
                V_P="0.5",
                V_Q="true",
            )
        },
        before="Parameters: { Account: { Type: String, Default: 012345678901 } }",
    ),
    "string-numbers": Case(
        f"""
  Plain: {function("MemorySize: !Ref Memory, Timeout: '7', Tags: { Cost: 42, Live: true }")}""",
        {"Plain": {"MemorySize": 256, "Timeout": 7}},
        before="Parameters: { Memory: { Type: Number, Default: '256' } }",
    ),
    "tenants": Case(
        f"""
  Tenants: {function(TENANCY)}
  Queued: {function(f"{TENANCY}, Events: {{ Every: {{ Type: Schedule, Properties: {EVERY} }} }}")}
  Url: {function(f"{TENANCY}, FunctionUrlConfig: {{ AuthType: NONE }}")}
  Snap: {function(f"{TENANCY}, SnapStart: {{ ApplyOn: PublishedVersions }}")}
  Mode: {function("TenancyConfig: { TenantIsolationMode: ALL }")}
  None: {function("TenancyConfig: {}")}""",
        {name: {"TenancyConfig": {"TenantIsolationMode": "PER_TENANT"}} for name in ["Tenants", "Queued"]},
        dict.fromkeys(["Url", "Snap", "Mode", "None"], "InvalidConfiguration"),
        [
            "Queued.Properties.Events.Every: it is not served: it names no tenant",
            "Url is not served: .*FunctionUrlConfig is not supported for functions with TenancyConfig",
            "Snap is not served: .*SnapStart is not supported for functions with TenancyConfig",
            "Mode is not served: .*'ALL' and must be PER_TENANT",
            "None is not served: .*TenantIsolationMode",
        ],
    ),
    "durable-beside": Case(
        f"""
  {PLAIN}
  Durable: {function("DurableConfig: { ExecutionTimeout: 3600, RetentionPeriodInDays: 1 }")}
  Empty: {function("DurableConfig: {}")}""",
        {"Plain": {}},
        dict.fromkeys(["Durable", "Empty"], "InvalidConfiguration"),
        [
            f"{name} is not served: .*DurableConfig is not supported here: there are no durable executions"
            for name in ["Durable", "Empty"]
        ],
    ),
    "unknown-properties": Case(
        f"Plain: {function('VpcConfig: { SubnetIds: [a] }')}",
        {"Plain": {}},
        lines=["VpcConfig is not supported and passed over"],
    ),
    "wrong-beside": Case(
        f"""
  {PLAIN}
  Small: {function("MemorySize: 1")}
  Old: {function().replace("provided.al2023", "cobol85")}
  Large: {function("MemorySize: 10240")}""",
        {"Plain": {}},
        {"Small": "InvalidConfiguration", "Old": "InvalidRuntime", "Large": "InvalidConfiguration"},
        ["Small is not served: .*'MemorySize' is '1'", "Old is not served", "Large is not served"],
    ),
}
