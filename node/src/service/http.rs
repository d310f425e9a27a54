//! `GET /metrics`, `GET /memory` and `GET /healthz`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at a time, and how long each may take.
const MAX_CONNECTIONS: usize = 32;
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
const PATHS: &str = "GET /metrics, /memory or /healthz\n";

/// The content types of texts.
pub const PLAIN: &str = prometheus_text::CONTENT_TYPE;
/// See [`PLAIN`].
pub const JSON: &str = "application/json";

/// Makes the text of a path other than /healthz, with its content type, if there is such a path. It may
/// block.
type Texts = dyn Fn(&str) -> Option<(&'static str, String)> + Send + Sync;

/// Serves until it is dropped. `texts` makes the text of a path, and may block.
pub async fn serve(
    listener: TcpListener,
    texts: impl Fn(&str) -> Option<(&'static str, String)> + Send + Sync + 'static,
) {
    let texts: Arc<Texts> = Arc::new(texts);
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await; // the process is out of file descriptors
            continue;
        };
        let Ok(permit) = permits.clone().try_acquire_owned() else { continue };
        let texts = texts.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| respond(request, texts.clone()));
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(CONNECTION_TIMEOUT).keep_alive(false);
            let connection = http.serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
            drop(permit);
        });
    }
}

async fn respond(request: Request<Incoming>, texts: Arc<Texts>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, (kind, text)) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => (StatusCode::OK, (PLAIN, "ok\n".into())),
        (&Method::GET, path) => {
            let path = path.to_owned();
            match tokio::task::spawn_blocking(move || texts(&path)).await {
                Ok(Some(text)) => (StatusCode::OK, text),
                Ok(None) => (StatusCode::NOT_FOUND, (PLAIN, PATHS.into())),
                Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, (PLAIN, format!("{error}\n"))),
            }
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, (PLAIN, PATHS.into())),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static(kind);
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    Ok(response)
}
