"""HTTP APIs of a template, as API Gateway has them: routes, events, answers."""

import base64
import re
import time

import pytest
from api_calls import HTTP, REST, answered, call


def test_logs_each_api_with_its_addresses(apis):
    for line in [
        r"REST API ServerlessRestApi, 4 routes: http://ServerlessRestApi.execute-api.localhost:\d+/Prod/ or",
        r"HTTP API ServerlessHttpApi, 4 routes: .* http://127.0.0.1:\d+/execute-api/ServerlessHttpApi/\s",
        r"HTTP API Staged, 3 routes: http://Staged.execute-api.localhost:\d+/beta/ or",
        r"Live: WebSocket APIs are not supported",
        r"Guarded: GET /pool needs a token of Cognito, which the worker cannot check: it answers 401",
        r"events of Type S3 are not served: an S3 bucket would call the function",
    ]:
        apis.wait_for(line)


def test_rest_event_is_format_1(apis):
    headers = [("X-Own", "a"), ("X-Own", "b"), ("Cookie", "c=1; d=2"), ("User-Agent", "tests")]
    before = time.time()
    answer = call(apis, REST, "/Prod/pets/a%20b?x=1&x=2&y=%C3%A9", headers=headers)
    event = answer.json()
    context = event.pop("requestContext")
    assert 0 <= context.pop("requestTimeEpoch") / 1000 - before + 1 < 60
    assert re.fullmatch(r"\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d \+0000", context.pop("requestTime"))
    request_id = context.pop("requestId")
    assert answer.headers["x-amzn-requestid"] == request_id == context.pop("extendedRequestId")
    assert re.fullmatch("[a-z2-7]{6}", context.pop("resourceId"))
    identity = dict.fromkeys(
        [
            "accessKey",
            "accountId",
            "caller",
            "cognitoAuthenticationProvider",
            "cognitoAuthenticationType",
            "cognitoIdentityId",
            "cognitoIdentityPoolId",
            "principalOrgId",
            "user",
            "userArn",
        ]
    )
    assert context == {
        "accountId": "000000000000",
        "apiId": REST,
        "domainName": f"{REST}.execute-api.localhost",
        "domainPrefix": REST,
        "httpMethod": "GET",
        "identity": {**identity, "sourceIp": "127.0.0.1", "userAgent": "tests"},
        "path": "/Prod/pets/a%20b",
        "protocol": "HTTP/1.1",
        "resourcePath": "/pets/{id}",
        "stage": "Prod",
    }
    trace = event["headers"].pop("X-Amzn-Trace-Id")
    assert trace.startswith("Root=1-") and event["multiValueHeaders"].pop("X-Amzn-Trace-Id") == [trace]
    plain = {
        "Host": f"{REST}.execute-api.localhost:{apis.port}",
        "Cookie": "c=1; d=2",
        "User-Agent": "tests",
        "X-Forwarded-For": "127.0.0.1",
        "X-Forwarded-Port": str(apis.port),
        "X-Forwarded-Proto": "http",
    }
    assert event == {
        "resource": "/pets/{id}",
        "path": "/pets/a%20b",
        "httpMethod": "GET",
        "headers": {**plain, "X-Own": "b"},
        "multiValueHeaders": {**{name: [text] for name, text in plain.items()}, "X-Own": ["a", "b"]},
        "queryStringParameters": {"x": "2", "y": "é"},
        "multiValueQueryStringParameters": {"x": ["1", "2"], "y": ["é"]},
        "pathParameters": {"id": "a b"},
        "stageVariables": None,
        "body": None,
        "isBase64Encoded": False,
    }


def test_http_event_is_format_2(apis):
    headers = [("X-Own", "a"), ("X-Own", "b"), ("Cookie", "c=1; d=2"), ("User-Agent", "tests")]
    headers += [("X-Forwarded-For", "10.0.0.1"), ("X-Forwarded-Proto", "https"), ("Connection", "close")]
    answer = call(apis, HTTP, "/pets/a%20b?x=1&x=2&y=%C3%A9", headers=headers)
    event = answer.json()
    context = event.pop("requestContext")
    assert isinstance(context.pop("timeEpoch"), int)
    assert re.fullmatch(r"\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d \+0000", context.pop("time"))
    assert answer.headers["apigw-requestid"] == context.pop("requestId")
    assert context == {
        "accountId": "000000000000",
        "apiId": "ServerlessHttpApi",
        "domainName": "serverlesshttpapi.execute-api.localhost",
        "domainPrefix": "ServerlessHttpApi",
        "http": {
            "method": "GET",
            "path": "/pets/a b",
            "protocol": "HTTP/1.1",
            "sourceIp": "127.0.0.1",
            "userAgent": "tests",
        },
        "routeKey": "GET /pets/{id}",
        "stage": "$default",
    }
    assert event["headers"].pop("x-amzn-trace-id").startswith("Root=1-")
    assert event == {
        "version": "2.0",
        "routeKey": "GET /pets/{id}",
        "rawPath": "/pets/a b",
        "rawQueryString": "x=1&x=2&y=%C3%A9",
        "cookies": ["c=1", "d=2"],
        "headers": {
            "host": f"serverlesshttpapi.execute-api.localhost:{apis.port}",
            "user-agent": "tests",
            "x-own": "a,b",
            "x-forwarded-for": "10.0.0.1, 127.0.0.1",
            "x-forwarded-port": str(apis.port),
            "x-forwarded-proto": "https",
        },
        "queryStringParameters": {"x": "1,2", "y": "é"},
        "pathParameters": {"id": "a b"},
        "stageVariables": {"COLOUR": "blue"},
        "isBase64Encoded": False,
    }


def test_http_event_may_be_format_1(apis):
    event = call(apis, HTTP, "/one/a%20b").json()
    context = event["requestContext"]
    assert (event["version"], event["path"], event["resource"]) == ("1.0", "/one/a b", "/one/{id}")
    assert context["authorizer"] == {"claims": None, "scopes": None} and context["resourceId"] is None
    assert event["queryStringParameters"] is None and event["stageVariables"] == {"COLOUR": "blue"}


@pytest.mark.parametrize(
    "api, method, path, wanted",
    [
        (REST, "GET", "/Prod/pets/1", "/pets/{id}"),
        (REST, "GET", "/pets/1/", "/pets/{id}"),
        (REST, "POST", "/Prod/pets/1", 403),
        (REST, "PUT", "/Prod", "/"),
        (REST, "DELETE", "/Prod/files/a/b.txt", "/files/{proxy+}"),
        (REST, "GET", "/Prod/files", 403),
        (REST, "GET", "/Prod/none", 403),
        (HTTP, "GET", "/pets/1", "GET /pets/{id}"),
        (HTTP, "POST", "/pets/1", "$default"),
        (HTTP, "GET", "/pets/1/", "$default"),
        (HTTP, "GET", "/", "$default"),
        ("staged", "GET", "/beta/a", "GET /a"),
        ("staged", "GET", "/a", "GET /a"),
        ("staged", "GET", "/a/", 404),
        ("staged", "POST", "/beta/a", 404),
        ("missing", "GET", "/", 404),
        (f"{REST}.execute-api.us-east-1.amazonaws.com", "GET", "/Prod/pets/1", "/pets/{id}"),
    ],
)
def test_most_specific_route_is_called(apis, api, method, path, wanted):
    answer = call(apis, api, path, method)
    if isinstance(wanted, int):
        texts = {403: b'{"message": "Missing Authentication Token"}', 404: b'{"message":"Not Found"}'}
        assert (answer.status, answer.body) == (wanted, texts[wanted]) or api == "missing"
    else:
        event = answer.json()
        assert event.get("routeKey", event.get("resource")) == wanted


def test_plain_path_leads_to_the_same_api(apis):
    event = call(apis, "127.0.0.1", f"/execute-api/{REST}/Prod/pets/1?x=1").json()
    assert (event["path"], event["requestContext"]["path"]) == ("/pets/1", "/Prod/pets/1")
    assert event["requestContext"]["domainName"] == "127.0.0.1"
    redirect = {"statusCode": 302, "headers": {"Location": "/login?a=b"}}
    prefix = f"/execute-api/{REST}"
    answer = answered(apis, "127.0.0.1", redirect, f"{prefix}/Prod/")
    assert (answer.status, answer.headers["location"]) == (302, f"{prefix}/login?a=b")
    assert answered(apis, REST, redirect).headers["location"] == "/login?a=b"


def test_function_url_has_a_name_and_cors(apis):
    url = apis.client().get_function_url_config(FunctionName="Echo")
    assert url["Cors"]["AllowOrigins"] == ["https://page.example"]
    place = url["FunctionUrl"].rstrip("/").rsplit("/", 1)[1]
    page = {"Origin": "https://page.example"}
    answer = call(apis, f"{place}.lambda-url.localhost:{apis.port}", "/a%20b?c=d", headers=page)
    event = answer.json()
    assert (event["rawPath"], event["requestContext"]["http"]["path"]) == ("/a%20b", "/a b")
    assert event["requestContext"]["domainName"] == f"{place}.lambda-url.localhost"
    assert event["headers"]["x-forwarded-for"] == "127.0.0.1"
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert answer.headers["access-control-expose-headers"] == "x-seen"
    wanted = {**page, "Access-Control-Request-Method": "GET"}
    preflight = call(apis, "127.0.0.1", f"/lambda-url/{place}/", "OPTIONS", wanted)
    assert (preflight.status, preflight.headers["access-control-allow-methods"]) == (200, "GET")


def test_bodies_are_text_or_base64(apis):
    def sent(api, path, kind, body):
        event = call(apis, api, path, "POST", {"Content-Type": kind}, body).json()
        return event.get("body"), event["isBase64Encoded"]

    raw = bytes(range(256))
    encoded = base64.b64encode(raw).decode()
    assert sent(REST, "/Prod/", "image/png", raw) == (encoded, True)
    assert sent(REST, "/Prod/", "application/x-www-form-urlencoded", b"a=b") == ("a=b", False)
    assert sent(HTTP, "/", "image/png", raw) == (encoded, True)
    assert sent(HTTP, "/", "application/json", b'{"a": "\xc3\xa9"}') == ('{"a": "é"}', False)
    assert sent(HTTP, "/", "application/x-www-form-urlencoded", b"a=b") == ("YT1i", True)


def test_answers_have_status_headers_cookies_and_binary_bodies(apis):
    full = {
        "statusCode": 201,
        "headers": {"X-One": "1", "X-Both": "b", "Content-Type": "text/html"},
        "multiValueHeaders": {"Set-Cookie": ["a=1", "b=2"], "X-Both": ["a"]},
        "body": "<p>é</p>",
    }
    answer = answered(apis, REST, full)
    assert (answer.status, answer.body.decode(), answer.headers["x-one"]) == (201, "<p>é</p>", "1")
    assert answer.headers.get_all("set-cookie") == ["a=1", "b=2"]
    assert answer.headers.get_all("x-both") == ["b", "a"]
    answer = answered(apis, HTTP, {"statusCode": 200, "cookies": ["a=1", "b=2"], "body": "x"})
    assert answer.headers.get_all("set-cookie") == ["a=1", "b=2"]
    assert answer.headers["content-type"] == "text/plain;charset=UTF-8"
    answer = answered(apis, HTTP, {"any": "thing"})
    assert (answer.headers["content-type"], answer.json()) == ("application/json", {"any": "thing"})
    picture = {
        "statusCode": 200,
        "headers": {"Content-Type": "image/png"},
        "body": "//8=",
        "isBase64Encoded": True,
    }
    assert answered(apis, HTTP, picture).body == b"\xff\xff"
    assert answered(apis, REST, picture, headers={"Accept": "image/png"}).body == b"\xff\xff"
    plain = {**picture, "headers": {"Content-Type": "text/plain"}}
    assert answered(apis, REST, plain).body == b"//8="
    assert answered(apis, REST, {"statusCode": 204}).status == 204
    head = answered(apis, REST, full, method="HEAD")
    assert (head.status, head.body) == (201, b"")


@pytest.mark.parametrize(
    "answer",
    [
        {"statusCode": 200, "body": {"a": 1}},
        {"statusCode": "many"},
        {"statusCode": 42},
        {"statusCode": 200, "headers": {"a b": "c"}},
        {"statusCode": 200, "headers": {"a": "c\r\nd: e"}},
        {"statusCode": 200, "multiValueHeaders": {"a": "b"}},
        {"statusCode": 200, "isBase64Encoded": True, "body": "!", "headers": {"Content-Type": "image/png"}},
        {"statusCode": 200, "own": 1},
        "text",
        None,
    ],
)
def test_invalid_answer_is_502(apis, answer):
    refused = answered(apis, REST, answer)
    assert (refused.status, refused.body) == (502, b'{"message": "Internal server error"}')


def test_http_api_answers_502_too(apis):
    for refused in [
        answered(apis, HTTP, {"statusCode": 42}),
        answered(apis, HTTP, {"statusCode": 200, "headers": {"a b": "c"}}),
        call(apis, HTTP, "/?fail=1"),
    ]:
        assert (refused.status, refused.body) == (502, b'{"message":"Internal Server Error"}')
    apis.wait_for(r"\[Echo\] its answer is no HTTP answer: statusCode is 42 and must be 200 to 599")
    assert call(apis, REST, "/?fail=1").status == 502


def test_slow_function_is_answered_without_it(apis):
    late = call(apis, REST, "/Prod/slow?sleep=2")
    assert (late.status, late.body) == (504, b'{"message": "Endpoint request timed out"}')
    late = call(apis, HTTP, "/slow?sleep=2")
    assert (late.status, late.body) == (503, b'{"message":"Service Unavailable"}')
