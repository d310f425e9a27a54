"""Calls a function of `functions/` as the worker would, and prints a digest of its answer.

Use: invoke.py FOLDER EVENT.

Floats are rounded, so that another release of a library may add up in another order.
"""

import hashlib
import json
import os
import sys
import types

from measured import called


def rounded(value):
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


folder, event = sys.argv[1], json.loads(sys.argv[2])
os.chdir(folder)
sys.path.insert(0, os.getcwd())
import app  # noqa: E402 - it is in the folder just entered

context = types.SimpleNamespace(aws_request_id="00000000-0000-0000-0000-000000000000")
answer = called(lambda: app.handler(event, context))
answer = json.dumps(rounded(answer), sort_keys=True)
print(f"{os.path.basename(os.getcwd())}: {hashlib.sha256(answer.encode()).hexdigest()}")
