"""Versions, aliases and layers as boto3 sees them; the reload of a template with them."""

import concurrent.futures
import json
import signal
import urllib.request

import pytest
from calls import PYTHON, create, invoke, zipped
from conftest import Worker

APP = """
import os

try:
    import shared
except ImportError:
    shared = None
def handler(event, context):
    return {
        "text": "%s",
        "version": [context.function_version, os.environ["AWS_LAMBDA_FUNCTION_VERSION"]],
        "arn": context.invoked_function_arn.rsplit("function:", 1)[1],
        "shared": shared and shared.TEXT,
        "opt": sorted(os.listdir("/opt")),
    }
"""


def app(text):
    return zipped(app_py=APP % text)


def error_of(call, **named):
    with pytest.raises(Exception) as caught:
        call(**named)
    return caught.value.response["Error"]["Code"]


def text_of(client, name, **named):
    answer, error = invoke(client, name, **named)
    assert error is None, answer
    return answer["text"]


def test_version_is_immutable_and_an_alias_moves(client):
    create(client, "kept", app("one"), Description="d")
    first = client.publish_version(FunctionName="kept", Description="the first")
    assert (first["Version"], first["Description"]) == ("1", "the first")
    assert first["FunctionArn"].endswith(":function:kept:1")
    again = client.publish_version(FunctionName="kept")
    assert again["Version"] == "1", "nothing has changed since"
    client.create_alias(FunctionName="kept", Name="live", FunctionVersion="1")
    client.update_function_code(FunctionName="kept", ZipFile=app("two"))
    second = client.update_function_code(FunctionName="kept", ZipFile=app("three"), Publish=True)
    assert second["Version"] == "2"

    answer, _ = invoke(client, "kept:live")
    assert (answer["text"], answer["version"], answer["arn"]) == ("one", ["1", "1"], "kept:live")
    assert text_of(client, "kept", Qualifier="1") == "one"
    assert text_of(client, first["FunctionArn"]) == "one"
    assert text_of(client, "kept") == text_of(client, "kept", Qualifier="$LATEST") == "three"
    assert client.invoke(FunctionName="kept", Qualifier="live")["ExecutedVersion"] == "1"
    moved = client.update_alias(FunctionName="kept", Name="live", FunctionVersion="2", Description="moved")
    assert text_of(client, "kept", Qualifier="live") == "three"
    assert client.get_alias(FunctionName="kept", Name="live")["RevisionId"] == moved["RevisionId"]

    listed = client.list_versions_by_function(FunctionName="kept")["Versions"]
    assert [version["Version"] for version in listed] == ["$LATEST", "1", "2"]
    everything = [
        function["FunctionArn"]
        for page in client.get_paginator("list_functions").paginate(FunctionVersion="ALL")
        for function in page["Functions"]
    ]
    assert first["FunctionArn"] in everything
    assert [one["Name"] for one in client.list_aliases(FunctionName="kept")["Aliases"]] == ["live"]
    shown = client.get_function(FunctionName="kept", Qualifier="1")["Configuration"]
    assert (shown["Version"], shown["CodeSha256"]) == ("1", first["CodeSha256"])

    assert error_of(client.delete_function, FunctionName="kept", Qualifier="2") == "ResourceConflictException"
    client.delete_function(FunctionName="kept", Qualifier="1")
    assert error_of(client.invoke, FunctionName="kept", Qualifier="1") == "ResourceNotFoundException"
    client.delete_alias(FunctionName="kept", Name="live")
    assert error_of(client.invoke, FunctionName="kept:live") == "ResourceNotFoundException"
    client.delete_function(FunctionName="kept")
    assert error_of(client.invoke, FunctionName="kept", Qualifier="2") == "ResourceNotFoundException"


def test_invalid_version_and_alias_calls_are_refused_by_name(client):
    create(client, "refuses", app("one"), Publish=True)
    alias = {"FunctionName": "refuses", "Name": "live", "FunctionVersion": "1"}
    weights = {"AdditionalVersionWeights": {"1": 0.5}}
    assert error_of(client.create_alias, **alias, RoutingConfig=weights) == "InvalidParameterValueException"
    assert error_of(client.create_alias, **alias | {"FunctionVersion": "7"}) == "ResourceNotFoundException"
    assert error_of(client.create_alias, **alias | {"Name": "12"}) == "InvalidParameterValueException"
    client.create_alias(**alias)
    assert error_of(client.create_alias, **alias) == "ResourceConflictException"
    stale = {"FunctionName": "refuses", "RevisionId": "other"}
    assert error_of(client.publish_version, **stale) == "PreconditionFailedException"
    other = {"FunctionName": "refuses", "CodeSha256": "other"}
    assert error_of(client.publish_version, **other) == "InvalidParameterValueException"
    changed = {"FunctionName": "refuses:1", "MemorySize": 256}
    assert error_of(client.update_function_configuration, **changed) == "InvalidParameterValueException"
    both = {"FunctionName": "refuses:1", "Qualifier": "live"}
    assert error_of(client.invoke, **both) == "InvalidParameterValueException"
    client.delete_function(FunctionName="refuses")


def test_versions_share_the_reservation_and_none_starves(client):
    create(client, "narrow", app("one"), Publish=True, Timeout=60)
    client.put_function_concurrency(FunctionName="narrow", ReservedConcurrentExecutions=1)
    names = ["narrow", "narrow:1"] * 6
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda name: text_of(client, name), names)) == {"one"}
    client.delete_function(FunctionName="narrow")


def layer(client, name, **files):
    return client.publish_layer_version(LayerName=name, Content={"ZipFile": zipped(**files)})[
        "LayerVersionArn"
    ]


def test_layers_are_overlaid_in_order(client):
    one = layer(client, "one", **{"python/shared_py": "TEXT = 'one'", "only_one": "1"})
    two = layer(client, "two", **{f"python/lib/{PYTHON}/site-packages/late_py": "", "only_two": "2"})
    three = layer(client, "two", **{"python/shared_py": "TEXT = 'three'", "only_three": "3"})
    assert one.endswith(":layer:one:1") and three.endswith(":layer:two:2")
    made = create(client, "layered", app("x"), Layers=[one, three])
    assert [known["Arn"] for known in made["Layers"]] == [one, three]
    answer, _ = invoke(client, "layered")
    assert (answer["shared"], answer["opt"]) == ("three", ["only_one", "only_three", "python"])
    client.update_function_configuration(FunctionName="layered", Layers=[three, one])
    assert invoke(client, "layered")[0]["shared"] == "one", "the later over the earlier"
    client.update_function_configuration(FunctionName="layered", Layers=[two])
    assert invoke(client, "layered")[0]["opt"] == ["only_two", "python"]
    late = zipped(app_py="import late, sys\ndef handler(event, context):\n    return late.__file__\n")
    client.update_function_code(FunctionName="layered", ZipFile=late)
    assert f"/opt/python/lib/{PYTHON}/site-packages/" in invoke(client, "layered")[0]
    # The function keeps a deleted layer version.
    client.delete_layer_version(LayerName="two", VersionNumber=1)
    client.update_function_configuration(FunctionName="layered", Description="changed")
    assert invoke(client, "layered")[1] is None
    client.update_function_configuration(FunctionName="layered", Layers=[])
    assert "Layers" not in client.get_function_configuration(FunctionName="layered")

    versions = client.list_layer_versions(LayerName="two")["LayerVersions"]
    assert [version["Version"] for version in versions] == [2]
    listed = {
        known["LayerName"]: known["LatestMatchingVersion"]["Version"]
        for known in client.list_layers()["Layers"]
    }
    assert listed["one"] == 1 and listed["two"] == 2
    assert client.get_layer_version_by_arn(Arn=three)["Version"] == 2
    assert client.get_layer_version(LayerName="one", VersionNumber=1)["Content"]["CodeSize"] > 0
    assert error_of(client.get_layer_version, LayerName="two", VersionNumber=1) == "ResourceNotFoundException"
    deleted = {"FunctionName": "layered", "Layers": [two]}
    assert error_of(client.update_function_configuration, **deleted) == "InvalidParameterValueException"
    twice = {"FunctionName": "layered", "Layers": [three, three]}
    assert error_of(client.update_function_configuration, **twice) == "InvalidParameterValueException"
    client.delete_function(FunctionName="layered")


TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Globals: { Function: { Runtime: python3.11, Handler: app.handler, Timeout: 20, Layers: [!Ref Libraries] } }
Resources:
  Libraries:
    Type: AWS::Serverless::LayerVersion
    Properties: { ContentUri: libraries, LayerName: libs, CompatibleRuntimes: [python3.11] }
  First:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: first
      AutoPublishAlias: live
      Tags: { team: a }
      FunctionUrlConfig: { AuthType: NONE }
  Second: { Type: AWS::Serverless::Function, Properties: { CodeUri: second } }
""".replace("python3.11", PYTHON)


def test_sighup_reloads_a_template_with_layers_and_aliases(tmp_path):
    def write(path, text):
        path = tmp_path / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    template = tmp_path / "template.yaml"
    template.write_text(TEMPLATE)
    write("libraries/python/shared.py", "TEXT = 'of the layer'\n")
    write("first/app.py", APP % "first")
    write("second/app.py", APP % "second")
    with Worker(str(template)) as running:
        client = running.client()
        create(client, "made", app("by a caller"))

        def reload():
            count = running.log().count("was read anew") + running.log().count("SIGHUP: ")
            running.process.send_signal(signal.SIGHUP)
            running.wait_for(rf"(?s)(?:(?:was read anew|SIGHUP: ).*?){{{count + 1}}}")

        answer, _ = invoke(client, "First")
        assert (answer["text"], answer["shared"]) == ("first", "of the layer")
        assert text_of(client, "First", Qualifier="live") == "first"
        assert client.list_tags(
            Resource=client.get_function(FunctionName="First")["Configuration"]["FunctionArn"]
        )["Tags"] == {"team": "a"}
        url = client.get_function_url_config(FunctionName="First", Qualifier="live")["FunctionUrl"]
        before = client.get_function_configuration(FunctionName="Second")["RevisionId"]

        write("first/app.py", APP % "changed")
        reload()
        assert text_of(client, "First") == text_of(client, "First", Qualifier="live") == "changed"
        assert text_of(client, "First", Qualifier="1") == "first", "as it was published"
        assert client.get_function_configuration(FunctionName="Second")["RevisionId"] == before, "as it was"
        with urllib.request.urlopen(url, timeout=60) as served:
            assert json.loads(served.read())["arn"] == "First:live"

        write("libraries/python/shared.py", "TEXT = 'of another'\n")
        reload()
        assert invoke(client, "Second")[0]["shared"] == "of another"
        assert invoke(client, "First", Qualifier="1")[0]["shared"] is not None

        # A faulty template changes nothing, and is reported.
        write("template.yaml", TEMPLATE.replace("CodeUri: second", "CodeUri: nowhere"))
        reload()
        assert "nowhere" in running.log() and text_of(client, "Second") == "second"
        write("template.yaml", TEMPLATE.replace("  Second:", "  Third:"))
        reload()
        assert text_of(client, "Third") == "second"
        assert error_of(client.invoke, FunctionName="Second") == "ResourceNotFoundException"
        assert text_of(client, "made") == "by a caller"
