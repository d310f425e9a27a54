#!/usr/bin/env bash
# awslambdaric 4.2.2 asks for work in another thread than the handler's, by what AWS_EXECUTION_ENV says.
#
# Where it names Python 3.12 or later, each GET /next runs in a new thread of a ThreadPoolExecutor; where it names
# 3.11, in the main thread. The version of the interpreter does not count. An allocator with caches for each thread
# that is asked to return memory between two requests (malloc_trim) then flushes those of a thread that has run no
# handler, and keeps those of the handler's thread.
#
# Seen with Python 3.11.7:
#   AWS_Lambda_python3.11: handler in MainThread, next in MainThread
#   AWS_Lambda_python3.13: handler in MainThread, next in a thread of its own
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: awslambdaric==4.2.2

cat >"$folder/app.py" <<'APP'
import threading

def handler(event, context):
    print(f"handler in {threading.current_thread().name}", flush=True)
APP
cat >"$folder/client.py" <<'CLIENT'
"""The client with two events in place of a Runtime API."""
import os, threading
import runtime_client

HEADERS = {
    "Lambda-Runtime-Aws-Request-Id": "1",
    "Lambda-Runtime-Trace-Id": None,
    "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:us-east-1:123456789012:function:f",
    "Lambda-Runtime-Deadline-Ms": 9999999999999,
    "Lambda-Runtime-Client-Context": None,
    "Lambda-Runtime-Cognito-Identity": None,
    "Content-Type": "application/json",
}
left = 2


def next():
    global left
    main = threading.current_thread() is threading.main_thread()
    print("next in", "MainThread" if main else "a thread of its own", flush=True)
    if left == 0:
        os._exit(0)
    left -= 1
    return b"{}", HEADERS


runtime_client.next = next
runtime_client.post_invocation_result = lambda *words: None
from awslambdaric import __main__ as client

client.main(["awslambdaric", "app.handler"])
CLIENT

seen() { # AWS_EXECUTION_ENV
    (cd "$folder" && env AWS_EXECUTION_ENV="$1" AWS_LAMBDA_FUNCTION_NAME=f AWS_REGION=us-east-1 LAMBDA_TASK_ROOT="$folder" AWS_LAMBDA_RUNTIME_API=127.0.0.1:9 \
        timeout 60 venv/bin/python client.py | sort -u | tr '\n' ';')
}
older=$(seen AWS_Lambda_python3.11)
newer=$(seen AWS_Lambda_python3.13)
echo "AWS_Lambda_python3.11: $older"
echo "AWS_Lambda_python3.13: $newer"
[ "$older" = "handler in MainThread;next in MainThread;" ] || { echo "changed for python3.11"; exit 1; }
[ "$newer" = "handler in MainThread;next in a thread of its own;" ] || { echo "changed for python3.13"; exit 1; }
