//! HTTP/1.1 connections with bounds: on headers, on time, on bodies and on the memory that all bodies take.

pub(crate) mod client;
pub(crate) mod connections;
pub(crate) mod heads;
pub mod sigv4;

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::http::connections::{Client, Part};
use crate::http::heads::Heads;

/// An answer.
pub type Answer = Response<AnswerBody>;

/// An answer's body.
#[derive(Debug)]
pub enum AnswerBody {
    /// All of it.
    Whole(Option<Part>),
    /// Part by part as it is made. An error breaks the connection off, so that the client does not take a
    /// part for the whole.
    Parts(mpsc::Receiver<io::Result<Part>>),
}

impl AnswerBody {
    /// Counts a whole body from now on until the client has read it. Returns whether it is whole.
    pub fn counted(&mut self, client: &Client) -> bool {
        let AnswerBody::Whole(part) = self else { return false };
        *part = part.take().map(|part| client.part(part.into_bytes()));
        true
    }

    /// Has a whole body use this memory until the client has read it. Waits for room.
    pub async fn held(&mut self, memory: &BodyMemory) {
        let AnswerBody::Whole(Some(part)) = self else { return };
        let wanted = part.remaining().div_ceil(KIB) as u32;
        part.hold(memory.0.clone().acquire_many_owned(wanted).await.ok());
    }
}

impl Body for AnswerBody {
    type Data = Part;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Part>>>> {
        let part = match &mut *self {
            AnswerBody::Whole(part) => Poll::Ready(part.take().map(Ok)),
            AnswerBody::Parts(parts) => parts.poll_recv(context),
        };
        part.map(|part| part.map(|part| part.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, AnswerBody::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Whole(part) => SizeHint::with_exact(part.as_ref().map_or(0, Buf::remaining) as u64),
            AnswerBody::Parts(_) => SizeHint::default(),
        }
    }
}

/// A request's headers must arrive within this time, and the next request of a connection begin.
const HEADERS: Duration = Duration::from_secs(30);
/// A request's body must arrive within this time.
const BODY: Duration = Duration::from_secs(60);
/// The longest time without any bytes of a body.
const STALL: Duration = Duration::from_secs(10);
/// The longest time in which a client reads nothing of an answer.
pub const UNTAKEN: Duration = Duration::from_secs(30);
/// All headers of one request together.
pub const HEADER_BYTES: usize = 64 * 1024;
const HEADER_COUNT: usize = 100;
const KIB: usize = 1024;

/// Has the kernel close a connection whose client has read nothing of its pending data for this time, or
/// has vanished: its answer would wait for ever, and keep a place and its memory.
///
/// # Errors
/// It is closed already.
pub fn close_untaken(stream: &TcpStream, after: Duration) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_tcp_user_timeout(stream, after.as_millis() as u32)?)
}

/// Serves one connection until it is closed. The caller may drop the future at any time, which closes it.
/// A request has at most `header_bytes` of headers.
pub async fn serve<S, F, A>(stream: S, header_bytes: usize, handler: F)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>) -> A,
    A: Future<Output = Answer>,
{
    let service = service_fn(|request| {
        let wrong = broken_rule(&request, header_bytes);
        let answer = wrong.is_none().then(|| handler(request));
        async move {
            Ok::<_, Infallible>(match (wrong, answer) {
                (Some(wrong), _) => wrong,
                (None, Some(answer)) => answer.await,
                (None, None) => unreachable!("one of both is there"),
            })
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(header_bytes)
        .max_headers(HEADER_COUNT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        // The client disconnected or spoke no HTTP: no fault of the worker.
        tracing::debug!("connection: {error}");
    }
}

/// Serves a connection of an instance, whose long heads are bounded together with those of its others.
pub(crate) async fn serve_instance<S, F, A>(stream: S, header_bytes: usize, heads: &Heads, handler: F)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>) -> A,
    A: Future<Output = Answer>,
{
    let (stream, state) = heads.bound(stream);
    let handler = |request| {
        state.works();
        let (answer, state) = (handler(request), state.clone());
        async move {
            let mut answer = answer.await;
            if state.is_done() {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            answer
        }
    };
    tokio::select! {
        biased;
        () = state.closed() => {}
        () = serve(stream, header_bytes, handler) => {}
    }
}

/// Refuses what HTTP's own rules forbid: a request of version 1.1 names one host (RFC 9112 §3.2). Also
/// enforces the bound on headers, which the parser's buffer enforces only roughly.
fn broken_rule(request: &Request<Incoming>, header_bytes: usize) -> Option<Answer> {
    let headers = request.headers();
    let refused = |status, text: &str| Some(answer(status, "text/plain", text.to_string()));
    let hosts = headers.get_all(HOST).iter().count();
    if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
        return refused(400, "a request must have one Host header\n");
    }
    if bytes_of(headers) > header_bytes {
        return refused(431, &format!("all headers together may have {header_bytes} bytes\n"));
    }
    None
}

/// Whether these headers are no longer than those of a request may be.
pub fn are_bounded(headers: &HeaderMap) -> bool {
    bytes_of(headers) <= HEADER_BYTES
}

fn bytes_of(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
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
    /// Other bodies use all of the memory for bodies.
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

    /// Reads a body of at most `limit` bytes. What has arrived counts until the permit is dropped; what a
    /// client only announces does not.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub async fn read(
        &self,
        body: Incoming,
        limit: usize,
    ) -> Result<(Bytes, OwnedSemaphorePermit), BodyError> {
        let none = || self.0.clone().try_acquire_many_owned(0).map_err(|_| BodyError::NoRoom);
        let (mut permit, mut counted) = (none()?, 0);
        let body = read(body, limit, |bytes| {
            let wanted = bytes.div_ceil(KIB);
            let more = (wanted - counted) as u32;
            permit.merge(self.0.clone().try_acquire_many_owned(more).map_err(|_| BodyError::NoRoom)?);
            counted = wanted;
            Ok(())
        });
        let body = body.await?;
        Ok((body, permit))
    }
}

/// Reads a body of at most `limit` bytes, where connections are so few that their sum needs no bound.
///
/// # Errors
/// See [`BodyError`].
pub async fn read_alone(body: Incoming, limit: usize) -> Result<Bytes, BodyError> {
    read(body, limit, |_| Ok(())).await
}

/// Calls `count` with the total length before it buffers more.
async fn read(
    mut body: Incoming,
    limit: usize,
    mut count: impl FnMut(usize) -> Result<(), BodyError>,
) -> Result<Bytes, BodyError> {
    if body.size_hint().lower() > limit as u64 {
        return Err(BodyError::TooLong);
    }
    let deadline = Instant::now() + BODY;
    let mut whole = BytesMut::new();
    loop {
        let patience = STALL.min(deadline.saturating_duration_since(Instant::now()));
        let frame = tokio::time::timeout(patience, body.frame()).await.map_err(|_| BodyError::TooSlow)?;
        let Some(frame) = frame else { return Ok(whole.freeze()) };
        let Ok(part) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
        if whole.len() + part.len() > limit {
            return Err(BodyError::TooLong);
        }
        count(whole.len() + part.len())?;
        whole.extend_from_slice(&part);
    }
}

/// An answer with this body.
pub fn answer(status: u16, content_type: &str, body: impl Into<Bytes>) -> Answer {
    let body = body.into();
    let mut answer = with_body(status, AnswerBody::Whole(None));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_str(content_type).expect("content types are valid"));
    headers.insert(CONTENT_LENGTH, body.len().into());
    if !body.is_empty() {
        *answer.body_mut() = AnswerBody::Whole(Some(Part::uncounted(body)));
    }
    answer
}

/// The same answer with this body.
pub fn replace_body(mut answer: Answer, body: Bytes) -> Answer {
    answer.headers_mut().insert(CONTENT_LENGTH, body.len().into());
    let part = (!body.is_empty()).then(|| Part::uncounted(body));
    *answer.body_mut() = AnswerBody::Whole(part);
    answer
}

/// An answer whose body comes part by part.
pub fn in_parts(status: u16, parts: mpsc::Receiver<io::Result<Part>>) -> Answer {
    with_body(status, AnswerBody::Parts(parts))
}

fn with_body(status: u16, body: AnswerBody) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer
}

/// An answer in JSON.
pub fn json(status: u16, value: &serde_json::Value) -> Answer {
    answer(status, "application/json", value.to_string())
}

/// An answer without a body.
pub fn empty(status: u16) -> Answer {
    with_body(status, AnswerBody::Whole(None))
}

/// The text of a header, if there is one.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn client_that_reads_nothing_of_an_answer_loses_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        close_untaken(&stream, Duration::from_secs(1)).unwrap();
        let endless = async {
            loop {
                if let Err(error) = stream.write_all(&[0; 1 << 16]).await {
                    return error;
                }
            }
        };
        let error = tokio::time::timeout(Duration::from_secs(60), endless).await.expect("it is closed");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(silent);
    }
}
