"""One instance of a function of functions/: SEED EVENT, in its folder. Imports it, answers the event
with the seed and prints a line of JSON; then answers five events of other seeds for every line on standard
input."""

import importlib
import json
import sys
from types import SimpleNamespace

CONTEXT = SimpleNamespace(aws_request_id="00000000-0000-0000-0000-000000000000")


def main() -> None:
    first, event = int(sys.argv[1]), json.loads(sys.argv[2])
    sys.path.insert(0, "")
    handler = importlib.import_module("app").handler
    handler(event | {"seed": first}, CONTEXT)
    print(json.dumps({}), flush=True)
    for _ in sys.stdin:
        for seed in range(5):
            handler(event | {"seed": 5 * first + seed}, CONTEXT)
        print(json.dumps({}), flush=True)


main()
