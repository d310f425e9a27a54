"""With `--state`, a restarted worker has its callers' functions again, however its predecessor ended."""

import json
import pathlib
import random
import re
import signal
import threading
import time

import botocore.exceptions
import pytest
from calls import create, invoke, until, zipped
from conftest import TEMPLATE, Worker

# It answers when the worker has read its output: a kill in between would lose the proof that it ran.
PRINTS = """
import fcntl, termios, time

def handler(event, context):
    print("ran", event, flush=True)
    while any(fcntl.ioctl(1, termios.FIONREAD, bytes(4))):
        time.sleep(0.001)
    time.sleep(0.2)  # the worker writes its log in a thread of its own
    return {number}
"""
ANSWER = "def handler(event, context):\n    return {answer}\n"
# These tests need no memory layers.
PLAIN = ["--without", "heap,merge"]


def code(answer):
    return zipped(app_py=ANSWER.format(answer=answer))


def test_functions_layers_versions_and_settings_survive(tmp_path):
    state = ["--state", str(tmp_path / "state"), *PLAIN]
    with Worker(*state) as running:
        client = running.client()
        create(client, "plain", code("1"), MemorySize=192, Tags={"a": "b"})
        client.put_function_concurrency(FunctionName="plain", ReservedConcurrentExecutions=3)
        url = client.create_function_url_config(FunctionName="plain", AuthType="NONE")["FunctionUrl"]
        first = client.publish_version(FunctionName="plain")["Version"]
        client.update_function_code(FunctionName="plain", ZipFile=code("2"))
        client.create_alias(FunctionName="plain", Name="live", FunctionVersion=first)
        layer = client.publish_layer_version(
            LayerName="numbers", Content={"ZipFile": zipped(**{"python/number_py": "NUMBER = 7\n"})}
        )
        create(
            client,
            "layered",
            zipped(app_py="import number\n" + ANSWER.format(answer="number.NUMBER")),
            Layers=[layer["LayerVersionArn"]],
        )
        # A version of a layer that was deleted stays with the functions that have it.
        client.delete_layer_version(LayerName="numbers", VersionNumber=1)
        create(client, "deleted", code("3"))
        client.delete_function(FunctionName="deleted")
        before = client.get_function(FunctionName="plain")
        running.stop(signal.SIGKILL)
    for how, expected in [(signal.SIGTERM, 2), (signal.SIGKILL, 3)]:
        with Worker(*state) as running:
            client = running.client()
            after = client.get_function(FunctionName="plain")
            for part in ["Tags", "Concurrency", "Configuration"]:
                assert after[part] == before[part], part
            assert invoke(client, "plain") == (2, None)
            assert invoke(client, "plain", Qualifier="live") == (1, None)
            assert invoke(client, "layered") == (7, None)
            again = client.get_function_url_config(FunctionName="plain")["FunctionUrl"]
            assert again.rsplit("/lambda-url/")[1] == url.rsplit("/lambda-url/")[1]
            names = [function["FunctionName"] for function in client.list_functions()["Functions"]]
            assert names == ["layered", "plain"]
            content = {"ZipFile": zipped(x="")}
            version = client.publish_layer_version(LayerName="numbers", Content=content)["Version"]
            assert version == expected, "a version number is never reused"
            running.stop(how)
    # No orphans stay: two codes of plain, one of layered, its layer's, and two more layers'.
    with Worker(*state):
        assert len(list((tmp_path / "state/code").iterdir())) == 6


def test_template_overrides_its_own_functions_only(tmp_path):
    state = ["--state", str(tmp_path), *PLAIN]
    with Worker(TEMPLATE, *state) as running:
        client = running.client()
        client.update_function_code(FunctionName="neighbour", ZipFile=code("'changed'"))
        create(client, "mine", code("1"))
        assert invoke(client, "neighbour")[0] == "changed"
        running.stop(signal.SIGTERM)
    with Worker(TEMPLATE, *state) as running:
        client = running.client()
        assert invoke(client, "neighbour", {"do": "count"})[0]["calls"] == 1, "the template's again"
        assert invoke(client, "mine") == (1, None)
        running.wait_for("neighbour is the template's")


def test_failed_worker_start_loses_no_state(tmp_path):
    state = ["--state", str(tmp_path), *PLAIN]
    with Worker(*state) as running:
        create(running.client(), "mine", code("1"))
        with pytest.raises(AssertionError, match="has another worker this --state"):
            Worker(*state)
        running.stop(signal.SIGTERM)
    broken = tmp_path / "template.yaml"
    broken.write_text("Resources: {A: {Type: AWS::Serverless::Function, Properties: {CodeUri: /nowhere}}}")
    with pytest.raises(AssertionError):
        Worker(str(broken), *state)
    with Worker(*state) as running:
        assert invoke(running.client(), "mine") == (1, None)


def test_function_with_missing_code_is_logged_and_skipped(tmp_path):
    state = ["--state", str(tmp_path), *PLAIN]
    with Worker(*state) as running:
        client = running.client()
        create(client, "broken", code("1"))
        location = client.get_function(FunctionName="broken")["Code"]["Location"]
        create(client, "whole", code("2"))
        running.stop(signal.SIGTERM)
    folder = pathlib.Path(location.removeprefix("file://"))
    (folder / "app.py").unlink()
    folder.rmdir()
    with Worker(*state) as running:
        running.wait_for(r"broken is kept by --state, but cannot be served: .* is gone")
        assert invoke(running.client(), "whole") == (2, None)


def test_kills_at_any_moment_lose_nothing_accepted(tmp_path):
    """Answered changes survive, and each accepted event is run, by this worker or the next."""
    state = ["--state", str(tmp_path), *PLAIN]
    choose = random.Random(11)
    made, events, ran = {}, set(), set()

    def note_runs(running):
        ran.update(map(int, re.findall(r"ran (\d+)", running.log())))

    for life in range(5):
        with Worker(*state) as running:
            client = running.client()

            def work(client=client, life=life):
                for number in range(life * 1000, life * 1000 + 1000):
                    name = f"f{number % 3}"
                    code = zipped(app_py=PRINTS.format(number=number))
                    try:
                        if name in made:
                            client.update_function_code(FunctionName=name, ZipFile=code)
                        else:
                            create(client, name, code)
                        made[name] = number
                        client.invoke(FunctionName=name, InvocationType="Event", Payload=json.dumps(number))
                        events.add(number)
                    except botocore.exceptions.BotoCoreError:
                        return  # the worker was killed

            caller = threading.Thread(target=work)
            known = len(events)
            caller.start()
            until(lambda known=known: len(events) > known, running.log)
            time.sleep(choose.random())
            running.process.send_signal(signal.SIGKILL)
            caller.join()
            running.process.wait()
            note_runs(running)
    with Worker(*state) as running:
        client = running.client()

        def all_ran():
            note_runs(running)
            return events <= ran

        # While they wait, they may fill the queue, and a call would be refused.
        until(all_ran, running.log)
        for name, number in made.items():
            answer, error = invoke(client, name, -1)
            # The last change may be made, but not answered.
            assert error is None and answer >= number, (name, answer, number)
