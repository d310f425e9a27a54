"""SIGTERM while clients call: each call is served to its end, or refused so that clients try again."""

import contextlib
import http.client
import signal
import threading
import urllib.error
import urllib.request

import botocore.exceptions
import pytest
from calls import create, programs, until, zipped
from conftest import Worker

# The worker waits for it, and clients call on.
STAYS = """#!/usr/bin/python3
import http.client, json, os, time

api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
events = json.dumps({"events": ["SHUTDOWN"]})
api.request("POST", "/2020-01-01/extension/register", events, {"Lambda-Extension-Name": "stays"})
answer = api.getresponse()
answer.read()
own = {"Lambda-Extension-Identifier": answer.headers["Lambda-Extension-Identifier"]}
api.request("GET", "/2020-01-01/extension/event/next", headers=own)
api.getresponse().read()
time.sleep(1000)
"""
CALLERS = 2


def test_ending_worker_answers_no_call_as_unknown():
    with Worker() as running:
        client = running.client()
        content = programs({"extensions/stays": STAYS})
        arn = client.publish_layer_version(LayerName="stays", Content={"ZipFile": content})["LayerVersionArn"]
        create(client, "called", zipped(app_py="def handler(event, context): return 1"), Layers=[arn])
        url = client.create_function_url_config(FunctionName="called", AuthType="NONE")["FunctionUrl"]
        seen = []

        def call():
            """On one connection."""
            while True:
                try:
                    client.invoke(FunctionName="called")["Payload"].read()
                    seen.append(200)
                except botocore.exceptions.ClientError as error:
                    seen.append(error.response["ResponseMetadata"]["HTTPStatusCode"])
                except botocore.exceptions.BotoCoreError:
                    return  # the worker has ended

        def fetch():
            """Each time on a new one."""
            while True:
                try:
                    with urllib.request.urlopen(url) as answer:
                        seen.append(answer.status)
                except urllib.error.HTTPError as error:
                    seen.append(error.code)
                    error.close()
                except (OSError, http.client.HTTPException):
                    return

        callers = [threading.Thread(target=what) for what in [call] * CALLERS + [fetch] * CALLERS]
        for caller in callers:
            caller.start()
        until(lambda: seen.count(200) > 20, lambda: seen)
        assert running.stop() == 0
        for caller in callers:
            caller.join()
        assert set(seen) == {200, 503}, {status: seen.count(status) for status in seen}


def test_ending_worker_is_unhealthy_and_accepts_no_event():
    app = """
import time
def handler(event, context):
    print("has begun", flush=True)
    time.sleep(60)
"""
    with Worker() as running:
        client = running.client()
        create(client, "waits", zipped(app_py=app), Timeout=90)
        assert running.get("/healthz") == "ok\n"

        def call():
            with contextlib.suppress(botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError):
                client.invoke(FunctionName="waits")

        # While it runs, the worker waits for it, 5 s long.
        caller = threading.Thread(target=call)
        caller.start()
        running.wait_for("has begun")

        def health():
            try:
                running.get("/healthz")
            except urllib.error.HTTPError as error:
                return error.code

        running.process.send_signal(signal.SIGTERM)
        assert until(health) == 503
        with pytest.raises(botocore.exceptions.ClientError) as refused:
            client.invoke(FunctionName="waits", InvocationType="Event")
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
        assert running.stop() == 0
        caller.join()
