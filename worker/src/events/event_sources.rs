//! Event sources: functions that are called with the messages of a queue, each at least once.
//!
//! A message is deleted when the function has processed it. The others become visible again after the
//! queue's visibility timeout, as does all that a worker had when it was killed; how often, and what then,
//! is the queue's setting (its redrive policy).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use crate::base::limits;
use crate::base::name::{self, Target};
use crate::control::Worker;
use crate::events::sqs::{LONGEST_WAIT, Message, Queues};
use crate::function::queue_source::QueueSource;
use crate::invocation::request::Invocation;
use worker_system::lock::lock;

/// The pause after an error, which doubles each time.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// All sources that are polled now.
pub(crate) struct EventSources {
    worker: Arc<Worker>,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    is_active: bool,
    /// By the source's id.
    polled: BTreeMap<String, Polled>,
}

/// A source, and the task that polls it.
struct Polled {
    target: String,
    source: QueueSource,
    task: AbortHandle,
}

impl EventSources {
    /// Follows the worker's sources; polls none until it is active.
    pub fn new(worker: Arc<Worker>) -> Arc<EventSources> {
        let mut changes = worker.follow_mappings();
        let sources = Arc::new(EventSources { worker, running: Mutex::default() });
        let following = sources.clone();
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                following.follow();
            }
        });
        sources
    }

    /// Polls the worker's sources, or none any more.
    pub fn set_active(&self, is_active: bool) {
        lock(&self.running).is_active = is_active;
        self.follow();
    }

    /// Polls the sources that the worker has now, and no others. Unchanged ones go on. Received messages
    /// are still processed.
    fn follow(&self) {
        let Some(queues) = self.worker.options.queues.map(|address| Queues { address }) else { return };
        let mut running = lock(&self.running);
        let is_active = running.is_active;
        let mut wanted: BTreeMap<String, (String, QueueSource)> = self.worker.mappings(|mappings| {
            let enabled = mappings.iter().filter(|(_, mapping)| is_active && mapping.given.is_enabled());
            let checked = enabled.filter_map(|(id, mapping)| {
                Some((id.clone(), (mapping.target.clone(), mapping.given.source().ok()?)))
            });
            checked.collect()
        });
        running.polled.retain(|id, polled| {
            let same = |(target, source): &(String, QueueSource)| {
                (target, source) == (&polled.target, &polled.source)
            };
            let stays = wanted.get(id).is_some_and(same);
            if stays {
                wanted.remove(id);
            } else {
                polled.task.abort();
            }
            stays
        });
        for (id, (target, source)) in wanted {
            let worker = self.worker.clone();
            let poller = Poller { worker, queues, target: target.clone(), source: source.clone() };
            let task = tokio::spawn(Arc::new(poller).poll()).abort_handle();
            running.polled.insert(id, Polled { target, source, task });
        }
    }
}

/// Polls one queue for one function.
struct Poller {
    worker: Arc<Worker>,
    queues: Queues,
    target: String,
    source: QueueSource,
}

impl Poller {
    async fn poll(self: Arc<Self>) {
        let places = Arc::new(Semaphore::new(self.source.concurrency));
        let mut pause = PAUSE;
        let mut url = None;
        // A FIFO queue answers a repeated attempt with the same messages, should an answer be lost.
        let mut attempt = uuid::Uuid::new_v4();
        while !self.worker.is_closing() {
            let place = places.clone().acquire_owned().await.expect("it is never closed");
            match self.batch(&mut url, &attempt.to_string()).await {
                Ok(batch) => {
                    pause = PAUSE;
                    attempt = uuid::Uuid::new_v4();
                    if let (false, Some(url)) = (batch.is_empty(), url.clone()) {
                        tokio::spawn(self.clone().run(url, batch, place));
                    }
                }
                Err(error) => {
                    tracing::warn!("[{}] queue {}: {error:#}", self.target, self.source.queue);
                    url = None;
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// As many messages as one call takes, or that arrive in time.
    async fn batch(&self, url: &mut Option<String>, attempt: &str) -> Result<Vec<Message>> {
        let url = match url {
            Some(url) => url,
            None => url.insert(self.queues.url(&self.source.queue).await?),
        };
        let wanted = self.source.batch_size;
        let attempt = self.source.queue.ends_with(".fifo").then_some(attempt);
        let mut batch = self.receive(url, wanted, LONGEST_WAIT, attempt).await?;
        let ends = Instant::now() + Duration::from_secs(self.source.window_s);
        while !batch.is_empty() && batch.len() < wanted && room_for_more(&batch) {
            let left = ends.saturating_duration_since(Instant::now());
            if left < Duration::from_secs(1) {
                break;
            }
            batch.extend(self.receive(url, wanted - batch.len(), left, attempt).await?);
        }
        Ok(batch)
    }

    /// Messages that the function is called with. Others are deleted, as on Lambda.
    async fn receive(
        &self,
        url: &str,
        most: usize,
        wait: Duration,
        attempt: Option<&str>,
    ) -> Result<Vec<Message>> {
        let messages = self.queues.receive(url, most, wait, attempt).await?;
        let is_wanted =
            |message: &Message| self.source.patterns.match_record(&message.record(&self.source.arn));
        let (wanted, others): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_wanted);
        let others: Vec<&str> = others.iter().map(|message| message.receipt_handle.as_str()).collect();
        if let Err(error) = self.queues.delete(url, &others).await {
            // They are received and compared again.
            tracing::warn!("[{}] queue {}: {error:#}", self.target, self.source.queue);
        }
        Ok(wanted)
    }

    async fn run(self: Arc<Self>, url: String, batch: Vec<Message>, place: OwnedSemaphorePermit) {
        let records: Vec<_> = batch.iter().map(|message| message.record(&self.source.arn)).collect();
        let payload = json!({ "Records": records }).to_string();
        let invocation = Invocation::new(name::arn(&self.target), payload.into(), None, None);
        let label = format!("[{}] {} messages of {}", self.target, batch.len(), self.source.queue);
        let outcome = match name::parse(&self.target) {
            Ok(target) => self.invoke(&target, invocation).await,
            Err(error) => Err(error.to_string()),
        };
        let done = match outcome {
            Ok(answer) if self.source.partial => done_of(&batch, &answer),
            Ok(_) => batch.iter().collect(),
            Err(reason) => {
                tracing::warn!("{label}: {reason}");
                // A pause, since the next messages would probably fail as fast.
                tokio::time::sleep(PAUSE).await;
                Vec::new()
            }
        };
        let receipts: Vec<&str> = done.iter().map(|message| message.receipt_handle.as_str()).collect();
        if let Err(error) = self.queues.delete(&url, &receipts).await {
            tracing::warn!("{label} are processed, but may be delivered again: {error:#}");
        }
        drop(place);
    }

    async fn invoke(&self, target: &Target, invocation: Invocation) -> Result<Vec<u8>, String> {
        match self.worker.invoke(target, invocation).await {
            Ok(outcome) if !outcome.failed => Ok(outcome.payload.to_vec()),
            Ok(outcome) => Err(String::from_utf8_lossy(&outcome.payload).chars().take(500).collect()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Whether ten more of SQS' largest messages fit into one event, with all of JSON's escapes.
fn room_for_more(batch: &[Message]) -> bool {
    let bytes: usize = batch.iter().map(|message| message.body.len()).sum();
    bytes < limits::PAYLOAD_BYTES / 4
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Report {
    batch_item_failures: Option<Vec<Failure>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Failure {
    item_identifier: String,
}

/// The messages that a function has processed, by its answer. One that is no report, or that names a
/// message which was not in the batch, means that none is.
fn done_of<'a>(batch: &'a [Message], answer: &[u8]) -> Vec<&'a Message> {
    let Ok(report) = serde_json::from_slice::<Option<Report>>(answer) else { return Vec::new() };
    let failures = report.unwrap_or_default().batch_item_failures.unwrap_or_default();
    let has = |id: &str| batch.iter().any(|message| message.message_id == id);
    if !failures.iter().all(|failure| has(&failure.item_identifier)) {
        return Vec::new();
    }
    let failed =
        |message: &Message| failures.iter().any(|failure| failure.item_identifier == message.message_id);
    batch.iter().filter(|message| !failed(message)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_a_function_reports_stay() {
        let message =
            |id: &str| serde_json::from_value(json!({ "MessageId": id, "ReceiptHandle": "r" })).unwrap();
        let batch: Vec<Message> = ["a", "b", "c"].map(message).into();
        let done = |answer: &str| {
            done_of(&batch, answer.as_bytes()).iter().map(|m| m.message_id.as_str()).collect::<String>()
        };
        for (answer, left) in [
            ("null", "abc"),
            ("{}", "abc"),
            (r#"{"batchItemFailures": null}"#, "abc"),
            (r#"{"batchItemFailures": []}"#, "abc"),
            (r#"{"batchItemFailures": [{"itemIdentifier": "b"}]}"#, "ac"),
            (r#"{"batchItemFailures": [{"itemIdentifier": "b"}, {"itemIdentifier": "d"}]}"#, ""),
            (r#"{"batchItemFailures": [{"itemIdentifier": ""}]}"#, ""),
            (r#"{"batchItemFailures": [{"itemIdentifier": null}]}"#, ""),
            (r#"{"batchItemFailures": [{"other": "b"}]}"#, ""),
            ("\"text\"", ""),
        ] {
            assert_eq!(done(answer), left, "{answer}");
        }
    }
}
