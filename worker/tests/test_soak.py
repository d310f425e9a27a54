"""Mixed functions under steady load and bursts, while instances are killed and the worker hands over."""

import collections
import concurrent.futures
import contextlib
import itertools
import json
import os
import random
import re
import signal
import time

import botocore.exceptions
from calls import PYTHON, open_folder
from conftest import descendants, is_store
from test_handover import succession
from test_nodejs import RUNTIME, version

# `MAYFLY_SOAK=1 worker/tests/run -k soak` is the long form.
SECONDS, KILLS, HANDOVERS = (600, 100, 10) if os.environ.get("MAYFLY_SOAK") else (12, 6, 2)
STEADY, BURST = 6, 40
SEED = 7
# What a caller may receive for a request whose instance was killed, or for which there is no room.
EXPECTED = {"Runtime.ExitError", "ServiceException", "TooManyRequestsException"}

IN_PYTHON = """
import time

def handler(event, context):
    print("ran", event["number"], flush=True)
    time.sleep(event["seconds"])
    return {"number": event["number"], "id": context.aws_request_id, "name": context.function_name}
"""
IN_NODEJS = """
export const handler = async (event, context) => {
  console.log("ran", event.number);
  await new Promise((resolve) => setTimeout(resolve, 1000 * event.seconds));
  return { number: event.number, id: context.awsRequestId, name: context.functionName };
};
"""


def template(folder):
    """Two functions in Python and, where the host has it, two in Node.js."""
    languages = {"python": (PYTHON, "app.py", IN_PYTHON)}
    if version() in ("20", "22", "24"):
        languages["nodejs"] = (RUNTIME, "app.mjs", IN_NODEJS)
    resources = {}
    for language, (runtime, file, code) in languages.items():
        (folder / language).mkdir()
        (folder / language / file).write_text(code)
        for number in range(2):
            resources[f"{language}{number}"] = {
                "Type": "AWS::Serverless::Function",
                "Properties": {
                    "FunctionName": f"{language}{number}",
                    "Runtime": runtime,
                    "Handler": "app.handler",
                    "CodeUri": language,
                    "MemorySize": 128,
                    "Timeout": 60,
                },
            }
    path = folder / "template.json"
    path.write_text(json.dumps({"Resources": resources}))
    return str(path), sorted(resources)


def test_soak_loses_mixes_and_repeats_no_request(tmp_path_factory, tmp_path):
    path, names = template(open_folder(tmp_path_factory, "soak"))
    numbers, outcomes = itertools.count(), []
    with succession(path, "--state", str(tmp_path), "--keep-alive", "5") as (line, running):
        client = running.client(max_pool_connections=STEADY + BURST)
        choose = random.Random(SEED)
        began = time.monotonic()

        def ask():
            number = next(numbers)
            name = names[number % len(names)]
            event = {"number": number, "seconds": 0.02 * (number % 3)}
            try:
                answer = client.invoke(FunctionName=name, Payload=json.dumps(event))
                body = json.loads(answer["Payload"].read())
            except client.exceptions.ClientError as error:
                return outcomes.append((number, error.response["Error"]["Code"]))
            except botocore.exceptions.BotoCoreError as error:
                return outcomes.append((number, f"lost: {error}"))
            right = {"number": number, "id": answer["ResponseMetadata"]["RequestId"], "name": name}
            wrong = body["errorType"] if "FunctionError" in answer else f"wrong: {body}"
            return outcomes.append((number, None if body == right else wrong))

        def steadily():
            while time.monotonic() < began + SECONDS:
                ask()

        def kill():
            """Kills a process of an instance or a page store of the worker that serves now."""
            found = [one for one in descendants(line.now) if choose.random() < 0.9 or is_store(one)]
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(choose.choice(found), signal.SIGKILL)
                return 1
            return 0

        killed = 0
        with concurrent.futures.ThreadPoolExecutor(STEADY + BURST) as threads:
            asking = [threads.submit(steadily) for _ in range(STEADY)]
            for step in range(KILLS):
                # Kills, handovers and bursts are spread over the whole time.
                while time.monotonic() < began + SECONDS * (step + 1) / (KILLS + 1):
                    time.sleep(0.05)
                killed += kill()
                if (step + 1) % (KILLS // HANDOVERS) == 0:
                    line.hand_over()
                if step % 3 == 0:
                    asking += [threads.submit(ask) for _ in range(BURST)]
            for one in asking:
                one.result()
        seconds, handovers = time.monotonic() - began, len(line.successors())
        ran = collections.Counter(re.findall(r"ran (\d+)$", running.log(), re.M))

    kinds = collections.Counter(kind for _, kind in outcomes)
    print(
        f"{len(outcomes)} requests in {seconds:.0f} s, {killed} kills, {handovers} handovers:",
        kinds,
    )
    assert len(outcomes) == next(numbers), "each has an outcome"
    assert set(kinds) <= {None, *EXPECTED}, kinds
    assert kinds[None] > len(outcomes) / 2, kinds
    assert killed > KILLS / 2 and handovers == HANDOVERS
    assert set(ran) >= {str(number) for number, kind in outcomes if kind is None}
    assert max(ran.values()) == 1, "a request was run twice"
