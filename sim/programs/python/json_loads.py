"""Parses JSON documents, as pyperformance's json_loads does: an empty one, short ones, and a nested one."""

import json
import sys

from measured import finished, measured, warming

SHORT = {"key1": 0, "key2": True, "key3": "value", "key4": "foo", "key5": "string"}
NESTED = {"key1": 0, "key2": SHORT, "key3": "value", "key4": SHORT, "key5": SHORT, "key": "äöü"}
DOCUMENTS = [("{}", 50), (json.dumps(SHORT), 50), (json.dumps(NESTED), 25), (json.dumps([NESTED] * 200), 1)]

rounds = int(sys.argv[1])
kept = None
warming()
for round in range(-1, rounds):
    if round == 0:
        measured()
    for text, times in DOCUMENTS:
        for _ in range(times):
            kept = json.loads(text)
finished()
assert kept == [NESTED] * 200
print(f"json_loads: {rounds} rounds, last has {len(kept)} items, {sum(len(item) for item in kept)} keys")
