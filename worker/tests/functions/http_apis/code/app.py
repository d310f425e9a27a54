"""A function that answers with its event, or as the query asks, and an authoriser of both kinds of APIs."""

import json
import time


def echo(event, context):
    query = event.get("queryStringParameters") or {}
    time.sleep(float(query.get("sleep", 0)))
    if "fail" in query:
        raise ValueError("as asked")
    if "answer" in query:
        return json.loads(query["answer"])
    return {"statusCode": 200, "headers": {"Content-Type": "application/json"}, "body": json.dumps(event)}


def authorize(event, context):
    headers, identity = event.get("headers") or {}, event.get("identitySource") or [""]
    token = event.get("authorizationToken") or headers.get("X-Token") or identity[0]
    if token == "unknown":
        raise Exception("Unauthorized")
    if token == "broken":
        raise ValueError("as asked")
    if token == "odd":
        return {"isAuthorized": "yes"}
    own = {"seen": json.dumps(event), "number": 7, "flag": True}
    if "routeArn" in event:
        return {"isAuthorized": token == "allow", "context": own}
    here = event["methodArn"].rsplit("/", 1)[0] + "/*"
    statement = {
        "Action": "execute-api:Invoke",
        "Effect": "Deny" if token == "deny" else "Allow",
        "Resource": "arn:aws:s3:::elsewhere" if token == "other" else here,
    }
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    return {"principalId": "me", "policyDocument": policy, "context": own}
