//! Lambda authorisers: functions that decide whether a request reaches a route's function.

use serde_json::{Map, Value, json};

use super::events::{self, Context, route_key};
use super::policy::{Verdict, verdict};
use super::request::Received;
use super::routes::{decoded, without_stage};
use crate::base::name::{ACCOUNT, REGION};
use crate::function::http_api::{Authorizer, AuthorizerEvent, HttpApi, Identity};

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It names no caller.
    Unauthorized,
    /// The authoriser denies it; whether a statement of its policy does.
    Denied(bool),
    /// The authoriser has no valid answer, and why.
    Broken(String),
}

/// The ARN of a call, which policies name.
pub fn arn(received: &Received<'_>, api: &HttpApi) -> String {
    let path = without_stage(&received.path, &api.stage);
    let path = decoded(path).unwrap_or_default();
    let (id, stage, method) = (&api.id, &api.stage, received.parts.method.as_str());
    format!("arn:aws:execute-api:{REGION}:{ACCOUNT}:{id}/{stage}/{method}{path}")
}

/// The event for an authoriser.
///
/// # Errors
/// The request lacks the caller's identity.
pub fn event(
    authorizer: &Authorizer,
    received: &Received<'_>,
    context: &Context<'_>,
) -> Result<Value, Refusal> {
    let arn = arn(received, context.api);
    let whole = match authorizer.event {
        AuthorizerEvent::HttpTwo => events::two_without_body(received, context),
        _ => events::one_without_body(received, context),
    };
    let mut identity = Vec::new();
    for source in &authorizer.identity {
        let value = value_of(source, received, context, &whole).filter(|value| !value.is_empty());
        identity.push(value.ok_or(Refusal::Unauthorized)?);
    }
    if authorizer.event == AuthorizerEvent::Token {
        let token = identity.first().cloned().unwrap_or_default();
        let is_valid = match &authorizer.validation {
            Some(pattern) => is_whole_match(pattern, &token)?,
            None => true,
        };
        if !is_valid {
            return Err(Refusal::Unauthorized);
        }
        return Ok(json!({ "type": "TOKEN", "methodArn": arn, "authorizationToken": token }));
    }
    let Value::Object(mut event) = whole else { return Err(Refusal::Broken("no event".into())) };
    for key in ["body", "isBase64Encoded"] {
        event.remove(key);
    }
    event.insert("type".into(), "REQUEST".into());
    match authorizer.event {
        AuthorizerEvent::HttpTwo => {
            event.insert("routeArn".into(), arn.into());
            event.insert("routeKey".into(), route_key(context.route).into());
            event.insert("identitySource".into(), json!(identity));
        }
        AuthorizerEvent::HttpOne => {
            event.insert("methodArn".into(), arn.into());
            let identity = identity.join(",");
            event.insert("authorizationToken".into(), identity.clone().into());
            event.insert("identitySource".into(), identity.into());
        }
        _ => {
            event.insert("methodArn".into(), arn.into());
        }
    }
    Ok(Value::Object(event))
}

fn is_whole_match(pattern: &str, token: &str) -> Result<bool, Refusal> {
    let pattern = regex::Regex::new(&format!("^(?:{pattern})$"));
    let pattern = pattern.map_err(|error| Refusal::Broken(format!("ValidationExpression: {error}")))?;
    Ok(pattern.is_match(token))
}

fn value_of(
    source: &Identity,
    received: &Received<'_>,
    context: &Context<'_>,
    event: &Value,
) -> Option<String> {
    match source {
        Identity::Header(name) => received.header(&name.to_ascii_lowercase()).map(str::to_string),
        Identity::Query(name) => {
            received.query().into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
        }
        Identity::Variable(name) => context.api.variables.get(name).cloned(),
        Identity::Context(path) => {
            let found = path.split('.').try_fold(&event["requestContext"], |value, key| value.get(key))?;
            Some(found.as_str().map_or_else(|| found.to_string(), str::to_string))
        }
    }
}

/// What the authoriser adds to the event of the route's function, by its answer.
///
/// # Errors
/// It denies the request, or its answer is invalid.
pub fn consent(authorizer: &Authorizer, answer: &[u8], arn: &str) -> Result<Value, Refusal> {
    let broken = |reason: &str| Refusal::Broken(reason.into());
    let answer: Value = serde_json::from_slice(answer).map_err(|_| broken("it is no JSON"))?;
    let Value::Object(answer) = answer else { return Err(broken("it should be an object")) };
    let is_http = matches!(authorizer.event, AuthorizerEvent::HttpOne | AuthorizerEvent::HttpTwo);
    let own = match answer.get("context") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(own)) => own.clone(),
        Some(_) => return Err(broken("context should be an object")),
    };
    if authorizer.simple {
        return match answer.get("isAuthorized") {
            Some(Value::Bool(true)) => Ok(Value::Object(own)),
            Some(Value::Bool(false)) => Err(Refusal::Denied(false)),
            _ => Err(broken("isAuthorized should be true or false")),
        };
    }
    let principal = answer.get("principalId").and_then(Value::as_str).map(str::to_string);
    if principal.is_none() && !is_http {
        return Err(broken("principalId should be a text"));
    }
    let policy = answer.get("policyDocument").ok_or_else(|| broken("policyDocument is missing"))?;
    match verdict(policy, arn).map_err(Refusal::Broken)? {
        Verdict::Allowed => {}
        Verdict::Denied => return Err(Refusal::Denied(true)),
        Verdict::Unmentioned => return Err(Refusal::Denied(false)),
    }
    if is_http {
        let principal = principal.map(|principal| ("principalId".to_string(), principal.into()));
        let is_one = authorizer.event == AuthorizerEvent::HttpOne;
        return Ok(Value::Object(own.into_iter().chain(principal.filter(|_| is_one)).collect()));
    }
    let mut added = Map::from_iter([
        ("principalId".to_string(), principal.unwrap_or_default().into()),
        ("integrationLatency".to_string(), 0.into()),
    ]);
    for (name, value) in own {
        // A REST API passes on plain values alone, as texts.
        let text = match value {
            Value::String(text) => text,
            Value::Bool(_) | Value::Number(_) => value.to_string(),
            Value::Null => continue,
            _ => return Err(broken("context should have texts, numbers and truth values alone")),
        };
        added.insert(name, text.into());
    }
    Ok(Value::Object(added))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authorizer(event: AuthorizerEvent, simple: bool) -> Authorizer {
        Authorizer {
            target: crate::base::name::parse("a").unwrap(),
            event,
            identity: Vec::new(),
            validation: None,
            simple,
        }
    }

    fn consented(event: AuthorizerEvent, simple: bool, answer: &Value) -> Result<Value, Refusal> {
        consent(&authorizer(event, simple), answer.to_string().as_bytes(), "arn:x")
    }

    #[test]
    fn simple_answers_allow_and_deny() {
        let of = |answer: Value| consented(AuthorizerEvent::HttpTwo, true, &answer);
        let context = json!({ "a": { "b": [1] } });
        assert_eq!(of(json!({ "isAuthorized": true, "context": context })), Ok(context));
        assert_eq!(of(json!({ "isAuthorized": false })), Err(Refusal::Denied(false)));
        for broken in [json!({}), json!({ "isAuthorized": "true" }), json!([]), json!(null)] {
            assert!(matches!(of(broken), Err(Refusal::Broken(_))));
        }
    }

    #[test]
    fn rest_context_is_texts() {
        let statement = json!({ "Effect": "Allow", "Action": "execute-api:Invoke", "Resource": "*" });
        let policy = json!({ "Statement": [statement] });
        let answer =
            json!({ "principalId": "me", "policyDocument": policy, "context": { "n": 1, "b": true } });
        let added = consented(AuthorizerEvent::Token, false, &answer).unwrap();
        let wanted = json!({ "principalId": "me", "n": "1", "b": "true", "integrationLatency": 0 });
        assert_eq!(added, wanted);
        let mut nested = answer.clone();
        nested["context"] = json!({ "o": {} });
        assert!(matches!(consented(AuthorizerEvent::Token, false, &nested), Err(Refusal::Broken(_))));
        let mut nameless = answer;
        nameless["principalId"] = Value::Null;
        assert!(matches!(consented(AuthorizerEvent::Token, false, &nameless), Err(Refusal::Broken(_))));
        assert!(consented(AuthorizerEvent::HttpTwo, false, &nameless).is_ok());
    }

    #[test]
    fn validation_covers_the_whole_token() {
        assert_eq!(is_whole_match("a|ab", "ab"), Ok(true));
        assert_eq!(is_whole_match("Bearer [a-z]+", "xBearer abc"), Ok(false));
        assert!(is_whole_match("(", "a").is_err());
    }
}
