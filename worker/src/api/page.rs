//! The page at `/`: gathers what it shows; `worker_page` lays it out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue};
use worker_page::data::Outcomes;
use worker_page::page::{self, MINUTES};
use worker_page::view::{Counts, Function, Percentiles, Reason, Requests, View};

use super::{Api, history};
use crate::control::Worker;
use crate::control::sampler;
use crate::http::{self, Answer};
use crate::invocation::counters::{BUCKETS_S, Count, Histogram};
use worker_system::lock::lock;

/// The page, with charts over the minutes that the query asks for.
pub async fn page(api: &Api, query: Option<&str>) -> Answer {
    let minutes = minutes(query);
    let nonce = uuid::Uuid::new_v4().simple().to_string();
    let (worker, own_nonce) = (api.worker.clone(), nonce.clone());
    // Reading page tables and drawing take milliseconds that no request should wait for.
    let drawn = tokio::task::spawn_blocking(move || draw(&worker, minutes, &own_nonce)).await;
    let mut answer = http::answer(200, "text/html; charset=utf-8", drawn.unwrap_or_default());
    let policy = format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; style-src-attr 'unsafe-inline'; script-src 'nonce-{nonce}'; \
         connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
    );
    let headers = answer.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_str(&policy).expect("plain letters"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(HeaderName::from_static("referrer-policy"), HeaderValue::from_static("no-referrer"));
    answer
}

/// The stretch of time that `minutes=` in the query names, if it is one that the page offers.
fn minutes(query: Option<&str>) -> u64 {
    let given = super::query(query, "minutes").next();
    given.and_then(|text| text.parse().ok()).filter(|minutes| MINUTES.contains(minutes)).unwrap_or(5)
}

fn draw(worker: &Arc<Worker>, minutes: u64, nonce: &str) -> String {
    let now_ms = worker.history.now_ms();
    let functions: Vec<Function> =
        worker.functions().iter().map(|function| described(worker, function)).collect();
    let view = View {
        uptime_ms: now_ms,
        minutes,
        layers: &history::layers(worker),
        samples: &worker.history.samples(now_ms.checked_sub(minutes * 60_000)),
        events: &worker.history.events(None).events,
        instances: &sampler::instances(worker).instances,
        functions: &functions,
        counts: counts(worker),
    };
    page::page(&view, nonce)
}

fn described(worker: &Worker, function: &crate::function::definition::Function) -> Function {
    let deployment = &function.deployment;
    Function {
        name: deployment.name.clone(),
        runtime: deployment.settings.runtime.name().to_string(),
        memory_mib: deployment.settings.memory_mib.into(),
        reserved: function.reserved.map(u64::from),
        queued: worker.counts_of(function).queued.into(),
        counts: requests(&function.count),
    }
}

fn requests(count: &Count) -> Requests {
    let last_refusal = lock(&count.last_refusal).clone();
    let reasons = lock(&count.reasons)
        .all()
        .iter()
        .map(|reason| Reason {
            text: reason.text.clone(),
            count: reason.count,
            ago_ms: reason.last.elapsed().as_millis() as u64,
        })
        .collect();
    Requests {
        answered: read(&count.succeeded) + read(&count.failed),
        failed: read(&count.failed),
        refused: read(&count.throttled) + read(&count.refused),
        last_refusal,
        reasons,
        latency: percentiles(&count.latency),
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn counts(worker: &Worker) -> Counts {
    let count = &worker.count;
    let Outcomes { succeeded, failed, throttled, refused } = sampler::outcomes(worker);
    Counts {
        succeeded,
        failed,
        throttled,
        refused,
        cold_starts: count.cold_start.cumulative().last().copied().unwrap_or(0),
        latency: percentiles(&count.latency),
        cold_start: percentiles(&count.cold_start),
        restores: count.restore.cumulative().last().copied().unwrap_or(0),
        restore: percentiles(&count.restore),
    }
}

fn percentiles(histogram: &Histogram) -> Percentiles {
    let counts = histogram.cumulative();
    let at = |quantile| quantile_ms(&counts, quantile);
    Percentiles { p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99), p999_ms: at(0.999) }
}

/// A quantile estimated as Prometheus does it: durations lie evenly in their bucket. What is in the last,
/// endless bucket counts as its lower bound.
fn quantile_ms(cumulative: &[u64], quantile: f64) -> Option<f64> {
    let all = *cumulative.last().filter(|all| **all > 0)?;
    let rank = quantile * all as f64;
    let bucket = cumulative.iter().position(|count| *count as f64 >= rank)?;
    let upper_s = *BUCKETS_S.get(bucket).unwrap_or(BUCKETS_S.last()?);
    let (lower_s, before) = match bucket {
        0 => (0.0, 0),
        _ => (BUCKETS_S[bucket - 1], cumulative[bucket - 1]),
    };
    let inside = (cumulative[bucket] - before).max(1) as f64;
    Some((lower_s + (upper_s - lower_s).max(0.0) * (rank - before as f64) / inside) * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_in_their_bucket() {
        // 50 of at most 1 ms, 50 more of 2 to 5 ms, as there are buckets 1, 2, 5, ...
        let mut cumulative = vec![50, 50, 100];
        cumulative.resize(BUCKETS_S.len() + 1, 100);
        assert_eq!(quantile_ms(&cumulative, 0.5), Some(1.0));
        assert_eq!(quantile_ms(&cumulative, 0.75), Some(3.5));
        assert_eq!(quantile_ms(&cumulative, 1.0), Some(5.0));
        let mut endless = vec![0; BUCKETS_S.len()];
        endless.push(7);
        assert_eq!(quantile_ms(&endless, 0.5), Some(10_000.0));
        assert_eq!(quantile_ms(&[0; BUCKETS_S.len() + 1], 0.5), None);
    }

    #[test]
    fn only_stretches_that_the_page_offers_are_taken() {
        let taken = [None, Some("minutes=15"), Some("x=1&minutes=60"), Some("minutes=7"), Some("minutes=x")]
            .map(minutes);
        assert_eq!(taken, [5, 15, 60, 5, 5]);
    }
}
