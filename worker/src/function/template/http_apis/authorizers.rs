//! `Auth` of APIs and of their events.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::{target_of, text_of};
use crate::function::http_api::{Authorizer, AuthorizerEvent, Guard, HttpApi, Identity, Kind};

/// What guards the routes of an API.
#[derive(Clone, Debug, Default)]
pub struct Auth {
    /// `DefaultAuthorizer`.
    default: Option<String>,
    /// Authorisers that the worker cannot ask: what they are, by name.
    pub unsupported: BTreeMap<String, String>,
}

impl Auth {
    /// What guards a route with this `Auth` of its own.
    ///
    /// # Errors
    /// It names an authoriser that there is not.
    pub fn guard(&self, own: Option<&Json>, api: &HttpApi) -> Result<Guard, String> {
        let named = own.and_then(|own| own.get("Authorizer")).and_then(Json::as_str);
        match named.or(self.default.as_deref()) {
            None => Ok(Guard::Open),
            Some(name) => self.named(name, api),
        }
    }

    /// What guards a route whose authoriser has this name.
    pub fn named(&self, name: &str, api: &HttpApi) -> Result<Guard, String> {
        if name == "NONE" {
            return Ok(Guard::Open);
        }
        if name == "AWS_IAM" {
            return Ok(Guard::Iam);
        }
        if api.authorizers.contains_key(name) {
            return Ok(Guard::Authorizer(name.into()));
        }
        let kind = self.unsupported.get(name);
        let kind = kind.ok_or_else(|| format!("{} has no authorizer '{}'", api.id, name.escape_debug()))?;
        Ok(Guard::Unsupported(kind.clone()))
    }
}

/// The Lambda authorisers of an API, and what guards its routes.
pub fn read(
    kind: Kind,
    auth: Option<&Json>,
    id: &str,
    notes: &mut Vec<String>,
) -> (BTreeMap<String, Authorizer>, Auth) {
    let mut known = BTreeMap::new();
    let mut read = Auth::default();
    let Some(auth) = auth else { return (known, read) };
    read.default = auth.get("DefaultAuthorizer").and_then(Json::as_str).map(str::to_string);
    for (name, own) in auth.get("Authorizers").and_then(Json::as_object).into_iter().flatten() {
        match authorizer(kind, own) {
            Ok(authorizer) => drop(known.insert(name.clone(), authorizer)),
            Err(reason) => drop(read.unsupported.insert(name.clone(), reason)),
        }
    }
    for key in unsupported(auth.as_object()) {
        notes.push(format!("{id}: Auth.{key} is not supported and passed over"));
    }
    (known, read)
}

/// The keys that the worker does not read, of an `Auth` or of a method: without them more callers may call.
pub fn unsupported(own: Option<&Map<String, Json>>) -> impl Iterator<Item = &'static str> {
    let is_on = move |key: &&str| {
        let value = own.and_then(|own| own.get(*key));
        value.is_some_and(|value| text_of(value) != "false")
    };
    ["ApiKeyRequired", "ResourcePolicy", "UsagePlan"].into_iter().filter(is_on)
}

fn authorizer(kind: Kind, own: &Json) -> Result<Authorizer, String> {
    let text = |key: &str| own.get(key).map(text_of);
    let Some(function) = text("FunctionArn") else {
        let kind = if own.get("UserPoolArn").is_some() {
            "a token of Cognito"
        } else if own.get("JwtConfiguration").is_some() {
            "a JSON web token"
        } else {
            "an authorizer without FunctionArn"
        };
        return Err(kind.into());
    };
    let target = target_of(&function)
        .or_else(|| crate::base::name::parse(&function).ok())
        .ok_or("an authorizer that is no function here")?;
    let given = own.get("Identity");
    let names = |key: &str| {
        let list = given.and_then(|given| given.get(key)).and_then(Json::as_array).into_iter().flatten();
        list.map(text_of).collect::<Vec<_>>()
    };
    let mut identity: Vec<Identity> = Vec::new();
    identity.extend(names("Headers").into_iter().map(Identity::Header));
    identity.extend(names("QueryStrings").into_iter().map(Identity::Query));
    identity.extend(names("StageVariables").into_iter().map(Identity::Variable));
    identity.extend(names("Context").into_iter().map(Identity::Context));
    let event = match (kind, text("FunctionPayloadType").as_deref(), text("AuthorizerPayloadFormatVersion")) {
        (Kind::Rest, Some("REQUEST"), _) => AuthorizerEvent::Request,
        (Kind::Rest, ..) => AuthorizerEvent::Token,
        (Kind::Http, _, Some(version)) if version.starts_with('1') => AuthorizerEvent::HttpOne,
        (Kind::Http, ..) => AuthorizerEvent::HttpTwo,
    };
    match event {
        AuthorizerEvent::Token => {
            let header = given.and_then(|given| given.get("Header")).map(text_of);
            identity = vec![Identity::Header(header.unwrap_or_else(|| "Authorization".into()))];
        }
        // Without a cache of answers an authoriser of a REST API is asked whatever the request has.
        AuthorizerEvent::Request => {
            let kept = given.and_then(|given| given.get("ReauthorizeEvery")).map(text_of);
            if kept.as_deref() == Some("0") {
                identity.clear();
            }
        }
        _ => {}
    }
    let validation = given.and_then(|given| given.get("ValidationExpression")).map(text_of);
    let simple = own.get("EnableSimpleResponses").is_some_and(|value| text_of(value) == "true");
    Ok(Authorizer { target, event, identity, validation, simple: simple && kind == Kind::Http })
}
