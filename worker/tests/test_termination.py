"""SIGTERM while clients call: each call is served to its end, or refused so that clients try again."""

import http.client
import threading
import urllib.error
import urllib.request

import botocore.exceptions
from calls import create, until, zipped
from conftest import Worker
from test_layer_runtimes import programs

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
        content = programs(**{"extensions/stays": STAYS})
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
