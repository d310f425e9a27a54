"""Writes JSON documents, as pyperformance's json_dumps does: empty, short, nested, and a long list. One
call is so many rounds of it: json_dumps.py ROUNDS"""

import hashlib
import json
import sys

from measured import called

SHORT = {"key1": 0, "key2": True, "key3": "value", "key4": "foo", "key5": "string"}
NESTED = {"key1": 0, "key2": SHORT, "key3": "value", "key4": SHORT, "key5": SHORT, "key": "äöü"}
DOCUMENTS = [({}, 200), (SHORT, 100), (NESTED, 50), ([NESTED] * 200, 1)]

rounds = int(sys.argv[1])


def handler():
    digest = hashlib.sha256()
    for _ in range(rounds):
        for document, times in DOCUMENTS:
            for _ in range(times):
                text = json.dumps(document)
        digest.update(text.encode())
    return digest.hexdigest()


print(f"json_dumps: {rounds} rounds, {called(handler)}")
