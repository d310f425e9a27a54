"""Every operation of Lambda's API, as botocore's model has them: served, or refused by name. The table in
docs/worker-api.md says which."""

import functools
import re

import pytest
from botocore.exceptions import ClientError
from calls import PYTHON, create, zipped
from conftest import ROOT

APP = zipped(app_py="def handler(event, context):\n    return event\n")
ROW = re.compile(r"^\| `(\w+)` \| (served|none|refused) \|(?: (.*))? \|$", re.M)
TABLE = {name: (kind, note) for name, kind, note in ROW.findall((ROOT / "docs/worker-api.md").read_text())}
# Any operation may answer these, which the model lists nowhere.
GENERAL = {"ValidationException", "InvalidRequestContentException"}
ARN = "arn:aws:lambda:us-east-1:000000000000:function:every"
GIVEN = {
    "FunctionName": "every",
    "Qualifier": "live",
    "LayerName": "every",
    "VersionNumber": 1,
    "Resource": ARN,
    "ResourceArn": ARN,
    "Name": "live",
    "FunctionVersion": "1",
    "Principal": "s3.amazonaws.com",
    "Action": "lambda:InvokeFunction",
}
DURABLE = {"DurableConfig": {"ExecutionTimeout": 60}}
# What CreateFunction needs of a function with this code, beside what the model says.
CREATED = {"FunctionName": "another", "Runtime": PYTHON, "Handler": "app.handler", "Code": {"ZipFile": APP}}


def made_up(shape):
    """A value of this shape, with what it needs and no more."""
    match shape.type_name:
        case "structure":
            return {name: GIVEN.get(name, made_up(shape.members[name])) for name in shape.required_members}
        case "list":
            return [made_up(shape.member)]
        case "map":
            return {"key": "value"}
        case "string":
            return shape.enum[0] if shape.enum else "every"
        case "blob":
            return b"{}"
        case "boolean":
            return False
        case _:
            return 1


def test_table_lists_each_operation_of_the_model(client):
    assert set(TABLE) == set(client.meta.service_model.operation_names)
    assert all(note for kind, note in TABLE.values() if kind != "served"), "each says what there is instead"


@pytest.fixture(scope="module")
def every(running):
    client = running.client(parameter_validation=False)
    create(client, "every", APP)
    client.publish_version(FunctionName="every")
    client.create_alias(FunctionName="every", Name="live", FunctionVersion="1")
    client.publish_layer_version(LayerName="every", Content={"ZipFile": APP})
    return client


def test_durable_executions_are_refused_wherever_the_model_has_them(every):
    model = every.meta.service_model
    found = []
    for name in model.operation_names:
        shape = model.operation_model(name).input_shape
        members = [] if "Durable" in name or not shape else [one for one in shape.members if "Durable" in one]
        wanted = {**made_up(shape), **(CREATED if name == "CreateFunction" else {})} if shape else {}
        for member, refused in [(one, one) for one in members] or [(None, name)] * ("Durable" in name):
            given = {member: DURABLE.get(member, made_up(shape.members[member]))} if member else {}
            with pytest.raises(ClientError) as caught:
                every._make_api_call(name, {**wanted, **given})
            error = caught.value.response["Error"]
            assert error["Code"] == "InvalidParameterValueException", (name, member, error)
            assert error["Message"].startswith(f"{refused} is not s"), (name, member, error)
            assert "there are no durable executions" in error["Message"], (name, member, error)
            found.append(member or name)
    assert len(found) >= 15 and {"DurableConfig", "DurableExecutionName"} <= set(found), found


def order(name):
    """Calls that delete come last, and of these the function."""
    return (name == "DeleteFunction", name.startswith("Delete"), name)


def test_each_operation_answers_as_the_table_says(every):
    model = every.meta.service_model
    for name in sorted(TABLE, key=order):
        kind, _ = TABLE[name]
        operation = model.operation_model(name)
        wanted = made_up(operation.input_shape) if operation.input_shape else {}
        code, text = None, ""
        try:
            every._make_api_call(name, wanted)
        except ClientError as error:
            code, text = error.response["Error"]["Code"], error.response["Error"]["Message"]
        modelled = {
            shape.metadata.get("error", {}).get("code", shape.name) for shape in operation.error_shapes
        }
        assert code is None or code in modelled | GENERAL, (name, code, text)
        assert (kind == "refused") == text.startswith(f"{name} is not served here: "), (name, code, text)
        if kind == "none" and code:
            assert code.endswith("NotFoundException") or "there is no" in text, (name, code, text)


def test_absent_features_are_refused_by_name(running):
    client = running.client(parameter_validation=False)
    create(client, "alone", APP)
    with pytest.raises(client.exceptions.InvalidParameterValueException, match="DurableExecutionName is not"):
        client.invoke(FunctionName="alone", InvocationType="Event", DurableExecutionName="a")
    concurrent = {"Variables": {"AWS_LAMBDA_MAX_CONCURRENCY": "4"}}
    for settings, text in [
        ({"DurableConfig": {"ExecutionTimeout": 60}}, "DurableConfig is not supported here: "),
        ({"DurableConfig": {}}, "DurableConfig is not supported here: "),
        ({"CapacityProviderConfig": {}}, "CapacityProviderConfig' must name its provider"),
        ({"PublishTo": "LATEST_PUBLISHED"}, "PublishTo is not supported here"),
        ({"Environment": concurrent}, "AWS_LAMBDA_MAX_CONCURRENCY.*CapacityProviderConfig"),
    ]:
        with pytest.raises(client.exceptions.InvalidParameterValueException, match=text):
            create(client, "refused", APP, **settings)
    with pytest.raises(ClientError, match="missing field `TenantIsolationMode`"):
        create(client, "refused", APP, TenancyConfig={})
    text = "DurableConfig is not supported here: "
    for durable in [{"ExecutionTimeout": 60}, {}]:
        with pytest.raises(client.exceptions.InvalidParameterValueException, match=text):
            client.update_function_configuration(FunctionName="alone", DurableConfig=durable)
    for publish in [client.publish_version, functools.partial(client.update_function_code, ZipFile=APP)]:
        with pytest.raises(client.exceptions.InvalidParameterValueException, match="PublishTo is not s"):
            publish(FunctionName="alone", PublishTo="LATEST_PUBLISHED")
    client.delete_function(FunctionName="alone")
