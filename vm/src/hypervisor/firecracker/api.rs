//! Firecracker's API: HTTP over a Unix socket, JSON both ways.
//!
//! Answers have no ids, so each request has a connection of its own. If Firecracker does not answer in time
//! (it was stopped, or the host had no memory or CPU left), that connection is closed; the late answer cannot
//! be taken for another's, and the next request works again. Requests are sent one after the other, so
//! Firecracker, which takes connections in their order, carries them out in that order.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::base::error::Error;

/// Firecracker answers in milliseconds, unless the host has no memory or CPU left for it. `InstanceStart`
/// loads kernel and initial RAM file system.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest answer that is read.
const MOST_BYTES: usize = 1 << 20;

/// A connection could not be made, or was closed before the answer had come.
struct Closed;

/// The body of an answer that is no success.
#[derive(Deserialize)]
struct Fault {
    fault_message: String,
}

/// The socket on which Firecracker serves its API.
pub struct Api {
    socket: PathBuf,
    /// Locked during a request.
    runtime: Mutex<Runtime>,
}

impl Api {
    /// For the socket at this path, which need not exist yet.
    ///
    /// # Errors
    /// The operating system has no resources left.
    pub fn new(socket: PathBuf) -> Result<Api, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::Failed(format!("Firecracker's API: {error}")))?;
        Ok(Api { socket, runtime: Mutex::new(runtime) })
    }

    /// Sets a resource.
    ///
    /// # Errors
    /// As [`Api::get`].
    pub fn put(&self, path: &str, body: &Value) -> Result<(), Error> {
        self.request(Method::PUT, path, Some(body), ANSWER_TIMEOUT).map(drop)
    }

    /// Changes a resource.
    ///
    /// # Errors
    /// As [`Api::get`].
    pub fn patch(&self, path: &str, body: &Value) -> Result<(), Error> {
        self.request(Method::PATCH, path, Some(body), ANSWER_TIMEOUT).map(drop)
    }

    /// Reads a resource.
    ///
    /// # Errors
    /// Firecracker refuses, has ended, or does not answer in time. Then it may carry the request out later.
    pub fn get(&self, path: &str) -> Result<Value, Error> {
        self.request(Method::GET, path, None, ANSWER_TIMEOUT)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> Result<Value, Error> {
        let what = format!("{method} {path}");
        let runtime = self.runtime.lock().expect("no panic under this lock");
        let answer = runtime.block_on(async { timeout(patience, self.exchange(method, path, body)).await });
        let (status, bytes) = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(Closed)) => return Err(Error::Ended("Firecracker closed its API's socket".to_string())),
            Err(_) => {
                let why = "it is stopped, or the host has no memory or CPU left";
                return Err(Error::Failed(format!("Firecracker does not answer ({what}): {why}")));
            }
        };
        if !status.is_success() {
            let fault = serde_json::from_slice(&bytes)
                .map_or_else(|_| format!("HTTP status {status}"), |Fault { fault_message }| fault_message);
            // Some messages have several lines.
            let fault = fault.split_whitespace().collect::<Vec<_>>().join(" ");
            return Err(Error::Failed(format!("Firecracker refuses {what}: {fault}")));
        }
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::Failed(format!("Firecracker's answer to {what} is not understood: {error}"))
        })
    }

    /// Sends a request on a connection of its own; returns the status and the body of the answer.
    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Bytes), Closed> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|_| Closed)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|_| Closed)?;
        let mut request = Request::builder().method(method).uri(path).header(HOST, "localhost");
        request = request.header(ACCEPT, "application/json");
        let mut bytes = Bytes::new();
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json");
            bytes = Bytes::from(body.to_string());
        }
        let request = request.body(Full::new(bytes)).expect("all parts are valid");
        let answer = async move {
            let answer = sender.send_request(request).await.map_err(|_| Closed)?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await.map_err(|_| Closed)?;
            // `sender` is dropped here, which ends the connection.
            Ok((status, body.to_bytes()))
        };
        tokio::join!(answer, connection).0
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    use serde_json::json;

    use super::*;

    /// A server that reads one request from each connection.
    struct Peer {
        listener: UnixListener,
        api: Api,
        _folder: tempfile::TempDir,
    }

    impl Peer {
        fn new() -> Peer {
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("api");
            let listener = UnixListener::bind(&socket).unwrap();
            Peer { listener, api: Api::new(socket).unwrap(), _folder: folder }
        }

        /// The next request, and its connection.
        fn receive(&self) -> (String, UnixStream) {
            let (mut stream, _) = self.listener.accept().unwrap();
            let mut text = String::new();
            let mut bytes = [0; 4096];
            while !text.contains("\r\n\r\n") || text.starts_with('P') && !text.ends_with('}') {
                let count = stream.read(&mut bytes).unwrap();
                assert!(count > 0, "half a request: {text}");
                text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
            }
            (text, stream)
        }
    }

    /// As micro_http writes it. It keeps the connection open.
    fn answer(stream: &mut UnixStream, status: &str, body: &str) {
        let mut text = format!("HTTP/1.1 {status} \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n");
        if !body.is_empty() {
            text += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        stream.write_all(format!("{text}\r\n{body}").as_bytes()).unwrap();
    }

    #[test]
    fn requests_have_the_form_that_firecracker_reads() {
        let peer = Peer::new();
        std::thread::scope(|scope| {
            let asking =
                scope.spawn(|| peer.api.patch("/hotplug/memory", &json!({"requested_size_mib": 128})));
            let (text, mut stream) = peer.receive();
            assert!(text.starts_with("PATCH /hotplug/memory HTTP/1.1\r\n"), "{text}");
            assert!(text.to_lowercase().contains("content-length: 26\r\n"), "{text}");
            assert!(!text.to_lowercase().contains("transfer-encoding"), "{text}");
            assert!(text.ends_with("\r\n\r\n{\"requested_size_mib\":128}"), "{text}");
            answer(&mut stream, "204", "");
            asking.join().unwrap().unwrap();

            let asking = scope.spawn(|| peer.api.get("/hotplug/memory"));
            let (text, mut stream) = peer.receive();
            // Firecracker refuses a GET request with a body.
            assert!(!text.to_lowercase().contains("content-length") && text.ends_with("\r\n\r\n"), "{text}");
            answer(&mut stream, "200", r#"{"plugged_size_mib":128}"#);
            assert_eq!(asking.join().unwrap().unwrap(), json!({"plugged_size_mib": 128}));
        });
    }

    #[test]
    fn a_refusal_is_one_line() {
        let peer = Peer::new();
        let fault = r#"{"fault_message":"Internal VMM error:\n Device is not active"}"#;
        for (status, body, expected) in [
            ("400", fault, "Internal VMM error: Device is not active"),
            ("503", "{ \"error\": \"Too many open connections\"}", "HTTP status 503 Service Unavailable"),
            ("400", "", "HTTP status 400 Bad Request"),
        ] {
            std::thread::scope(|scope| {
                let asking = scope.spawn(|| peer.api.put("/vsock", &json!({})));
                answer(&mut peer.receive().1, status, body);
                let line = asking.join().unwrap().unwrap_err().to_string();
                assert_eq!(line, format!("Firecracker refuses PUT /vsock: {expected}"));
            });
        }
    }

    #[test]
    fn late_answers_are_dropped_and_the_next_request_works() {
        let peer = Peer::new();
        for _ in 0..3 {
            let outcome = peer.api.request(Method::GET, "/late", None, Duration::from_millis(1));
            let failed = outcome.unwrap_err().to_string();
            assert!(failed.contains("does not answer (GET /late)"), "{failed}");
        }
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| peer.api.get("/next"));
            for late in 1..=3 {
                let (text, mut stream) = peer.receive();
                assert!(text.starts_with("GET /late"), "{text}");
                // Fails: the client has closed this connection.
                let answer = format!("HTTP/1.1 200 \r\nContent-Length: 1\r\n\r\n{late}");
                let _ = stream.write_all(answer.as_bytes());
            }
            answer(&mut peer.receive().1, "200", "4");
            assert_eq!(asking.join().unwrap().unwrap(), json!(4));
        });
        let Peer { listener, api, _folder } = peer;
        drop(listener);
        assert!(matches!(api.get("/ended"), Err(Error::Ended(_))));
    }

    #[test]
    fn a_connection_that_is_closed_without_an_answer_is_the_end() {
        let peer = Peer::new();
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| peer.api.put("/actions", &json!({"action_type": "InstanceStart"})));
            drop(peer.receive());
            assert!(matches!(asking.join().unwrap(), Err(Error::Ended(_))));
        });
    }
}
