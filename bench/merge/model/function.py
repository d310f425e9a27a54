"""One instance of a function of functions/: SEED EVENT METHOD, in its folder. Imports it, answers the event
and prints a line of JSON; then answers as many events of other seeds as each line on standard input says, and
the first again. The methods: nothing, ksm, upm_all as in instance.py."""

import hashlib
import importlib
import json
import sys
import time
from types import SimpleNamespace

from bench.merge.model import kernel_advice

CONTEXT = SimpleNamespace(aws_request_id="00000000-0000-0000-0000-000000000000")


def main() -> None:
    number, event, method = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    if method == "ksm":
        kernel_advice.give_to_ksm()
    handler = importlib.import_module("app").handler

    def answer(seed: int) -> str:
        return hashlib.sha256(json.dumps(handler(event | {"seed": seed}, CONTEXT)).encode()).hexdigest()

    print(json.dumps({"answer": answer(0), "cpu_ms": 1000 * time.process_time()}), flush=True)
    begun = time.perf_counter()
    if method == "upm_all":
        kernel_advice.advise(kernel_advice.of_process())
    advised_ms = 1000 * (time.perf_counter() - begun)
    for line in sys.stdin:
        requests = int(line)
        begun = time.perf_counter()
        for seed in range(requests):
            answer(1 + 5 * number + seed)
        warm_ms = 1000 * (time.perf_counter() - begun) / requests
        found = {"answer": answer(0), "warm_ms": warm_ms, "advise_process_ms": advised_ms}
        print(json.dumps(found), flush=True)


main()
