"""The calls that Terraform's provider of AWS makes for its resources, in its order: create, read, the plan's
reads, update, delete. What was created reads back equal, also from a worker that starts again."""

import json

import pytest
from calls import create, zipped
from conftest import Worker

APP = zipped(app_py="def handler(event, context):\n    return event\n")
OTHER = zipped(app_py="def handler(event, context):\n    return 'other'\n")
FUNCTION = "arn:aws:lambda:us-east-1:000000000000:function:"


@pytest.fixture
def states(tmp_path):
    """Starts a worker on the same state, as often as it is called."""
    return lambda: Worker("--state", str(tmp_path))


def bare(answer):
    return {key: value for key, value in answer.items() if key != "ResponseMetadata"}


def missing(call, **arguments):
    with pytest.raises(Exception) as caught:
        call(**arguments)
    response = caught.value.response
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 404
    return response["Error"]["Code"]


def of_function(client, name):
    """Reads of aws_lambda_function."""
    function = client.get_function(FunctionName=name)
    versions = client.list_versions_by_function(FunctionName=name, MaxItems=50)["Versions"]
    assert versions[0] == function["Configuration"] and versions[0]["Version"] == "$LATEST"
    signing = bare(client.get_function_code_signing_config(FunctionName=name))
    assert signing == {"FunctionName": name}
    recursion = client.get_function_recursion_config(FunctionName=name)["RecursiveLoop"]
    runtime = bare(client.get_runtime_management_config(FunctionName=name))
    assert runtime == {"UpdateRuntimeOn": "Auto", "FunctionArn": FUNCTION + name}
    concurrency = bare(client.get_function_concurrency(FunctionName=name))
    assert concurrency == function.get("Concurrency", {})
    tags = client.list_tags(Resource=FUNCTION + name)["Tags"]
    assert tags == function.get("Tags", {})
    return bare(function) | {"versions": versions, "recursion": recursion}


def test_function(states):
    with states() as running:
        client = running.client()
        made = create(
            client,
            "tf",
            APP,
            Description="d",
            MemorySize=256,
            Timeout=7,
            Environment={"Variables": {"STAGE": "b"}},
            EphemeralStorage={"Size": 600},
            Architectures=["x86_64"],
            Tags={"team": "a", "stage": "test"},
            Publish=True,
        )
        client.put_function_concurrency(FunctionName="tf", ReservedConcurrentExecutions=2)
        client.put_function_recursion_config(FunctionName="tf", RecursiveLoop="Allow")
        client.put_runtime_management_config(FunctionName="tf", UpdateRuntimeOn="Auto")
        client.get_waiter("function_active_v2").wait(FunctionName="tf")
        read = of_function(client, "tf")
        configuration = read["Configuration"]
        same = set(bare(made)) - {"FunctionArn", "Version", "RevisionId", "LastModified"}
        assert {key: configuration[key] for key in same} == {key: made[key] for key in same}
        assert read["Tags"] == {"team": "a", "stage": "test"} and read["recursion"] == "Allow"
        assert read["Concurrency"] == {"ReservedConcurrentExecutions": 2}
        assert of_function(client, "tf") == read, "a plan without changes"
    with states() as running:
        client = running.client()
        assert of_function(client, "tf") == read, "a plan after a restart"
        client.tag_resource(Resource=FUNCTION + "tf", Tags={"stage": "real"})
        client.untag_resource(Resource=FUNCTION + "tf", TagKeys=["team"])
        client.update_function_configuration(FunctionName="tf", Timeout=9, Description="e")
        client.get_waiter("function_updated_v2").wait(FunctionName="tf")
        client.update_function_code(FunctionName="tf", ZipFile=OTHER)
        client.get_waiter("function_updated_v2").wait(FunctionName="tf")
        client.publish_version(FunctionName="tf")
        client.delete_function_concurrency(FunctionName="tf")
        client.put_function_recursion_config(FunctionName="tf", RecursiveLoop="Terminate")
        read = of_function(client, "tf")
        assert (read["Configuration"]["Timeout"], read["Configuration"]["Description"]) == (9, "e")
        assert read["Tags"] == {"stage": "real"} and "Concurrency" not in read
        assert [version["Version"] for version in read["versions"]] == ["$LATEST", "1", "2"]
        client.delete_function(FunctionName="tf")
        assert missing(client.get_function, FunctionName="tf") == "ResourceNotFoundException"


def statements(client, **of):
    policy = client.get_policy(**of)
    return json.loads(policy["Policy"])["Statement"], policy["RevisionId"]


def test_permission(states):
    of = {"FunctionName": "tf", "Qualifier": "live"}
    bucket = {
        "StatementId": "bucket",
        "Action": "lambda:InvokeFunction",
        "Principal": "s3.amazonaws.com",
        "SourceArn": "arn:aws:s3:::b",
        "SourceAccount": "123456789012",
    }
    page = {
        "StatementId": "page",
        "Action": "lambda:InvokeFunctionUrl",
        "Principal": "*",
        "FunctionUrlAuthType": "NONE",
    }
    with states() as running:
        client = running.client()
        create(client, "tf", APP, Publish=True)
        client.create_alias(FunctionName="tf", Name="live", FunctionVersion="1")
        assert missing(client.get_policy, **of) == "ResourceNotFoundException"
        made = [json.loads(client.add_permission(**of, **one)["Statement"]) for one in (bucket, page)]
        assert made[0] == {
            "Sid": "bucket",
            "Effect": "Allow",
            "Principal": {"Service": "s3.amazonaws.com"},
            "Action": "lambda:InvokeFunction",
            "Resource": FUNCTION + "tf:live",
            "Condition": {
                "ArnLike": {"AWS:SourceArn": "arn:aws:s3:::b"},
                "StringEquals": {"AWS:SourceAccount": "123456789012"},
            },
        }
        assert made[1]["Condition"] == {"StringEquals": {"lambda:FunctionUrlAuthType": "NONE"}}
        with pytest.raises(client.exceptions.ResourceConflictException):
            client.add_permission(**of, **page)
        read, revision = statements(client, **of)
        assert read == made
        assert missing(client.get_policy, FunctionName="tf") == "ResourceNotFoundException"
    with states() as running:
        client = running.client()
        assert statements(client, **of) == (made, revision), "a plan after a restart"
        with pytest.raises(client.exceptions.PreconditionFailedException):
            client.remove_permission(**of, StatementId="page", RevisionId="other")
        client.remove_permission(**of, StatementId="page", RevisionId=revision)
        assert statements(client, **of)[0] == made[:1]
        assert missing(client.remove_permission, **of, StatementId="page") == "ResourceNotFoundException"
        client.remove_permission(**of, StatementId="bucket")
        assert missing(client.get_policy, **of) == "ResourceNotFoundException"
        whole = {"Version": "2012-10-17", "Statement": made}
        client.put_resource_policy(ResourceArn=FUNCTION + "tf:live", Policy=json.dumps(whole))
        assert json.loads(client.get_resource_policy(ResourceArn=FUNCTION + "tf:live")["Policy"]) == whole
        client.delete_alias(FunctionName="tf", Name="live")
        client.create_alias(FunctionName="tf", Name="live", FunctionVersion="1")
        assert missing(client.get_policy, **of) == "ResourceNotFoundException", "it went with its alias"


def test_alias(states):
    of = {"FunctionName": "tf", "Name": "live"}
    with states() as running:
        client = running.client()
        create(client, "tf", APP, Publish=True)
        made = bare(client.create_alias(**of, FunctionVersion="1", Description="d"))
        assert bare(client.get_alias(**of)) == made
        # aws_lambda_provisioned_concurrency_config is refused.
        provisioned = {"FunctionName": "tf", "Qualifier": "live"}
        with pytest.raises(client.exceptions.InvalidParameterValueException, match="--keep-alive"):
            client.put_provisioned_concurrency_config(**provisioned, ProvisionedConcurrentExecutions=1)
        reading = client.get_provisioned_concurrency_config
        assert missing(reading, **provisioned) == "ProvisionedConcurrencyConfigNotFoundException"
    with states() as running:
        client = running.client()
        assert bare(client.get_alias(**of)) == made
        assert client.list_aliases(FunctionName="tf")["Aliases"] == [made]
        changed = bare(client.update_alias(**of, FunctionVersion="$LATEST", Description="e"))
        assert bare(client.get_alias(**of)) == changed and changed["FunctionVersion"] == "$LATEST"
        client.delete_alias(**of)
        assert missing(client.get_alias, **of) == "ResourceNotFoundException"


def test_layer_version(states):
    with states() as running:
        client = running.client()
        made = client.publish_layer_version(
            LayerName="tf",
            Description="d",
            LicenseInfo="MIT",
            CompatibleRuntimes=["python3.11"],
            CompatibleArchitectures=["x86_64"],
            Content={"ZipFile": APP},
        )
        of = {"LayerName": "tf", "VersionNumber": made["Version"]}
        assert bare(client.get_layer_version(**of)) == bare(made)
        permission = {"StatementId": "all", "Action": "lambda:GetLayerVersion", "Principal": "*"}
        added = client.add_layer_version_permission(**of, **permission, OrganizationId="o-1")
        statement = json.loads(added["Statement"])
        assert statement["Resource"] == made["LayerVersionArn"]
        assert statement["Condition"] == {"StringEquals": {"aws:PrincipalOrgID": "o-1"}}
    with states() as running:
        client = running.client()
        assert bare(client.get_layer_version(**of)) == bare(made)
        assert bare(client.get_layer_version_by_arn(Arn=made["LayerVersionArn"])) == bare(made)
        policy = client.get_layer_version_policy(**of)
        assert json.loads(policy["Policy"])["Statement"] == [statement]
        assert policy["RevisionId"] == added["RevisionId"]
        client.remove_layer_version_permission(**of, StatementId="all")
        assert missing(client.get_layer_version_policy, **of) == "ResourceNotFoundException"
        client.delete_layer_version(**of)
        assert missing(client.get_layer_version, **of) == "ResourceNotFoundException"


def test_function_url(states):
    cors = {"AllowOrigins": ["https://a.example"], "AllowMethods": ["GET"], "MaxAge": 60}
    with states() as running:
        client = running.client()
        create(client, "tf", APP)
        made = client.create_function_url_config(FunctionName="tf", AuthType="NONE", Cors=cors)
        read = bare(client.get_function_url_config(FunctionName="tf"))
        assert {key: read[key] for key in bare(made)} == bare(made) and read["Cors"] == cors
        client.add_permission(
            FunctionName="tf",
            StatementId="FunctionURLAllowPublicAccess",
            Action="lambda:InvokeFunctionUrl",
            Principal="*",
            FunctionUrlAuthType="NONE",
        )
    with states() as running:
        client = running.client()
        again = bare(client.get_function_url_config(FunctionName="tf"))
        again["FunctionUrl"] = read["FunctionUrl"]  # its port is the worker's
        assert again == read
        client.update_function_url_config(FunctionName="tf", AuthType="AWS_IAM", InvokeMode="RESPONSE_STREAM")
        read = bare(client.get_function_url_config(FunctionName="tf"))
        assert (read["AuthType"], read["InvokeMode"], read["Cors"]) == ("AWS_IAM", "RESPONSE_STREAM", cors)
        assert client.list_function_url_configs(FunctionName="tf")["FunctionUrlConfigs"] == [read]
        client.delete_function_url_config(FunctionName="tf")
        assert missing(client.get_function_url_config, FunctionName="tf") == "ResourceNotFoundException"


def test_event_invoke_config(states):
    of = {"FunctionName": "tf", "Qualifier": "live"}
    with states() as running:
        client = running.client()
        create(client, "tf", APP, Publish=True)
        client.create_alias(FunctionName="tf", Name="live", FunctionVersion="1")
        update = client.update_function_event_invoke_config
        assert missing(update, **of, MaximumRetryAttempts=1) == "ResourceNotFoundException"
        made = client.put_function_event_invoke_config(
            **of,
            MaximumRetryAttempts=1,
            MaximumEventAgeInSeconds=90,
            DestinationConfig={"OnFailure": {"Destination": FUNCTION + "tf"}},
        )
        assert made["FunctionArn"] == FUNCTION + "tf:live"
        assert bare(client.get_function_event_invoke_config(**of)) == bare(made)
        whole = client.get_function_event_invoke_config
        assert missing(whole, FunctionName="tf") == "ResourceNotFoundException"
    with states() as running:
        client = running.client()
        assert bare(client.get_function_event_invoke_config(**of)) == bare(made)
        changed = client.update_function_event_invoke_config(**of, MaximumRetryAttempts=0)
        assert (changed["MaximumRetryAttempts"], changed["MaximumEventAgeInSeconds"]) == (0, 90)
        listed = client.list_function_event_invoke_configs(FunctionName="tf")
        assert listed["FunctionEventInvokeConfigs"] == [bare(changed)]
        client.delete_function_event_invoke_config(**of)
        assert missing(client.get_function_event_invoke_config, **of) == "ResourceNotFoundException"
