//! `GET /metrics` and `GET /healthz`.

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

/// Serves until it is dropped. `metrics` makes the text for /metrics; it may block.
pub async fn serve(listener: TcpListener, metrics: impl Fn() -> String + Send + Sync + 'static) {
    let metrics: Arc<dyn Fn() -> String + Send + Sync> = Arc::new(metrics);
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await; // the process is out of file descriptors
            continue;
        };
        let Ok(permit) = permits.clone().try_acquire_owned() else { continue };
        let metrics = metrics.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| respond(request, metrics.clone()));
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(CONNECTION_TIMEOUT).keep_alive(false);
            let connection = http.serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
            drop(permit);
        });
    }
}

async fn respond(
    request: Request<Incoming>,
    metrics: Arc<dyn Fn() -> String + Send + Sync>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => match tokio::task::spawn_blocking(move || metrics()).await {
            Ok(text) => (StatusCode::OK, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        },
        (&Method::GET, "/healthz") => (StatusCode::OK, "ok\n".into()),
        (&Method::GET, _) => (StatusCode::NOT_FOUND, "GET /metrics or /healthz\n".into()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "GET /metrics or /healthz\n".into()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    Ok(response)
}
