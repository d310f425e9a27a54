"""Does nothing, as a function of Lambda's and as an application of gunicorn's, with the same answer."""

import json

ANSWER = {"message": "hello"}


def handler(event, context):
    return ANSWER


def application(environ, start_response):
    json.loads(environ["wsgi.input"].read())
    body = json.dumps(ANSWER).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
