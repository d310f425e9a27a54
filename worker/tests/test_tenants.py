"""Tenant isolation: an instance serves one tenant for life, with a page store of that tenant's alone."""

import collections
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import urllib.error
import urllib.request

import pytest
from botocore.exceptions import ClientError
from calls import create, invoke, killing, until, zipped
from conftest import Worker
from test_nodejs import RUNTIME
from test_streams import needs_node, streamed

PER_TENANT = {"TenancyConfig": {"TenantIsolationMode": "PER_TENANT"}}
NEEDED = "The invoked function is enabled with tenancy configuration. Add a valid tenant ID in your request"
SUPERFLUOUS = "not enabled with tenancy configuration. Remove the tenant ID from your request and try again"
# `worker/tests/run --soak -k tenants` is the long form.
REQUESTS, CONNECTIONS = (100_000, 64) if os.environ.get("MAYFLY_SOAK") else (3_000, 24)
EVERY = 40
SEED = 40

APP = """
import os, time
SEEN = []
def handler(event, context):
    SEEN.append(context.tenant_id)
    event = event or {}
    print("ran", context.aws_request_id, context.tenant_id)
    if event.get("fail"):
        raise ValueError("as asked")
    if "hold" in event:
        globals()["held"] = b"".join(bytes([n % 251]) * 4096 for n in range(event["hold"] * 256))
    time.sleep(event.get("seconds", 0))
    return {"id": context.aws_request_id, "tenant": context.tenant_id, "seen": sorted(set(SEEN)),
            "calls": len(SEEN), "stream": os.environ["AWS_LAMBDA_LOG_STREAM_NAME"],
            "kept": os.path.exists("/tmp/" + event.get("file", "none"))
            or not open("/tmp/" + event.get("file", "none"), "w")}
"""


@pytest.fixture(scope="module")
def tenants():
    """A worker whose function `tenants` has them, and `shared` does not."""
    with Worker("--keep-alive", "30", "--queues", "127.0.0.1:1") as running:
        client = running.client(retries={"max_attempts": 0})
        create(client, "tenants", zipped(app_py=APP), Timeout=30, **PER_TENANT)
        create(client, "shared", zipped(app_py=APP), Timeout=30)
        yield running


def error_of(call, *arguments, **named):
    with pytest.raises(ClientError) as caught:
        call(*arguments, **named)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def instances(worker):
    return json.loads(worker.get("/instances"))["instances"]


def test_tenancy_is_chosen_once_when_a_function_is_created(tenants):
    client = tenants.client(parameter_validation=False)
    wanted = PER_TENANT["TenancyConfig"]
    assert client.get_function(FunctionName="tenants")["Configuration"]["TenancyConfig"] == wanted
    assert client.get_function_configuration(FunctionName="tenants")["TenancyConfig"] == wanted
    listed = {one["FunctionName"]: one for one in client.list_functions()["Functions"]}
    assert listed["tenants"]["TenancyConfig"] == wanted and "TenancyConfig" not in listed["shared"]
    code, text = error_of(
        create, client, "wrong", zipped(app_py=APP), TenancyConfig={"TenantIsolationMode": "SHARED"}
    )
    assert code == "InvalidParameterValueException" and "must be PER_TENANT" in text
    # No client has the parameter.
    body = json.dumps({"TenancyConfig": wanted}).encode()
    for name in ["tenants", "shared"]:
        url = f"{tenants.url}/2015-03-31/functions/{name}/configuration"
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(url, body, method="PUT"))
        assert caught.value.code == 400 and "cannot be changed" in json.load(caught.value)["Message"]
    # Another change keeps it, and ends the instances of all tenants.
    before = invoke(client, "tenants", {}, TenantId="changed")[0]["stream"]
    client.update_function_configuration(FunctionName="tenants", Description="other")
    assert client.get_function_configuration(FunctionName="tenants")["TenancyConfig"] == wanted
    assert invoke(client, "tenants", {}, TenantId="changed")[0]["stream"] != before


def test_calls_name_a_tenant_where_the_function_has_them(tenants):
    client = tenants.client()
    for arguments in [{}, {"InvocationType": "Event"}, {"InvocationType": "DryRun"}, {"LogType": "Tail"}]:
        code, text = error_of(client.invoke, FunctionName="tenants", **arguments)
        assert code == "InvalidParameterValueException" and text.startswith(NEEDED), arguments
        code, text = error_of(client.invoke, FunctionName="shared", TenantId="blue", **arguments)
        assert code == "InvalidParameterValueException" and SUPERFLUOUS in text, arguments
    assert error_of(streamed, client, "tenants", {})[1].startswith(NEEDED)
    assert SUPERFLUOUS in error_of(streamed, client, "shared", {}, TenantId="blue")[1]
    for wrong in ["a,b", "a#", "x" * 257]:
        code, text = error_of(client.invoke, FunctionName="tenants", TenantId=wrong)
        assert code == "ValidationException" and "at 'tenantId' failed to satisfy" in text, text
    odd = "Blue 1._:/=+-@"
    assert invoke(client, "tenants", {}, TenantId=odd)[0]["tenant"] == odd
    assert invoke(client, "shared", {})[0]["tenant"] is None
    parts, end = streamed(client, "tenants", {}, TenantId=odd)
    assert json.loads(parts[0][1])["tenant"] == odd and end == {}


def test_lambdas_refusals_for_tenants_are_given_by_name(tenants):
    client = tenants.client()
    name = {"FunctionName": "tenants"}
    for call, arguments in [
        (client.create_function_url_config, {"AuthType": "NONE"}),
        (client.create_event_source_mapping, {"EventSourceArn": "arn:aws:sqs:us-east-1:000000000000:q"}),
        (client.put_provisioned_concurrency_config, {"Qualifier": "1", "ProvisionedConcurrentExecutions": 1}),
        (client.update_function_configuration, {"SnapStart": {"ApplyOn": "PublishedVersions"}}),
    ]:
        if "Qualifier" in arguments:
            client.publish_version(FunctionName="tenants")
        code, text = error_of(call, **name, **arguments)
        assert code == "InvalidParameterValueException" and "not s" in text, (code, text)


def test_each_tenant_has_instances_files_and_memory_of_its_own(tenants):
    client = tenants.client()
    blue = invoke(client, "tenants", {"file": "x"}, TenantId="blue")[0]
    green = invoke(client, "tenants", {"file": "x"}, TenantId="green")[0]
    assert blue["stream"] != green["stream"] and not green["kept"]
    again = invoke(client, "tenants", {"file": "x"}, TenantId="blue")[0]
    assert (again["stream"], again["kept"], again["seen"]) == (blue["stream"], True, ["blue"])
    # A version has instances of its own, and so have its tenants.
    version = client.publish_version(FunctionName="tenants")["Version"]
    other = invoke(client, "tenants", {"file": "x"}, TenantId="blue", Qualifier=version)[0]
    assert other["stream"] != blue["stream"] and other["stream"].startswith(f"[{version}]")
    # As operators see them.
    known = {one["tenant"] for one in instances(tenants) if one["function"] == "tenants"}
    assert {"blue", "green"} <= known
    assert tenants.events("start", function="tenants", tenant="green")
    busy = 'mayfly_instances{function="tenants",phase="idle"} '

    def idle():
        (line,) = [line for line in tenants.get("/metrics").splitlines() if line.startswith(busy)]
        return int(line.removeprefix(busy))

    def own():
        return len([one for one in instances(tenants) if one["function"] == "tenants"])

    until(lambda: idle() == own() >= 3, tenants.state)
    assert "tenants" in tenants.get("/")


def test_event_runs_for_its_tenant(tenants):
    tenants.client().invoke(FunctionName="tenants", InvocationType="Event", Payload="{}", TenantId="later")
    tenants.wait_for(r"ran [0-9a-f-]{36} later\n")


def test_event_of_a_killed_worker_runs_for_its_tenant(tmp_path):
    state = ["--state", str(tmp_path)]
    with Worker(*state) as first:
        client = first.client()
        create(client, "tenants", zipped(app_py=APP), Timeout=60, **PER_TENANT)
        client.invoke(
            FunctionName="tenants", InvocationType="Event", Payload='{"seconds": 20}', TenantId="later"
        )
        first.wait_for(r"ran [0-9a-f-]{36} later\n")
        first.stop(signal.SIGKILL)
    with Worker(*state) as second:
        second.wait_for(r"ran [0-9a-f-]{36} later\n")
        wanted = PER_TENANT["TenancyConfig"]
        found = second.client().get_function_configuration(FunctionName="tenants")
        assert found["TenancyConfig"] == wanted, "it is kept"


@needs_node
def test_nodejs_context_has_the_tenant(tenants):
    client = tenants.client()
    source = "export const handler = async (event, context) => [context.tenantId ?? null];"
    code = zipped(**{"index.mjs": source})
    create(client, "node", code, Runtime=RUNTIME, Handler="index.handler", MemorySize=256, **PER_TENANT)
    assert invoke(client, "node", TenantId="blue") == (["blue"], None)


LOGGING = """
import logging, os

def handler(event, context):
    logging.getLogger().warning("of the function")
    if event:
        os._exit(1)
"""


def tenants_in_log(worker, function):
    """The tenant of each record in a function's log, by what it is."""
    lines = [line.split(" ", 2)[2] for line in worker.get(f"/log?function={function}").splitlines()]
    records = [json.loads(line) for line in lines if line.startswith("{") and "platform.fault" not in line]
    return [(one.get("type") or one["level"], one.get("record", one).get("tenantId")) for one in records]


def test_records_of_a_log_name_the_tenant(tenants):
    client = tenants.client()
    settings = {"LoggingConfig": {"LogFormat": "JSON", "SystemLogLevel": "DEBUG"}, **PER_TENANT}
    create(client, "logging", zipped(app_py=LOGGING), **settings)
    assert invoke(client, "logging", {}, TenantId="blue") == (None, None)
    assert invoke(client, "logging", {"fails": 1}, TenantId="green")[1] == "Unhandled"
    found = tenants_in_log(tenants, "logging")
    of_requests = {kind for kind, tenant in found if tenant}
    platform = {f"platform.{kind}" for kind in ["start", "runtimeDone", "report"]}
    assert of_requests == platform | {"WARNING"}, found
    for kind in platform | {"WARNING"}:
        assert [tenant for known, tenant in found if known == kind] == ["blue", "green"], found
    plain = {kind for kind, tenant in found if not tenant}
    of_starts = {f"platform.{kind}" for kind in ["initStart", "initRuntimeDone", "initReport"]}
    assert plain == of_starts, found


@needs_node
def test_records_of_nodejs_name_the_tenant(tenants):
    client = tenants.client()
    source = "export const handler = async () => console.warn('of the function');"
    settings = {"Runtime": RUNTIME, "Handler": "index.handler", "MemorySize": 256}
    settings |= {"LoggingConfig": {"LogFormat": "JSON", "SystemLogLevel": "WARN"}, **PER_TENANT}
    create(client, "node-logging", zipped(**{"index.mjs": source}), **settings)
    assert invoke(client, "node-logging", {}, TenantId="blue") == (None, None)
    assert tenants_in_log(tenants, "node-logging") == [("WARN", "blue")]


def store_of(process):
    """The folder of the page store that a sandbox's process sees."""
    mounts = pathlib.Path(f"/proc/{process}/mountinfo").read_text()
    found = [line.split()[3] for line in mounts.splitlines() if line.split()[4] == "/var/mayfly/store"]
    return found[0] if found else None


def stores_by_stream(worker):
    """The page store of each instance of `tenants`, by its log stream."""
    found = {}
    for process in worker.descendants():
        try:
            variables = pathlib.Path(f"/proc/{process}/environ").read_text().split("\0")
            store = store_of(process)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        named = dict(line.split("=", 1) for line in variables if "=" in line)
        if store and "AWS_LAMBDA_LOG_STREAM_NAME" in named:
            found[named["AWS_LAMBDA_LOG_STREAM_NAME"]] = store
    return found


def merged(worker):
    """The instances that have merged what they hold."""
    return {event["instance"] for event in worker.events("merge") if event["merged_bytes"] > 20 << 20}


@pytest.mark.skipif(os.geteuid() != 0, reason="reads processes of other users")
def test_page_stores_are_a_tenants_own_and_end_with_it():
    with Worker("--keep-alive", "20") as running:
        client = running.client()
        create(client, "tenants", zipped(app_py=APP), Timeout=30, **PER_TENANT)

        def hold(tenant):
            return invoke(client, "tenants", {"hold": 24, "seconds": 2}, TenantId=tenant)[0]["stream"]

        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            streams = [threads.submit(hold, tenant) for tenant in ["blue", "blue", "green"]]
            blue, twin, green = [stream.result() for stream in streams]
        stores = stores_by_stream(running)
        assert blue != twin and stores[blue] == stores[twin] != stores[green], stores
        # All three hold the same 24 MiB: the twins share them, and green shares with no other.
        until(lambda: len(merged(running)) == 3, running.state)
        assert len(running.stores()) == 2
        holders = collections.defaultdict(set)
        for process in running.descendants():
            for line in pathlib.Path(f"/proc/{process}/maps").read_text().splitlines():
                segment = re.search(r" (\d+) +/memfd:mayfly", line)
                if segment:
                    holders[segment.group(1)].add(store_of(process))
        assert holders and all(len(seen) == 1 for seen in holders.values()), holders
        until(lambda: not instances(running), running.state)
        until(lambda: not running.stores(), running.state)


def test_idle_instance_of_one_tenant_makes_room_for_another():
    with Worker("--memory", "256", "--keep-alive", "600") as running:
        client = running.client()
        create(client, "tenants", zipped(app_py=APP), MemorySize=128, **PER_TENANT)
        create(client, "shared", zipped(app_py=APP), MemorySize=128)
        for number in range(8):
            answer = invoke(client, "tenants", {}, TenantId=f"t{number}")[0]
            assert answer["seen"] == [f"t{number}"]
        assert invoke(client, "shared", {})[0]["seen"] == [None]
        assert running.figure("mayfly_instances") <= 2
        assert running.events("stop", tenant="t0")


def test_tenants_are_never_mixed_under_kills():
    with Worker("--keep-alive", "2", "--memory", "1500") as running:
        client = running.client(max_pool_connections=CONNECTIONS)
        create(client, "tenants", zipped(app_py=APP), Timeout=30, MemorySize=128, **PER_TENANT)
        outcomes = []
        seen = collections.defaultdict(set)

        def outcome_of(number):
            # A few tenants are called often, and more seldom.
            tenant = f"t{number % 5}" if number % 20 else f"rare-{number // 20 % 20}"
            try:
                answer = client.invoke(FunctionName="tenants", Payload="{}", TenantId=tenant)
            except client.exceptions.ClientError as error:
                return error.response["Error"]["Code"]
            body = json.loads(answer["Payload"].read())
            if "FunctionError" in answer:
                return body["errorType"]
            assert body["id"] == answer["ResponseMetadata"]["RequestId"], "an answer to another request"
            assert body["seen"] == [tenant], (tenant, body)
            seen[body["stream"]].add(tenant)
            return "answered"

        def ask(number):
            outcomes.append(outcome_of(number))

        with (
            killing(running.descendants, lambda: len(outcomes), EVERY, SEED) as killed,
            concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as threads,
        ):
            for done in [threads.submit(ask, number) for number in range(REQUESTS)]:
                done.result()
        kinds = collections.Counter(outcomes)
        print(f"{len(killed)} processes killed, {len(seen)} instances: {dict(kinds)}")
        assert len(killed) >= 5 and kinds["answered"] > REQUESTS / 2, kinds
        allowed = {"answered", "Runtime.ExitError", "ServiceException", "TooManyRequestsException"}
        assert set(kinds) <= allowed, kinds
        assert all(len(tenants) == 1 for tenants in seen.values()), "an instance served two tenants"
        until(lambda: not running.descendants() and not running.figure("mayfly_instances"), running.state)
