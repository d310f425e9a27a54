"""Layers that others publish, in templates as their users write them: installed from PyPI, left out, or given
by the operator."""

import json

import pytest
from calls import PYTHON, invoke, open_folder
from conftest import Worker

# As users of each version write it.
SOURCES = {
    "AWSLambdaPowertoolsPythonV3-python313-x86_64": """
from aws_lambda_powertools import Logger, Metrics, Tracer
from aws_lambda_powertools.event_handler import APIGatewayRestResolver
from aws_lambda_powertools.utilities.parser import BaseModel, event_parser
from aws_lambda_powertools.utilities.typing import LambdaContext

logger, tracer, metrics = Logger(service="shop"), Tracer(), Metrics(namespace="shop", service="shop")
app = APIGatewayRestResolver()

class Order(BaseModel):
    id: int

@app.get("/hello/<name>")
def hello(name):
    return {"hello": name}

@tracer.capture_method
def read(event):
    return Order(**event)

@metrics.log_metrics(capture_cold_start_metric=True)
@tracer.capture_lambda_handler
@logger.inject_lambda_context
def handler(event, context: LambdaContext):
    logger.info("asked")
    if "httpMethod" in event:
        return app.resolve(event, context)
    return {"id": read(event).id}
""",
    "AWSLambdaPowertoolsPythonV2-Arm64": """
from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.parser import BaseModel, parse

logger = Logger(service="shop")

class Order(BaseModel):
    id: int

@logger.inject_lambda_context(log_event=True)
def handler(event, context):
    return {"id": parse(event=event, model=Order).id}
""",
    "AWSLambdaPowertoolsPython": """
from aws_lambda_powertools import Logger, Tracer
from aws_lambda_powertools.utilities.validation import validator

@Tracer().capture_lambda_handler
@validator(inbound_schema={"type": "object", "required": ["id"]})
@Logger(service="shop").inject_lambda_context
def handler(event, context):
    return {"id": int(event["id"])}
""",
}
INSIGHTS = "arn:aws:lambda:us-east-1:580247275435:layer:LambdaInsightsExtension:38"
TOOLS = "arn:aws:lambda:eu-west-1:123456789012:layer:Tools:3"
TOOL = """
import subprocess
def handler(event, context):
    return subprocess.run(["tool"], capture_output=True, text=True, check=True).stdout
"""


def id_of(layer):
    return layer.replace("-", "")[-20:]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    place = open_folder(tmp_path_factory, "layers")
    function = {"Type": "AWS::Serverless::Function"}
    common = {"Runtime": PYTHON, "Handler": "index.handler", "MemorySize": 256, "Timeout": 30}
    resources = {
        id_of(name): {
            **function,
            "Properties": {
                **common,
                "InlineCode": source,
                "Layers": [f"arn:aws:lambda:eu-west-1:017000801446:layer:{name}:7"],
            },
        }
        for name, source in SOURCES.items()
    }
    given = {**common, "InlineCode": TOOL, "Layers": [TOOLS, INSIGHTS]}
    resources["Given"] = {**function, "Properties": given}
    (place / "tools/bin").mkdir(parents=True)
    (place / "tools/bin/tool").write_text("#!/bin/sh\nprintf 'of the layer'\n")
    (place / "tools/bin/tool").chmod(0o755)
    (place / "template.json").write_text(json.dumps({"Resources": resources}))
    options = ["--strict", "--layer", f"Tools={place / 'tools'}"]
    with Worker(place / "template.json", *options) as running:
        yield running


@pytest.mark.parametrize("name", SOURCES)
def test_packages_of_a_public_layer_come_from_pypi(running, name):
    assert invoke(running.client(), id_of(name), {"id": 7}) == ({"id": 7}, None)


def test_a_layer_that_the_operator_gives_replaces_one_of_another_account(running):
    assert invoke(running.client(), "Given") == ("of the layer", None)
