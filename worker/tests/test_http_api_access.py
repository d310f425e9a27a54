"""Access to HTTP APIs of a template: CORS, authorisers, hostile requests."""

import json
import socket

from api_calls import HTTP, REST, call
from calls import until
from conftest import HTTP_APIS, Worker


def test_preflight_is_answered_by_the_worker(apis):
    page = {"Origin": "https://page.example", "Access-Control-Request-Method": "PUT"}
    before = apis.figure("mayfly_invocations_total")
    answer = call(apis, "staged", "/beta/a", "OPTIONS", page)
    assert answer.status == 204 and {
        name: text for name, text in answer.headers.items() if name.startswith("access-control")
    } == {
        "access-control-allow-origin": "https://page.example",
        "access-control-allow-methods": "GET,PUT",
        "access-control-allow-headers": "x-own",
        "access-control-max-age": "60",
        "access-control-allow-credentials": "true",
    }
    elsewhere = call(apis, "staged", "/beta/a", "OPTIONS", {**page, "Origin": "https://other.example"})
    assert "access-control-allow-origin" not in elsewhere.headers
    rest = call(apis, REST, "/Prod/pets/1", "OPTIONS")
    assert (rest.status, rest.headers["access-control-allow-methods"]) == (200, "GET,OPTIONS")
    assert rest.headers["access-control-allow-origin"] == "https://page.example"
    assert apis.figure("mayfly_invocations_total") == before
    answer = call(apis, "staged", "/beta/a", headers=page)
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert answer.headers["access-control-expose-headers"] == "x-seen"


def test_token_authorizer_decides(apis):
    def asked(token, path="/dev/token/1"):
        return call(apis, "guarded", path, headers={"X-Token": token} if token else {})

    allowed = asked("allow").json()["requestContext"]["authorizer"]
    arn = "arn:aws:execute-api:us-east-1:000000000000:Guarded/dev/GET/token/1"
    seen = json.loads(allowed.pop("seen"))
    assert seen == {"type": "TOKEN", "methodArn": arn, "authorizationToken": "allow"}
    assert allowed == {"principalId": "me", "number": "7", "flag": "true", "integrationLatency": 0}
    assert asked("", "/dev/free").status == 200
    for token, status, text in [
        ("", 401, '{"message": "Unauthorized"}'),
        ("NOT VALID", 401, '{"message": "Unauthorized"}'),
        ("unknown", 401, '{"message": "Unauthorized"}'),
        ("deny", 403, '{"Message":"User is not authorized to access this resource with an explicit deny"}'),
        ("other", 403, '{"Message":"User is not authorized to access this resource"}'),
        ("broken", 500, '{"message":null}'),
        ("odd", 500, '{"message":null}'),
    ]:
        answer = asked(token)
        assert (answer.status, answer.body.decode()) == (status, text), token
    apis.wait_for(r"\[Authorize\] authorizer Token: principalId should be a text")


def test_request_authorizer_sees_the_request(apis):
    headers = {"X-Token": "allow"}
    assert call(apis, "guarded", "/dev/request", headers=headers).status == 401, "q is missing"
    answer = call(apis, "guarded", "/dev/request?q=1", headers=headers).json()
    seen = json.loads(answer["requestContext"]["authorizer"]["seen"])
    assert (seen["type"], seen["resource"], seen["path"], seen["httpMethod"]) == (
        "REQUEST",
        "/request",
        "/request",
        "GET",
    )
    assert seen["methodArn"].endswith(":Guarded/dev/GET/request")
    assert seen["queryStringParameters"] == {"q": "1"} and seen["stageVariables"] == {"COLOUR": "red"}
    assert "body" not in seen


def test_http_authorizers_answer_simply_or_by_policy(apis):
    def asked(path, token):
        return call(apis, "staged", path, headers={"X-Token": token} if token else {})

    answer = asked("/beta/simple", "allow").json()
    own = answer["requestContext"]["authorizer"]["lambda"]
    seen = json.loads(own.pop("seen"))
    assert own == {"number": 7, "flag": True}
    assert (seen["version"], seen["type"], seen["identitySource"]) == ("2.0", "REQUEST", ["allow"])
    assert seen["routeArn"] == "arn:aws:execute-api:us-east-1:000000000000:Staged/beta/GET/simple"
    assert seen["routeKey"] == "GET /simple" and "requestContext" in seen
    own = asked("/beta/policy", "allow").json()["requestContext"]["authorizer"]["lambda"]
    seen = json.loads(own["seen"])
    assert (seen["version"], seen["authorizationToken"], own["principalId"]) == ("1.0", "allow", "me")
    for path, token, status, text in [
        ("/beta/simple", "", 401, '{"message":"Unauthorized"}'),
        ("/beta/simple", "deny", 403, '{"message":"Forbidden"}'),
        ("/beta/simple", "odd", 500, '{"message":"Internal Server Error"}'),
        ("/beta/policy", "deny", 403, '{"message":"Forbidden"}'),
        ("/beta/policy", "other", 403, '{"message":"Forbidden"}'),
    ]:
        answer = asked(path, token)
        assert (answer.status, answer.body.decode()) == (status, text), (path, token)


def test_unchecked_guards_refuse(apis):
    assert call(apis, "guarded", "/dev/pool", headers={"Authorization": "Bearer x"}).status == 401
    signed = call(apis, "guarded", "/dev/signed")
    assert (signed.status, signed.json()) == (403, {"message": "Missing Authentication Token"})


def raw(worker, text):
    """The status of the answer to these bytes, after which the worker closes, and all that it sends."""
    with socket.create_connection(("127.0.0.1", worker.port), timeout=30) as connection:
        connection.sendall(text)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    return int(answer.split(b" ", 2)[1]), answer


def test_hostile_requests_get_a_clear_status(apis):
    host = b"Host: serverlessrestapi.execute-api.localhost\r\n"
    close = b"Connection: close\r\n\r\n"
    for path in ["/%zz", "/%", "/pets/%ff", "/pets/%c3%28"]:
        assert call(apis, REST, path).status == 400, path
    assert call(apis, REST, "/pets/..%2f..%2fetc").json()["pathParameters"] == {"id": "../../etc"}
    assert call(apis, REST, "/pets/%00").json()["pathParameters"] == {"id": "\0"}
    assert call(apis, REST, "/pets/1?a=%zz&&=&b").status == 200
    assert call(apis, REST, "/pets/1", headers={"X-Long": "x" * 70_000}).status == 431
    assert call(apis, REST, "/pets/1", headers=[(f"X-{n}", "x") for n in range(200)]).status == 431
    assert raw(apis, b"GET /pets/1 HTTP/1.1\r\n" + host + host + close)[0] == 400
    assert raw(apis, b"GET /pets/1 HTTP/1.1\r\n" + close)[0] == 400
    assert raw(apis, b"BREW / HTTP/1.1\r\n" + host + close)[0] == 200
    assert raw(apis, b"OPTIONS * HTTP/1.1\r\n" + host + close)[0] in (200, 400)
    # Two lengths: one message, or none, but never a second request hidden in the first's body.
    hidden = b"GET /hidden HTTP/1.1\r\n" + host + b"\r\n"
    for lengths in [
        b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    ]:
        status, answer = raw(apis, b"POST / HTTP/1.1\r\n" + host + lengths + hidden)
        # The chunks count, and the connection ends with this request.
        expected = 200 if b"hello\r\n0" in lengths else 400
        assert status == expected and answer.count(b"HTTP/1.1 ") == 1, (lengths, answer)


def test_large_requests_are_refused(apis):
    text = {"Content-Type": "text/plain"}
    for api, message in [(REST, "Request Too Long"), (HTTP, "Request Entity Too Large")]:
        # By its length alone, before its body arrives.
        refused = call(apis, api, "/", "POST", {**text, "Content-Length": str(7 << 20)})
        assert (refused.status, refused.json()["message"]) == (413, message)
        # Shorter than the limit, and longer once it is JSON.
        refused = call(apis, api, "/", "POST", text, b"\0" * (2 << 20))
        assert (refused.status, refused.json()["message"]) == (413, message)


def test_full_worker_answers_429_with_a_message(tmp_path):
    template = """
Metadata: { Mayfly: { NearestRuntime: true } }
Resources:
  Echo:
    Type: AWS::Serverless::Function
    Properties:
      Runtime: python3.11
      Handler: app.echo
      CodeUri: CODE
      ReservedConcurrentExecutions: 0
      Events: { All: { Type: HttpApi } }
""".replace("CODE", str(HTTP_APIS / "code"))
    (tmp_path / "template.yaml").write_text(template)
    with Worker(str(tmp_path / "template.yaml")) as running:
        refused = call(running, HTTP, "/")
        assert (refused.status, refused.json()["message"]) == (429, "Too Many Requests")
        assert refused.headers["retry-after"] == "1"
        # A template that is read anew has other routes at once.
        (tmp_path / "template.yaml").write_text(
            template.replace("ReservedConcurrentExecutions: 0", "Timeout: 5").replace(
                "{ Type: HttpApi }", "{ Type: HttpApi, Properties: { Path: /new, Method: get } }"
            )
        )
        running.process.send_signal(1)
        running.wait_for("was read anew")
        until(lambda: call(running, HTTP, "/new").status == 200, running.log)
        assert call(running, HTTP, "/").status == 404
