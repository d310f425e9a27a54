"""Parses JSON documents, as pyperformance's json_loads does: an empty one, short ones, and a nested one.
One call is so many rounds of it: json_loads.py ROUNDS"""

import json
import sys

from measured import called

SHORT = {"key1": 0, "key2": True, "key3": "value", "key4": "foo", "key5": "string"}
NESTED = {"key1": 0, "key2": SHORT, "key3": "value", "key4": SHORT, "key5": SHORT, "key": "äöü"}
DOCUMENTS = [("{}", 50), (json.dumps(SHORT), 50), (json.dumps(NESTED), 25), (json.dumps([NESTED] * 200), 1)]

rounds = int(sys.argv[1])


def handler():
    for _ in range(rounds):
        for text, times in DOCUMENTS:
            for _ in range(times):
                kept = json.loads(text)
    return kept


kept = called(handler)
assert kept == [NESTED] * 200
print(f"json_loads: {rounds} rounds, last has {len(kept)} items, {sum(len(item) for item in kept)} keys")
