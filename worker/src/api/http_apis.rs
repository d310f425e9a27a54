//! Answers requests to HTTP APIs of the template.

use std::sync::Arc;
use std::time::SystemTime;

use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;

use super::call::Call;
use super::endpoint::Endpoint;
use super::{Api, forward};
use crate::base::error::ApiError;
use crate::base::limits;
use crate::function::http_api::{HttpApi, Kind};
use crate::gateway;
use crate::gateway::request::Received;
use crate::http::connections::Connection;
use crate::http::{Answer, BodyError};

/// Answers a request to an HTTP API. What no function is called for is answered without its body.
pub async fn answer(
    api: &Api,
    connection: &Connection,
    endpoint: &Endpoint,
    parts: Parts,
    body: Incoming,
) -> Result<Answer, ApiError> {
    let Some(own) = api.worker.http_api(&endpoint.id) else {
        return Ok(gateway::error(Kind::Http, 404, "there is no such API"));
    };
    let matched = match gateway::find(&own, &parts, &endpoint.path) {
        Ok(matched) => matched,
        Err(answer) => return Ok(*answer),
    };
    let (body, _memory) = match api.bodies.read(body, limits::PAYLOAD_BYTES).await {
        Ok(read) => read,
        Err(error) => return Ok(body_error(&own, &error)),
    };
    connection.works();
    if api.is_over() {
        return forward::forward(api, Call { parts, body, client: connection.client().clone() }).await;
    }
    let received = Received {
        parts: &parts,
        body,
        path: endpoint.path.clone(),
        peer: connection.client().peer(),
        time: SystemTime::now(),
    };
    let mut answer = gateway::call(&api.worker, &own, &matched, &received).await;
    endpoint.lead_back(&mut answer);
    Ok(answer)
}

fn body_error(own: &Arc<HttpApi>, error: &BodyError) -> Answer {
    match error {
        BodyError::TooLong => gateway::too_long(own.kind),
        BodyError::TooSlow => gateway::error(own.kind, 408, "Request Timeout"),
        BodyError::Broken => gateway::error(own.kind, 400, "Bad Request"),
        BodyError::NoRoom => {
            let mut answer = gateway::error(own.kind, 429, "Too Many Requests");
            answer.headers_mut().insert("retry-after", HeaderValue::from_static("1"));
            answer
        }
    }
}
