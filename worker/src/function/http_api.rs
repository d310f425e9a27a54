//! An HTTP API: routes that call functions, as API Gateway's REST and HTTP APIs and function URLs have it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::name::Target;

/// The kind of an API, which decides events, answers and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `AWS::Serverless::Api`.
    Rest,
    /// `AWS::Serverless::HttpApi`.
    Http,
}

/// The format of a function's event and answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Payload format 1.0.
    One,
    /// Payload format 2.0.
    Two,
}

/// The stage of an HTTP API that is not part of the path.
pub const DEFAULT: &str = "$default";
/// The method of a route for all methods.
pub const ANY: &str = "ANY";

/// An API of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpApi {
    /// Its logical id in the template: the name in `ID.execute-api.localhost`.
    pub id: String,
    /// REST or HTTP.
    pub kind: Kind,
    /// The name of its stage.
    pub stage: String,
    /// The variables of its stage.
    pub variables: BTreeMap<String, String>,
    /// `BinaryMediaTypes` of a REST API.
    pub binary: Vec<String>,
    /// `CorsConfiguration` of an HTTP API.
    pub cors: Option<Cors>,
    /// `Cors` of a REST API: headers of the answer to `OPTIONS`.
    pub options: Option<Options>,
    /// Its routes.
    pub routes: Vec<Route>,
    /// Its authorisers, by name.
    pub authorizers: BTreeMap<String, Authorizer>,
}

/// A route of an API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// In capitals, or [`ANY`].
    pub method: String,
    /// `/a/{b}/{c+}`, or [`DEFAULT`].
    pub path: String,
    /// The function that it calls.
    pub target: Target,
    /// The format of its events and answers.
    pub format: Format,
    /// Checks its requests.
    pub guard: Guard,
    /// How long an answer may take; otherwise as long as the API's kind allows.
    pub timeout_ms: Option<u64>,
}

/// What a request needs to reach a route's function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Nothing.
    Open,
    /// The consent of this authoriser of the API.
    Authorizer(String),
    /// A signature by the worker's credentials.
    Iam,
    /// A check that the worker does not have: every request is refused. Its name.
    Unsupported(String),
}

/// A Lambda authoriser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorizer {
    /// Its function.
    pub target: Target,
    /// Its event.
    pub event: AuthorizerEvent,
    /// Where it finds the caller's identity. A request without them is refused.
    pub identity: Vec<Identity>,
    /// `ValidationExpression`: a pattern for the token.
    pub validation: Option<String>,
    /// `EnableSimpleResponses`: the answer is `isAuthorized`, and no policy.
    pub simple: bool,
}

/// The event of a Lambda authoriser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorizerEvent {
    /// A REST API's, with the token alone.
    Token,
    /// A REST API's, with the request.
    Request,
    /// An HTTP API's, in format 1.0.
    HttpOne,
    /// An HTTP API's, in format 2.0.
    HttpTwo,
}

/// Where an authoriser finds a part of the caller's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A header.
    Header(String),
    /// A query parameter.
    Query(String),
    /// A variable of the stage.
    Variable(String),
    /// A value of `requestContext`.
    Context(String),
}

/// Cross-origin requests, as an HTTP API or a function URL allows them: the worker adds the headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields, default)]
pub struct Cors {
    /// Whether a page may send cookies.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_credentials: bool,
    /// Headers of requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_headers: Vec<String>,
    /// Methods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_methods: Vec<String>,
    /// Origins of pages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_origins: Vec<String>,
    /// Headers of answers that a page may read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expose_headers: Vec<String>,
    /// Seconds for which a browser may keep the answer to a preflight request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<u64>,
}

/// A REST API's answer to `OPTIONS`, whatever the request's origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `Access-Control-Allow-Methods`; otherwise those of the path.
    pub methods: Option<String>,
    /// The other headers.
    pub headers: BTreeMap<String, String>,
}
