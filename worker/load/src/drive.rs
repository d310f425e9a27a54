//! Sends a trace's invocations to a worker, open loop, and counts the answers.
//!
//! A latency is counted from when the trace wanted the request sent, so that requests which this program or
//! the worker held up count with all of their delay (no coordinated omission).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Trace;

use worker_system::lock::lock;

/// Requests in flight at once; more wait here, and their wait counts.
const CONNECTIONS: usize = 900;
/// A request that is not answered within this time is given up.
const PATIENCE: Duration = Duration::from_secs(120);

/// The target and the speed of a load.
#[derive(Debug)]
pub struct Plan {
    /// The worker.
    pub address: SocketAddr,
    /// Functions that are called. A trace's function of the same name goes to it, the others in turn.
    pub functions: Vec<String>,
    /// Seconds of the trace that pass in one second.
    pub speed: f64,
}

/// The answers for one function.
#[derive(Debug)]
pub struct Tally {
    /// Sent.
    pub sent: u64,
    /// Answered by the function.
    pub succeeded: u64,
    /// The function failed, timed out or ended.
    pub failed: u64,
    /// Refused with 429.
    pub throttled: u64,
    /// Not answered, or refused for another reason.
    pub refused: u64,
    /// Of those that ran, in microseconds.
    pub latency_us: Histogram<u64>,
}

/// The answers by function, and the time of the load.
pub struct Result {
    /// By the name of the function that was called.
    pub functions: BTreeMap<String, Tally>,
    /// From the first to the last.
    pub elapsed: Duration,
}

impl Tally {
    /// Nothing yet.
    pub fn new() -> Tally {
        let latency_us = Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("the bounds are right");
        Tally { sent: 0, succeeded: 0, failed: 0, throttled: 0, refused: 0, latency_us }
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Tally) {
        self.sent += other.sent;
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.throttled += other.throttled;
        self.refused += other.refused;
        self.latency_us.add(&other.latency_us).expect("both have the same bounds");
    }

    fn count(&mut self, outcome: &Outcome, latency: Duration) {
        self.sent += 1;
        match outcome {
            Outcome::Succeeded => self.succeeded += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Throttled => self.throttled += 1,
            Outcome::Refused => self.refused += 1,
        }
        if matches!(outcome, Outcome::Succeeded | Outcome::Failed) {
            self.latency_us.saturating_record((latency.as_micros() as u64).max(1));
        }
    }
}

impl Default for Tally {
    fn default() -> Tally {
        Tally::new()
    }
}

#[derive(Debug)]
enum Outcome {
    Succeeded,
    Failed,
    Throttled,
    Refused,
}

/// Sends the whole trace and waits for the answers. `progress` is called with how many were sent.
///
/// # Errors
/// The worker is not there, or has no function.
pub fn drive(trace: &Trace, mut plan: Plan, progress: impl Fn(usize)) -> anyhow::Result<Result> {
    ensure!(plan.speed.is_finite() && plan.speed > 0.0, "the speed must be above 0");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let connections = Arc::new(Connections { address: plan.address, idle: Mutex::default() });
        let served = connections.functions().await?;
        if plan.functions.is_empty() {
            plan.functions = served;
        } else if let Some(unknown) = plan.functions.iter().find(|name| !served.contains(name)) {
            bail!("the worker at {} has no function {unknown}", plan.address);
        }
        ensure!(!plan.functions.is_empty(), "the worker at {} has no function yet", plan.address);
        Ok(send(trace, &plan, &connections, progress).await)
    })
}

async fn send(
    trace: &Trace,
    plan: &Plan,
    connections: &Arc<Connections>,
    progress: impl Fn(usize),
) -> Result {
    let names = assigned(&trace.functions, &plan.functions);
    let tallies: Arc<Mutex<BTreeMap<String, Tally>>> = Arc::default();
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let began = Instant::now();
    let mut requests = JoinSet::new();
    for (number, arrival) in trace.arrivals.iter().enumerate() {
        let wanted = began + Duration::from_secs_f64(arrival.at_s / plan.speed);
        tokio::time::sleep_until(wanted).await;
        while requests.try_join_next().is_some() {}
        let (places, connections, tallies) = (places.clone(), connections.clone(), tallies.clone());
        let name = names[arrival.function as usize].clone();
        requests.spawn(async move {
            let _place = places.acquire().await.expect("it is never closed");
            let body = format!("{{\"seed\":{number}}}");
            let asked = tokio::time::timeout(PATIENCE, connections.invoke(&name, body)).await;
            let outcome = asked.ok().and_then(anyhow::Result::ok).unwrap_or(Outcome::Refused);
            let mut tallies = lock(&tallies);
            tallies.entry(name).or_default().count(&outcome, wanted.elapsed());
        });
        progress(number + 1);
    }
    while requests.join_next().await.is_some() {}
    let functions = std::mem::take(&mut *lock(&tallies));
    Result { functions, elapsed: began.elapsed() }
}

/// For each function of the trace the one that is called.
fn assigned(of_trace: &[String], served: &[String]) -> Vec<String> {
    let mut others = served.iter().cycle();
    of_trace
        .iter()
        .map(|name| match served.contains(name) {
            true => name.clone(),
            false => others.next().expect("some function is served").clone(),
        })
        .collect()
}

/// Connections that wait for their next request, the one used last first.
struct Connections {
    address: SocketAddr,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl Connections {
    async fn invoke(&self, name: &str, body: String) -> anyhow::Result<Outcome> {
        let path = format!("/2015-03-31/functions/{name}/invocations");
        let (status, failed, _) = self.ask(Method::POST, &path, body).await?;
        Ok(match status {
            200 if failed => Outcome::Failed,
            200 => Outcome::Succeeded,
            429 => Outcome::Throttled,
            _ => Outcome::Refused,
        })
    }

    async fn functions(&self) -> anyhow::Result<Vec<String>> {
        let (mut names, mut path) = (Vec::new(), "/2015-03-31/functions".to_string());
        loop {
            let (status, _, body) = self.ask(Method::GET, &path, String::new()).await?;
            ensure!(status == 200, "{}: {}", self.address, String::from_utf8_lossy(&body));
            let list: serde_json::Value =
                serde_json::from_slice(&body).context("the list of functions is no JSON")?;
            let functions = list["Functions"].as_array().cloned().unwrap_or_default();
            names.extend(
                functions.iter().filter_map(|function| Some(function["FunctionName"].as_str()?.to_string())),
            );
            match list["NextMarker"].as_str() {
                Some(marker) => path = format!("/2015-03-31/functions?Marker={marker}"),
                None => return Ok(names),
            }
        }
    }

    /// Status, whether the function failed, and the body.
    async fn ask(&self, method: Method, path: &str, body: String) -> anyhow::Result<(u16, bool, Bytes)> {
        let mut connection = self.connection().await?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.address.to_string())
            .body(Full::new(Bytes::from(body)))?;
        let answer = connection.send_request(request).await?;
        let (status, failed) =
            (answer.status().as_u16(), answer.headers().contains_key("x-amz-function-error"));
        let body = answer.into_body().collect().await?.to_bytes();
        lock(&self.idle).push(connection);
        Ok((status, failed, body))
    }

    async fn connection(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        loop {
            let waiting = lock(&self.idle).pop();
            match waiting {
                Some(connection) if connection.is_ready() => return Ok(connection),
                Some(_) => {}
                None => break,
            }
        }
        let stream = TcpStream::connect(self.address)
            .await
            .with_context(|| format!("no worker answers at {}: start one with `mayfly up`", self.address))?;
        stream.set_nodelay(true)?;
        let (connection, driver) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(driver);
        Ok(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_go_to_their_names_and_the_others_in_turn() {
        let texts = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let names = assigned(&texts(&["x", "b", "y", "z"]), &texts(&["a", "b"]));
        assert_eq!(names, ["a", "b", "b", "a"]);
    }

    #[test]
    fn tally_counts_latencies_of_requests_that_ran() {
        let mut tally = Tally::new();
        tally.count(&Outcome::Succeeded, Duration::from_millis(10));
        tally.count(&Outcome::Failed, Duration::from_millis(20));
        tally.count(&Outcome::Throttled, Duration::from_secs(9));
        let mut sum = Tally::new();
        sum.add(&tally);
        sum.add(&tally);
        assert_eq!((sum.sent, sum.succeeded, sum.failed, sum.throttled), (6, 2, 2, 2));
        assert_eq!(sum.latency_us.len(), 4);
        assert!((19_900..20_100).contains(&sum.latency_us.max()));
    }
}
