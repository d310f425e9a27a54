//! The first request of a runtime that is to be taken, where no line tells the worker that it has started. It
//! asks the Runtime API when to go on (`restore/next`, as Lambda has it for SnapStart), or for work. There is
//! never an answer: each restored instance sends the request again.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use worker_container::RUNTIME_PORT;
use worker_snapshot::Request;
use worker_system::text::shown;

use crate::sandbox::callers::Callers;
use crate::sandbox::line::Fault;

/// The longest head of a request.
const MOST_BYTES: usize = 16 * 1024;
const RESTORE: &str = "GET /2018-06-01/runtime/restore/next HTTP/1.1";
const WORK: &str = "GET /2018-06-01/runtime/invocation/next HTTP/1.1";
/// The answer to [`RESTORE`].
const GO_ON: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n";

/// A request that has no answer as long as this is there.
pub(super) struct FirstRequest {
    connection: TcpStream,
    from: u16,
    bytes: Vec<u8>,
}

impl FirstRequest {
    /// Waits for it.
    ///
    /// # Errors
    /// It asks for something else, or not in time.
    pub async fn receive(callers: &mut Callers, limit: Duration) -> Result<FirstRequest> {
        in_time(limit, receive(callers)).await
    }

    /// Has a restored runtime go on, which sends the request again, until it asks for work.
    ///
    /// # Errors
    /// It asks for something else, or not in time.
    pub async fn until_work(callers: &mut Callers, limit: Duration) -> Result<()> {
        let asked = async {
            let mut first = receive(callers).await?;
            if !first.bytes.starts_with(RESTORE.as_bytes()) {
                return Ok(());
            }
            first.connection.write_all(GO_ON).await?;
            let asks = tokio::select! {
                again = head(&mut first.connection) => again?,
                other = receive(callers) => other?.bytes,
            };
            ensure!(asks.starts_with(WORK.as_bytes()), "it asks again when to go on");
            Ok(())
        };
        in_time(limit, asked).await
    }

    /// What [`worker_snapshot::take`] needs of it.
    pub fn as_sent(&self) -> Request<'_> {
        let server = SocketAddrV4::new(Ipv4Addr::LOCALHOST, RUNTIME_PORT);
        Request { server, from: self.from, bytes: &self.bytes }
    }
}

async fn in_time<T>(limit: Duration, asked: impl Future<Output = Result<T>>) -> Result<T> {
    let asked = tokio::time::timeout(limit, asked);
    asked.await.with_context(|| format!("it asks for no work after {} s", limit.as_secs()))?
}

async fn receive(callers: &mut Callers) -> Result<FirstRequest> {
    let mut connection = callers.runtime().await?;
    let from = connection.peer_addr()?.port();
    let bytes = head(&mut connection).await?;
    Ok(FirstRequest { connection, from, bytes })
}

/// A request, which has a head alone.
async fn head(connection: &mut TcpStream) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        ensure!(bytes.len() < MOST_BYTES, "a request of more than {MOST_BYTES} bytes");
        let count = connection.read_buf(&mut bytes).await?;
        ensure!(count > 0, "it ends its connection to the Runtime API");
        check(&bytes)?;
    }
    Ok(bytes)
}

/// Whether a request that begins with these bytes may be sent again.
fn check(bytes: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(bytes);
    let Some((first, rest)) = text.split_once("\r\n") else { return Ok(()) };
    if ![RESTORE, WORK].contains(&first) {
        bail!(Fault(format!("it asks the Runtime API for {}", shown(first))));
    }
    let has_body = rest.lines().any(|line| {
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        matches!(name.as_str(), "content-length" | "transfer-encoding") && !line.ends_with(": 0")
    });
    ensure!(!has_body, "it asks for work with a body");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use serde_json::json;

    use super::*;

    /// The outcome of a request that arrives in these parts.
    async fn received(parts: &[&str]) -> Result<Vec<u8>, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let parts: Vec<String> = parts.iter().map(|part| part.to_string()).collect();
        let client = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            for part in parts {
                stream.write_all(part.as_bytes()).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let mut callers = Callers::of(&listener, json!({}), &[]).unwrap();
        let request = FirstRequest::receive(&mut callers, Duration::from_secs(5)).await;
        client.join().unwrap();
        request.map(|request| request.bytes).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn requests_for_work_are_kept_as_they_were_sent() {
        for kind in ["restore", "invocation"] {
            let parts = [
                &format!("GET /2018-06-01/runtime/{kind}/next HT"),
                "TP/1.1\r\nHost: localhost:9001\r\nContent-Length: 0\r\n",
                "\r\n",
            ];
            assert_eq!(received(&parts).await, Ok(parts.concat().into_bytes()));
        }
    }

    #[tokio::test]
    async fn restored_runtime_goes_on_until_it_asks_for_work() {
        for (then, outcome) in
            [(WORK, None), ("POST /2018-06-01/runtime/restore/error HTTP/1.1", Some("POST"))]
        {
            for connects_again in [false, true] {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let address = listener.local_addr().unwrap();
                let runtime = std::thread::spawn(move || {
                    let mut first = TcpStream::connect(address).unwrap();
                    write!(first, "{RESTORE}\r\n\r\n").unwrap();
                    let mut answer = [0; GO_ON.len()];
                    first.read_exact(&mut answer).unwrap();
                    let mut second = match connects_again {
                        true => TcpStream::connect(address).unwrap(),
                        false => first.try_clone().unwrap(),
                    };
                    write!(second, "{then}\r\n\r\n").unwrap();
                    let _ = second.read(&mut answer); // until the other end goes
                });
                let mut callers = Callers::of(&listener, json!({}), &[]).unwrap();
                let ended = FirstRequest::until_work(&mut callers, Duration::from_secs(5)).await;
                drop(callers);
                drop(listener);
                runtime.join().unwrap();
                match outcome {
                    None => ended.unwrap(),
                    Some(named) => assert!(ended.unwrap_err().to_string().contains(named)),
                }
            }
        }
    }

    #[tokio::test]
    async fn requests_for_anything_else_are_errors() {
        let fails = "POST /2018-06-01/runtime/init/error HTTP/1.1\r\n";
        assert!(received(&[fails]).await.unwrap_err().contains("POST /2018-06-01/runtime/init/error"));
        // It is not a kill's, after which the worker would try again and again.
        assert!(check(fails.as_bytes()).unwrap_err().is::<Fault>());
        let cut = "GET /2018-06-01/runtime/invocation/next HTTP/1.1\r\n";
        assert!(received(&[cut]).await.unwrap_err().contains("ends its connection"));
        let body = format!("{cut}Content-Length: 3\r\n\r\nabc");
        assert!(received(&[&body]).await.unwrap_err().contains("with a body"));
        let long = format!("{cut}A: {}\r\n", "x".repeat(MOST_BYTES));
        assert!(received(&[&long]).await.unwrap_err().contains("of more than"));
    }
}
