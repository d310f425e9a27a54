"""Writes JSON documents, as pyperformance's json_dumps does: empty, short, nested, and a long list."""

import hashlib
import json
import sys

from measured import finished, measured, warming

SHORT = {"key1": 0, "key2": True, "key3": "value", "key4": "foo", "key5": "string"}
NESTED = {"key1": 0, "key2": SHORT, "key3": "value", "key4": SHORT, "key5": SHORT, "key": "äöü"}
DOCUMENTS = [({}, 200), (SHORT, 100), (NESTED, 50), ([NESTED] * 200, 1)]

rounds = int(sys.argv[1])
digest = hashlib.sha256()
warming()
for round in range(-1, rounds):
    if round == 0:
        measured()
        digest = hashlib.sha256()
    for document, times in DOCUMENTS:
        for _ in range(times):
            text = json.dumps(document)
    digest.update(text.encode())
finished()
print(f"json_dumps: {rounds} rounds, {digest.hexdigest()}")
