"""Several requests at once in one instance, while processes are killed."""

import collections
import concurrent.futures
import os
import re

from calls import killing, until
from conftest import Worker
from test_several import call, has_node, make

# `worker/tests/run --soak -k several` is the long form.
REQUESTS, CONNECTIONS = (100_000, 32) if os.environ.get("MAYFLY_SOAK") else (3_000, 12)
# Requests between two kills.
EVERY = 100
SEED = 11


def test_requests_of_one_instance_are_never_mixed_up_under_kills():
    """Processes of functions are killed at random: each call is answered, or its caller gets a reason."""
    with Worker("--keep-alive", "5") as running:
        client = running.client(max_pool_connections=CONNECTIONS)
        names = ["kills-python"]
        make(client, names[0], "python", 4, instances=8, Timeout=30)
        if has_node:
            names.append("kills-node")
            make(client, names[1], "node", 4, instances=8, Timeout=30)
        for name in names:
            assert call(client, name, {"number": 0})[1] is None
        outcomes = collections.deque()

        def ask(number):
            event = {"number": number, "seconds": 0.002 * (number % 5), "raise": number % 50 == 0}
            try:
                answer, error, request = call(client, names[number % len(names)], event)
            except client.exceptions.ClientError as refused:
                outcomes.append((refused.response["Error"]["Code"], None))
                return
            if error is None:
                assert (answer["id"], answer["number"]) == (request, number), "an answer to another request"
                outcomes.append(("answered", request))
            elif answer["errorType"] in ("ValueError", "RangeError"):
                assert event["raise"] and answer["errorMessage"] == f"number {number}", answer
                outcomes.append(("raised", request))
            else:
                # One that waited for an instance which was killed while it started has no id in its reason.
                reason = answer["errorMessage"]
                assert reason.startswith((f"RequestId: {request} ", "Error: ")), answer
                outcomes.append((answer["errorType"], request))

        with (
            killing(running.descendants, lambda: len(outcomes), EVERY, SEED) as killed,
            concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as threads,
        ):
            for done in [threads.submit(ask, number) for number in range(REQUESTS)]:
                done.result()
        kinds = collections.Counter(kind for kind, _ in outcomes)
        print(f"{len(killed)} processes killed: {dict(kinds)}")
        known = {"answered", "raised", "Runtime.ExitError", "ServiceException", "TooManyRequestsException"}
        assert len(killed) >= 5 and set(kinds) <= known, kinds
        assert kinds["answered"] > REQUESTS / 2, kinds
        ran = collections.Counter(re.findall(r"ran ([0-9a-f-]{36})", running.log()))
        twice = [request for request, times in ran.items() if times > 1]
        lines = [line for line in running.log().splitlines() if any(one in line for one in twice)]
        assert not twice, "run twice:\n" + "\n".join(lines)
        until(lambda: not running.descendants() and not running.figure("mayfly_instances"), running.state)
