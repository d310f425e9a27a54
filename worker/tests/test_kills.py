"""Many requests while processes of instances are killed at random: each is answered, and none runs twice."""

import collections
import concurrent.futures
import json
import os
import re

from calls import killing, until
from conftest import TEMPLATE, Worker

# `worker/tests/run --soak -k kills` is the long form.
REQUESTS, CONNECTIONS = (10_000, 64) if os.environ.get("MAYFLY_SOAK") else (600, 16)
# Requests between two kills.
EVERY = 10
SEED = 7


def test_each_request_is_answered_or_refused_with_a_reason():
    with Worker(TEMPLATE, "--keep-alive", "2") as running:
        client = running.client(max_pool_connections=CONNECTIONS)
        outcomes = []

        def outcome_of(number):
            name = ["probe", "neighbour"][number % 2]
            try:
                event = {"do": "count", "seconds": 0.01 * (number % 5)}
                answer = client.invoke(FunctionName=name, Payload=json.dumps(event))
            except client.exceptions.ClientError as error:
                return "refused", error.response["Error"]["Code"]
            body = json.loads(answer["Payload"].read())
            request = answer["ResponseMetadata"]["RequestId"]
            if "FunctionError" in answer:
                return "failed", body["errorType"]
            assert body["id"] == request, "an answer to another request"
            return "answered", request

        def ask(number):
            outcomes.append(outcome_of(number))

        def processes():
            return running.descendants() + running.stores()

        with (
            killing(processes, lambda: len(outcomes), EVERY, SEED) as killed,
            concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as threads,
        ):
            for done in [threads.submit(ask, number) for number in range(REQUESTS)]:
                done.result()
        kinds = collections.Counter(kind for kind, _ in outcomes)
        reasons = {reason for kind, reason in outcomes if kind != "answered"}
        print(f"{len(killed)} processes killed: {dict(kinds)}, not answered because of {sorted(reasons)}")
        assert len(killed) >= 5, "the test kills something"
        assert kinds["answered"] > REQUESTS / 2, kinds
        assert reasons <= {"Runtime.ExitError", "ServiceException", "TooManyRequestsException"}, reasons
        answered = [request for kind, request in outcomes if kind == "answered"]
        assert len(set(answered)) == len(answered)
        ran = collections.Counter(re.findall(r"ran ([0-9a-f-]{36})", running.log()))
        assert set(ran) >= set(answered)
        assert max(ran.values()) == 1, "a request was run twice"

        # Idle instances end, and killed ones leave nothing.
        until(lambda: not running.descendants() and not running.figure("mayfly_instances"), running.state)
        # Snapshots stay, one of a function.
        kept = dict(re.findall(r"\[(\w+)\] has a snapshot.* \((\d+) MiB", running.log()))
        most = sum(int(mib) + 2 for mib in kept.values()) << 20
        until(lambda: running.sample()["store"]["bytes"] <= most, running.state)
