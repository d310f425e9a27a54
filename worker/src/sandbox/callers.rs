//! Who connects to the Runtime API of an instance that serves no request: its runtime, and extensions.
//!
//! Extensions run beside the runtime that is to be taken, since the function's initialisation may call them.
//! They register, and wait for an event that never comes. They do not belong to the snapshot: those of a
//! restored instance start as ever. So an extension inside the runtime, which would not register again, has
//! the function start as ever.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use worker_snapshot::Error;
use worker_system::text::shown;

use crate::base::name;
use crate::http::{self, Answer};
use crate::sandbox::accept::accept;
use crate::sandbox::interface::{CONNECTIONS, Order};

const REGISTER: &str = "/2020-01-01/extension/register";
const NEXT: &str = "/2020-01-01/extension/event/next";
const TELEMETRY: &str = "/2022-07-01/telemetry";
/// Where the paths of extensions begin.
const OF_EXTENSIONS: [&str; 3] = ["/2020-01-01/extension/", TELEMETRY, "/2020-08-15/logs"];
/// By these bytes of a request its path is known.
const BEGIN_BYTES: usize = 64;
const BODY_BYTES: usize = 256 * 1024;
/// Between looks at a connection whose request has begun to arrive.
const AGAIN: Duration = Duration::from_millis(1);

/// The connections of an instance, until this is dropped.
pub(super) struct Callers {
    runtime: mpsc::Receiver<Result<TcpStream>>,
    _accepting: JoinSet<()>,
}

impl Callers {
    /// Serves extensions, whose programs have these names.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn serve(listener: &TcpListener, order: &Order, extensions: &[String]) -> Result<Callers> {
        let deployment = &order.deployment;
        let about = json!({
            "functionName": deployment.name,
            "functionVersion": deployment.version,
            "handler": deployment.settings.handler,
            "accountId": name::ACCOUNT,
        });
        Callers::of(listener, about, extensions)
    }

    /// The same; `about` is the answer to a registration.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn of(listener: &TcpListener, about: Value, extensions: &[String]) -> Result<Callers> {
        let listener = listener.try_clone()?;
        let (found, runtime) = mpsc::channel(CONNECTIONS);
        let api = Arc::new(Api { names: extensions.to_vec(), about, found });
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let places = Arc::new(Semaphore::new(CONNECTIONS));
            let serve = |stream| api.clone().serve(stream);
            if let Err(error) = accept(&listener, places, "an instance without requests", serve).await {
                tracing::error!("an instance without requests: {error}");
            }
        });
        Ok(Callers { runtime, _accepting: accepting })
    }

    /// The next connection of the runtime, of which nothing has been read.
    ///
    /// # Errors
    /// An extension inside the runtime has registered.
    pub async fn runtime(&mut self) -> Result<TcpStream> {
        self.runtime.recv().await.context("its Runtime API has ended")?
    }
}

/// The Extensions API.
struct Api {
    names: Vec<String>,
    about: Value,
    found: mpsc::Sender<Result<TcpStream>>,
}

impl Api {
    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let path = path_of(&stream).await;
        let is_extension = |path: &String| OF_EXTENSIONS.iter().any(|begin| path.starts_with(begin));
        if path.as_ref().is_ok_and(is_extension) {
            http::serve(stream, http::HEADER_BYTES, |request| self.clone().answer(request)).await;
        } else {
            // If the send fails, no caller waits for the runtime any more.
            drop(self.found.send(Ok(stream)).await);
        }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        let (head, body) = request.into_parts();
        let _ = http::read_alone(body, BODY_BYTES).await;
        match (&head.method, head.uri.path().trim_end_matches('/')) {
            (&Method::POST, REGISTER) => {
                let name = http::header(&head.headers, "lambda-extension-name").unwrap_or_default();
                self.register(name).await
            }
            (&Method::GET, NEXT) => std::future::pending().await,
            (&Method::PUT, TELEMETRY) => http::json(200, &json!("OK")),
            (_, path) => {
                let text = format!("{} is not served before the snapshot", shown(path));
                http::json(404, &json!({ "errorType": "UnknownPath", "errorMessage": text }))
            }
        }
    }

    async fn register(&self, name: &str) -> Answer {
        if !self.names.iter().any(|known| known == name) {
            let error = Error::Unsupported(format!("the extension {} inside the runtime", shown(name)));
            drop(self.found.send(Err(error.into())).await);
            std::future::pending::<()>().await;
        }
        let mut answer = http::json(200, &self.about);
        let id = uuid::Uuid::new_v4().to_string();
        let id = HeaderValue::from_str(&id).expect("a UUID is a header");
        answer.headers_mut().insert("lambda-extension-identifier", id);
        answer
    }
}

/// The path of a connection's first request, which stays to be read. Cut off, if it is long.
async fn path_of(stream: &TcpStream) -> io::Result<String> {
    let mut bytes = [0; BEGIN_BYTES];
    loop {
        let count = stream.peek(&mut bytes).await?;
        let begin = String::from_utf8_lossy(&bytes[..count]);
        if count == 0 || count == BEGIN_BYTES || begin.contains('\n') {
            return Ok(begin.split(' ').nth(1).unwrap_or_default().to_string());
        }
        tokio::time::sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    struct Instance {
        listener: TcpListener,
        callers: Callers,
    }

    fn instance() -> Instance {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let callers = Callers::of(&listener, json!({ "functionName": "f" }), &["agent".into()]).unwrap();
        Instance { listener, callers }
    }

    impl Instance {
        async fn connect(&self) -> TcpStream {
            TcpStream::connect(self.listener.local_addr().unwrap()).await.unwrap()
        }

        /// The begin of the answer to a request that arrives in two parts.
        async fn asks(&self, method: &str, path: &str, name: &str) -> String {
            let mut stream = self.connect().await;
            let half = path.len() / 2;
            stream.write_all(format!("{method} {}", &path[..half]).as_bytes()).await.unwrap();
            tokio::time::sleep(5 * AGAIN).await;
            let rest = format!(
                "{} HTTP/1.1\r\nHost: a\r\nLambda-Extension-Name: {name}\r\nContent-Length: 2\r\n\r\n{{}}",
                &path[half..]
            );
            stream.write_all(rest.as_bytes()).await.unwrap();
            let mut answer = vec![0; 4096];
            let count = stream.read(&mut answer).await.unwrap();
            String::from_utf8_lossy(&answer[..count]).into_owned()
        }
    }

    #[tokio::test]
    async fn extensions_register_and_the_runtime_is_found_among_them() {
        let mut instance = instance();
        let registered = instance.asks("POST", REGISTER, "agent").await;
        assert!(registered.starts_with("HTTP/1.1 200 "), "{registered}");
        assert!(registered.contains("lambda-extension-identifier: "), "{registered}");
        assert!(registered.contains("\"functionName\":\"f\""), "{registered}");
        let telemetry = instance.asks("PUT", TELEMETRY, "agent").await;
        assert!(telemetry.starts_with("HTTP/1.1 200 "), "{telemetry}");
        let other = instance.asks("GET", "/2020-01-01/extension/else", "agent").await;
        assert!(other.starts_with("HTTP/1.1 404 "), "{other}");

        let waits = instance.asks("GET", NEXT, "agent");
        assert!(tokio::time::timeout(50 * AGAIN, waits).await.is_err(), "there is no event");

        let mut runtime = instance.connect().await;
        let asked = b"GET /2018-06-01/runtime/invocation/next HTTP/1.1\r\n\r\n";
        runtime.write_all(asked).await.unwrap();
        let mut found = instance.callers.runtime().await.unwrap();
        let mut received = vec![0; asked.len()];
        found.read_exact(&mut received).await.unwrap();
        assert_eq!(received, asked, "as it was sent");
    }

    #[tokio::test]
    async fn an_extension_inside_the_runtime_is_named() {
        let mut instance = instance();
        let Instance { listener, callers } = &mut instance;
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let head = "Host: a\r\nLambda-Extension-Name: inside\r\nContent-Length: 0\r\n\r\n";
        let request = format!("POST {REGISTER} HTTP/1.1\r\n{head}");
        stream.write_all(request.as_bytes()).await.unwrap();
        let error = callers.runtime().await.unwrap_err();
        assert_eq!(error.to_string(), "the extension inside inside the runtime cannot be restored");
    }
}
