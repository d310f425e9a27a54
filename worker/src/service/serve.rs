//! Runs the service in the foreground: starts it, serves the API until a signal, ends cleanly.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio::signal::unix::{SignalKind, signal};

use crate::api;
use crate::control::{Worker, sampler};
use crate::http::connections::Connections;
use crate::service::http_apis;
use crate::service::open_files::open_many_files;
use crate::service::start::{Checked, Service, Started};
use crate::service::systemd;
use worker_system::descriptors;

/// How often the pool checks its time-outs.
const TICK: Duration = Duration::from_millis(200);

/// Serves until SIGTERM or SIGINT. Calls `ready` with the address once requests are accepted.
///
/// # Errors
/// It cannot start: the template, the packages, the address or the cgroups are wrong.
pub fn run(mut service: Service, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    descriptors::keep_from_programs().context("descriptors cannot be kept from functions")?;
    open_many_files();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    let _in_runtime = runtime.enter();
    let checked = Checked::new(&mut service)?;
    runtime.block_on(async {
        // Before a user may send one: without a handler these signals end the process.
        let (hangup, hand_over) = (signal(SignalKind::hangup())?, signal(SignalKind::user_defined2())?);
        let end = End { drain: service.drain, grace: service.grace };
        let (started, changes) = Started::new(service, checked).await?;
        tokio::spawn(changes.follow(hangup, hand_over));
        tokio::spawn(tick(started.worker.clone()));
        tokio::spawn(sampler::run(started.worker.clone()));
        let (worker, maker) = (started.worker.clone(), started.maker.clone());
        let outcome = serve(started, end, ready).await;
        let close = move || {
            maker.close();
            worker.close_traces();
        };
        tokio::task::spawn_blocking(close).await?;
        outcome
    })
}

async fn tick(worker: Arc<Worker>) {
    let mut interval = tokio::time::interval(TICK);
    loop {
        interval.tick().await;
        worker.tick();
    }
}

/// How the service ends, see [`Service`].
struct End {
    drain: Duration,
    grace: Duration,
}

/// Serves until a signal, and then until running requests have their answers, or the time for that is over.
async fn serve(started: Started, end: End, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    let Started { worker, events, listener, takes_over, .. } = started;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let connections = Arc::new(Connections::default());
    let serving = api::serve(worker.clone(), listener, events, connections.clone(), |address| {
        if !takes_over {
            systemd::ready();
        }
        ready(address);
        http_apis::log(&worker, address);
    });
    let mut serving = pin!(serving);
    // A user at a terminal waits for the end, and no proxy does.
    let (served, drain) = tokio::select! {
        outcome = &mut serving => (Some(outcome), Duration::ZERO),
        _ = terminate.recv() => (None, end.drain),
        _ = interrupt.recv() => (None, Duration::ZERO),
    };
    // Until the end it goes on to serve: a connection that nothing accepts would wait for an answer.
    let refuses = async {
        match served {
            Some(_) => std::future::pending().await,
            None => serving.await,
        }
    };
    let ends = async {
        tokio::select! {
            () = worker.drain(drain) => {}
            _ = terminate.recv() => {}
        }
        let deadline = tokio::time::Instant::now() + end.grace;
        worker.close(end.grace).await;
        let _ = tokio::time::timeout_at(deadline, connections.none_works()).await;
    };
    let closed = tokio::select! {
        () = ends => Ok(()),
        Err(error) = refuses => Err(error),
        _ = interrupt.recv() => Err(anyhow!("interrupted twice")),
    };
    served.unwrap_or(Ok(())).and(closed)
}
