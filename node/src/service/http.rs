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

/// Visitors at a time, and how long they may take.
const MOST_VISITORS: usize = 32;
const VISIT: Duration = Duration::from_secs(10);

/// Serves until it is dropped. `figures` makes the text for /metrics; it may take its time.
pub async fn serve(listener: TcpListener, figures: impl Fn() -> String + Send + Sync + 'static) {
    let figures: Arc<dyn Fn() -> String + Send + Sync> = Arc::new(figures);
    let room = Arc::new(Semaphore::new(MOST_VISITORS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await; // out of descriptors
            continue;
        };
        let Ok(place) = room.clone().try_acquire_owned() else { continue };
        let figures = figures.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, figures.clone()));
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(VISIT).keep_alive(false);
            let visit = http.serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(VISIT, visit).await;
            drop(place);
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    figures: Arc<dyn Fn() -> String + Send + Sync>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => match tokio::task::spawn_blocking(move || figures()).await {
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
