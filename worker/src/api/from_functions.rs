//! Calls that functions make to their own worker (`AWS_ENDPOINT_URL_LAMBDA`): they may call functions, and
//! nothing else of the API.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::HeaderValue;

use super::status::error_answer;
use super::{Api, Named, segments};
use crate::base::error::{ApiError, ErrorKind};
use crate::control::stopping;
use crate::http::connections::Connections;
use crate::http::{self, Answer, BodyMemory};
use crate::sandbox::interface::Handler;
use worker_system::text::shown;

/// The most bytes of all answers that functions have not read yet.
const ANSWERS_BYTES: usize = 256 * 1024 * 1024;
/// How long an answer waits for room among them, which is free once others are read or their connections
/// closed.
const ROOM: std::time::Duration = http::UNTAKEN.saturating_mul(2);

/// State of all calls of functions.
pub struct Calls {
    connections: Arc<Connections>,
    answers: BodyMemory,
}

impl Default for Calls {
    fn default() -> Calls {
        Calls { connections: Arc::default(), answers: BodyMemory::new(ANSWERS_BYTES) }
    }
}

/// Answers calls of functions for as long as the API is there.
pub fn handler(api: &Arc<Api>) -> Handler {
    let api = Arc::downgrade(api);
    Arc::new(move |request| {
        let api = api.upgrade();
        Box::pin(async move {
            let id = uuid::Uuid::new_v4().to_string();
            let outcome = match api {
                Some(api) => answer(&api, request).await,
                None => Err(stopping()),
            };
            let mut answer = outcome.unwrap_or_else(|error| error_answer(&error));
            if !answer.headers().contains_key("x-amzn-requestid") {
                let id = HeaderValue::from_str(&id).expect("a UUID is a header");
                answer.headers_mut().insert("x-amzn-requestid", id);
            }
            answer
        })
    })
}

async fn answer(api: &Api, request: Request<Incoming>) -> Result<Answer, ApiError> {
    let path = segments(request.uri().path());
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let named = Named::of(request.method(), &path, request.uri().query());
    if named.is_none_or(|named| !named.operation.is_invocation()) {
        let called = format!("{} {}", request.method(), shown(request.uri().path()));
        return Err(ErrorKind::AccessDenied.with(format!(
            "{called}: functions reach Invoke of their own worker here, and no other call or service"
        )));
    }
    let Calls { connections, answers } = &api.from_functions;
    let connection = connections.add(IpAddr::V4(Ipv4Addr::LOCALHOST));
    connection.works();
    let mut answer = api.answer(&connection, request).await?;
    tokio::time::timeout(ROOM, answer.body_mut().held(answers))
        .await
        .map_err(|_| ApiError::service("functions leave too many answers unread"))?;
    Ok(answer)
}
