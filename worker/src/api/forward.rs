//! Forwards requests on connections of a worker that has handed over to its successor.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::header::{CONNECTION, TRANSFER_ENCODING};
use tokio::sync::mpsc;

use super::{Api, Call};
use crate::base::error::ApiError;
use crate::http::client;
use crate::http::{self, Answer};

/// Longer than any function may take, with its start.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Forwards a call unchanged, and passes the answer back while it arrives.
pub async fn forward(api: &Api, call: Call) -> Result<Answer, ApiError> {
    let Call { mut parts, body, client } = call;
    parts.headers.remove(CONNECTION);
    // The body has arrived whole.
    parts.headers.remove(TRANSFER_ENCODING);
    let request = Request::from_parts(parts, Full::new(body));
    let failed = |error| ApiError::service(format!("the worker that has taken over: {error:#}"));
    let answer = client::pass_on(api.address(), request, PATIENCE).await.map_err(failed)?;
    let (head, mut body) = answer.into_parts();
    let (parts, coming) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Some(frame) = body.frame().await {
            let part = match frame.map(hyper::body::Frame::into_data) {
                Ok(Ok(part)) => Ok(client.part(part)),
                Ok(Err(_)) => continue,
                Err(error) => Err(std::io::Error::other(error)),
            };
            if parts.send(part).await.is_err() {
                return;
            }
        }
    });
    let mut answer = http::in_parts(head.status.as_u16(), coming);
    *answer.headers_mut() = head.headers;
    answer.headers_mut().remove(TRANSFER_ENCODING);
    Ok(answer)
}
