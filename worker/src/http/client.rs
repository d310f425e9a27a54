//! Requests to servers that the operator has named, in plain HTTP. Redirects are not followed.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The longest time without any bytes of an answer.
pub const STALL: Duration = Duration::from_secs(30);

/// Sends a request, and waits so long for the head of the answer.
///
/// # Errors
/// The server cannot be reached, or does not answer.
pub async fn send(
    address: SocketAddr,
    mut request: Request<Full<Bytes>>,
    patience: Duration,
) -> Result<Response<Incoming>> {
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_str(&address.to_string())?);
    headers.insert(USER_AGENT, HeaderValue::from_static("mayfly"));
    pass_on(address, request, patience).await
}

/// Sends another client's request as it is.
///
/// # Errors
/// The server cannot be reached, or does not answer.
pub async fn pass_on(
    address: SocketAddr,
    request: Request<Full<Bytes>>,
    patience: Duration,
) -> Result<Response<Incoming>> {
    let stream = timeout(STALL, TcpStream::connect(address)).await.context("does not answer")??;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The task ends with the answer's body.
    tokio::spawn(connection);
    Ok(timeout(patience, sender.send_request(request)).await.context("does not answer")??)
}

/// Fetches a file and writes it to `into`. Blocks a thread of the runtime.
///
/// # Errors
/// The server cannot be reached, answers another status than 200, or with more than `limit` bytes.
pub fn fetch(
    address: SocketAddr,
    path: &str,
    accept: &str,
    limit: u64,
    into: &mut (dyn Write + Send),
) -> Result<()> {
    let fetched = async {
        let request = Request::get(path).header(ACCEPT, accept).body(Full::new(Bytes::new()))?;
        let answer = send(address, request, STALL).await?;
        if answer.status() != 200 {
            bail!("answers {}", answer.status());
        }
        read(answer.into_body(), limit, |data| into.write_all(data)).await
    };
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(fetched))
}

/// Gives a body to `take`, piece by piece, up to a limit.
///
/// # Errors
/// It is longer, stops in the middle, or `take` fails.
pub async fn read(
    mut body: Incoming,
    limit: u64,
    mut take: impl FnMut(&[u8]) -> std::io::Result<()> + Send,
) -> Result<()> {
    let mut bytes = 0;
    while let Some(frame) = timeout(STALL, body.frame()).await.context("stopped in the middle")? {
        let Ok(data) = frame?.into_data() else { continue };
        bytes += data.len() as u64;
        ensure!(bytes <= limit, "has more than the {limit} bytes that are allowed");
        take(&data)?;
    }
    Ok(())
}
