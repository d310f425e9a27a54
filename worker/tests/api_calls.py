"""Helpers with which the tests call HTTP APIs."""

import http.client
import json

REST, HTTP = "ServerlessRestApi", "serverlesshttpapi"


class Answer:
    def __init__(self, answer):
        self.status, self.headers, self.body = answer.status, answer.headers, answer.read()

    def json(self):
        return json.loads(self.body)


def call(worker, host, path, method="GET", headers=None, body=None):
    """Calls an API by its name; `headers` may be a list of pairs."""
    connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=60)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Host", host if "." in host else f"{host}.execute-api.localhost:{worker.port}")
    for name, value in headers.items() if isinstance(headers, dict) else headers or []:
        connection.putheader(name, value)
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    return Answer(connection.getresponse())


def answered(worker, api, answer, path="/", **arguments):
    """The HTTP answer for this answer of the function."""
    query = urlencoded(json.dumps(answer))
    return call(worker, api, f"{path}?answer={query}", **arguments)


def urlencoded(text):
    return "".join(f"%{byte:02x}" for byte in text.encode())
