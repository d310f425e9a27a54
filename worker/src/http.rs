//! HTTP/1.1 connections with bounds: on headers, on time, on bodies and on the memory that all bodies take.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// An answer, all of it in memory.
pub type Answer = Response<Full<Bytes>>;

/// A request's headers must arrive within this time, and the next request of a connection begin.
const HEADERS: Duration = Duration::from_secs(30);
/// A request's body must arrive within this time.
const BODY: Duration = Duration::from_secs(60);
/// All headers of one request together.
const HEADER_BYTES: usize = 64 * 1024;
const HEADER_COUNT: usize = 100;
const KIB: usize = 1024;

/// Serves one connection until it is closed.
pub async fn serve<S, F, A>(stream: S, handler: F)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>) -> A,
    A: Future<Output = Answer>,
{
    let service = service_fn(|request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(HEADER_BYTES)
        .max_headers(HEADER_COUNT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        // The other side went away or spoke no HTTP: nothing of ours is wrong.
        tracing::debug!("connection: {error}");
    }
}

/// Why a body could not be read.
#[derive(Debug, PartialEq, Eq)]
pub enum BodyError {
    /// Longer than the limit.
    TooLong,
    /// It took too long to arrive.
    TooSlow,
    /// The connection broke.
    Broken,
    /// Other bodies take all the memory that there is for bodies.
    NoRoom,
}

/// Memory for bodies that are being received or handled.
#[derive(Clone)]
pub struct BodyMemory(Arc<Semaphore>);

impl BodyMemory {
    /// This much at most.
    pub fn new(bytes: usize) -> BodyMemory {
        BodyMemory(Arc::new(Semaphore::new(bytes / KIB)))
    }

    /// Reads a body of at most `limit` bytes. Its memory counts until the permit is dropped.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub async fn read(
        &self,
        body: Incoming,
        limit: usize,
    ) -> Result<(Bytes, OwnedSemaphorePermit), BodyError> {
        let announced = body.size_hint().exact().unwrap_or(limit as u64);
        if announced > limit as u64 {
            return Err(BodyError::TooLong);
        }
        let permits = (announced as usize).div_ceil(KIB) as u32;
        let permit = self.0.clone().try_acquire_many_owned(permits).map_err(|_| BodyError::NoRoom)?;
        Ok((read_alone(body, limit).await?, permit))
    }
}

/// Reads a body of at most `limit` bytes, where connections are so few that their sum needs no bound.
///
/// # Errors
/// See [`BodyError`].
pub async fn read_alone(body: Incoming, limit: usize) -> Result<Bytes, BodyError> {
    let read = tokio::time::timeout(BODY, Limited::new(body, limit).collect());
    match read.await {
        Err(_) => Err(BodyError::TooSlow),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(BodyError::TooLong),
        Ok(Err(_)) => Err(BodyError::Broken),
    }
}

/// An answer with this body.
pub fn answer(status: u16, content_type: &str, body: impl Into<Bytes>) -> Answer {
    let body = body.into();
    Response::builder()
        .status(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR))
        .header(CONTENT_TYPE, content_type)
        .header(CONTENT_LENGTH, body.len())
        .body(Full::new(body))
        .expect("status and content types are valid")
}

/// An answer in JSON.
pub fn json(status: u16, value: &serde_json::Value) -> Answer {
    answer(status, "application/json", value.to_string())
}

/// An answer without a body.
pub fn empty(status: u16) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::new()));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer
}

/// The text of a header, if there is one.
pub fn header<'a>(headers: &'a hyper::HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
