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
use crate::function::template::QueueSource;
use crate::invocation::request::Invocation;
use worker_system::lock::lock;

/// The pause after an error, which doubles each time.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// All sources that are polled now, by function.
pub(crate) struct EventSources {
    worker: Arc<Worker>,
    running: Mutex<BTreeMap<String, Asked>>,
}

/// The queues of one function.
struct Asked {
    sources: Vec<QueueSource>,
    tasks: Vec<AbortHandle>,
}

impl EventSources {
    pub fn new(worker: Arc<Worker>) -> EventSources {
        EventSources { worker, running: Mutex::default() }
    }

    /// Polls these from now on, and no others. Unchanged ones go on. Received messages are still processed.
    pub fn set(&self, wanted: BTreeMap<String, Vec<QueueSource>>) {
        let Some(queues) = self.worker.options.queues.map(|address| Queues { address }) else { return };
        let mut running = lock(&self.running);
        running.retain(|target, asked| {
            let stays = wanted.get(target) == Some(&asked.sources);
            if !stays {
                asked.tasks.iter().for_each(AbortHandle::abort);
            }
            stays
        });
        for (target, sources) in wanted {
            let start = |source: &QueueSource| {
                let poller = Poller {
                    worker: self.worker.clone(),
                    queues,
                    target: target.clone(),
                    source: source.clone(),
                };
                tokio::spawn(Arc::new(poller).poll()).abort_handle()
            };
            let asked = || Asked { tasks: sources.iter().map(start).collect(), sources: sources.clone() };
            running.entry(target.clone()).or_insert_with(asked);
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
        while !self.worker.is_closing() {
            let place = places.clone().acquire_owned().await.expect("it is never closed");
            match self.batch(&mut url).await {
                Ok(batch) => {
                    pause = PAUSE;
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
    async fn batch(&self, url: &mut Option<String>) -> Result<Vec<Message>> {
        let url = match url {
            Some(url) => url,
            None => url.insert(self.queues.url(&self.source.queue).await?),
        };
        let wanted = self.source.batch_size;
        let mut batch = self.queues.receive(url, wanted, LONGEST_WAIT).await?;
        let ends = Instant::now() + Duration::from_secs(self.source.window_s);
        while !batch.is_empty() && batch.len() < wanted && room_for_more(&batch) {
            let left = ends.saturating_duration_since(Instant::now());
            if left < Duration::from_secs(1) {
                break;
            }
            batch.extend(self.queues.receive(url, wanted - batch.len(), left).await?);
        }
        Ok(batch)
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
