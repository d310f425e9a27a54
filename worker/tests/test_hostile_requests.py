"""Requests that no honest client sends. After each, the worker must answer as before."""

import http.client
import io
import json
import socket
import zipfile

import pytest
from calls import invoke, zipped
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def talk(worker, data, until_closed=True):
    """Sends bytes, and returns what the worker sends until it closes, or its first part."""
    with socket.create_connection(("127.0.0.1", worker.port), timeout=60) as connection:
        answer = b""
        try:
            connection.sendall(data)
            while part := connection.recv(65536):
                answer += part
                if not until_closed:
                    break
        except (ConnectionResetError, BrokenPipeError):
            pass
        return answer


def status(answer):
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None


def request(worker, method, path, body=b"", headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers.get("x-amzn-errortype"), answer.read()
    finally:
        connection.close()


@pytest.fixture(autouse=True)
def still_well(worker, client):
    yield
    assert worker.get("/healthz") == "ok\n"
    assert invoke(client, "probe", {"do": "count"})[1] is None


INVOKE = "/2015-03-31/functions/probe/invocations"
POST = f"POST {INVOKE} HTTP/1.1\r\nHost: localhost\r\n".encode()
HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"


def test_header_bombs_are_refused(worker):
    assert status(talk(worker, HEAD + b"\r\n")) == 200
    assert status(talk(worker, HEAD + b"".join(b"h%d: x\r\n" % i for i in range(200)) + b"\r\n")) == 431
    assert status(talk(worker, HEAD + b"h: " + b"x" * (1 << 20) + b"\r\n\r\n")) in (431, None)
    assert status(talk(worker, b"GET /" + b"x" * (1 << 20) + b" HTTP/1.1\r\n\r\n")) in (414, 431, None)


def test_non_http_input_is_refused(worker):
    for data in [
        b"\0" * 1000,
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ]:
        assert status(talk(worker, data)) in (400, None), data
    both = POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    assert status(talk(worker, both, until_closed=False)) in (400, 403, None)


def test_slow_senders_delay_no_request(worker, client):
    slow = []
    for index in range(200):
        connection = socket.create_connection(("127.0.0.1", worker.port), timeout=60)
        if index % 2:
            connection.sendall(b"GET / HT")
        else:
            connection.sendall(POST + b"Content-Length: 6000\r\n\r\n{")
        slow.append(connection)
    for _ in range(10):
        assert invoke(client, "probe", {"do": "count"})[1] is None
    for connection in slow:
        connection.close()


def test_oversized_bodies_are_refused_unread(worker):
    assert status(talk(worker, POST + b"Content-Length: 99999999999\r\n\r\n", until_closed=False)) == 413
    body = b"".join(b"100000\r\n" + b" " * (1 << 20) + b"\r\n" for _ in range(7)) + b"0\r\n\r\n"
    refused = talk(worker, POST + b"Transfer-Encoding: chunked\r\n\r\n" + body, until_closed=False)
    # The rest is not read, so the answer may be lost with the connection.
    assert status(refused) in (413, None)
    # Refused by what it announces: the body itself is never sent.
    head = (
        b"PUT /2015-03-31/functions/probe/configuration HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    )
    refused = talk(worker, head + b"Content-Length: 2097152\r\n\r\n")
    assert status(refused) == 413 and b"RequestTooLargeException" in refused


def test_bad_names_and_paths_are_refused(worker):
    for name in ["..", "a%2Fb", "a%00b", "%F0%9F%98%80", "x" * 200, "a b".replace(" ", "%20"), "$LATEST"]:
        code, kind, _ = request(worker, "GET", f"/2015-03-31/functions/{name}")
        assert (code, kind) == (400, "ValidationException"), name
    for path in [
        "/..",
        "//",
        "/2015-03-31",
        "/2015-03-31/functions/a/b/c/d",
        "/%",
        "/lambda-url/",
        "/lambda-url/../x",
    ]:
        code, kind, _ = request(worker, "GET", path)
        assert code in (400, 404), path
    assert request(worker, "BREW", "/2015-03-31/functions")[0] == 404


def test_pages_in_browsers_cannot_reach_the_api(worker):
    assert request(worker, "POST", INVOKE, b"{}", {"Origin": "http://example.com"})[:2] == (
        403,
        "AccessDeniedException",
    )
    assert request(worker, "GET", "/2015-03-31/functions", headers={"Host": "example.com"})[0] == 403
    assert request(worker, "GET", "/2015-03-31/functions", headers={"Host": "localhost:1"})[0] == 200


def test_escaping_and_oversized_archives_are_refused(client):
    def refusal(archive):
        with pytest.raises(client.exceptions.InvalidParameterValueException) as caught:
            client.update_function_code(FunctionName="neighbour", ZipFile=archive)
        return caught.value.response["Error"]["Message"]

    assert "leads out" in refusal(zipped(**{"../../escaped": "x"}))
    assert "leads out" in refusal(zipped(**{"/etc/escaped": "x"}))

    def special(mode, content):
        member = zipfile.ZipInfo("special")
        member.external_attr = mode << 16
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as written:
            written.writestr(member, content)
        return archive.getvalue()

    assert "the link leads out of the archive" in refusal(special(0o120777, "/etc/shadow"))
    assert "the link leads out of the archive" in refusal(special(0o120777, "../other"))
    assert "only files, folders and links" in refusal(special(0o060600, ""))
    assert "Unzipped size" in refusal(zipped(zeros="\0" * (260 << 20)))
    assert "Could not unzip" in refusal(b"PK\x05\x06" + b"\xff" * 18)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    "FunctionName",
    "Runtime",
    "Handler",
    "Code",
    "MemorySize",
    "Timeout",
    "Environment",
    "ZipFile",
    "AuthType",
]


# A busy machine generates requests slowly: no fault of the worker.
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.sampled_from(["POST", "PUT", "GET", "DELETE", "PATCH"]),
    st.sampled_from(["2015-03-31", "2017-10-31", "2021-10-31", "lambda-url"]),
    st.sampled_from(
        [
            "",
            "/functions",
            "/functions/missing/code",
            "/functions/missing/url",
            "/functions/a%3Ab/concurrency",
        ]
    ),
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6).map(lambda body: json.dumps(body).encode())
    | st.binary(max_size=60),
)
def test_no_request_causes_a_server_error(worker, method, version, path, body):
    code, _, answer = request(worker, method, f"/{version}{path}", body)
    assert code < 500, (code, answer)
