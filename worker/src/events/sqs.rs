//! Calls to a server that speaks SQS' API (its JSON protocol), as far as a function's event source needs
//! them.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::base::name::REGION;
use crate::http::client::{self, STALL};
use worker_system::text::shown;

/// Messages of one call, as SQS has it.
pub const AT_ONCE: usize = 10;
/// How long the server may wait for a message.
pub const LONGEST_WAIT: Duration = Duration::from_secs(20);
/// Ten messages of 1 MiB, in JSON.
const ANSWER_BYTES: u64 = 32 << 20;

/// A server of queues.
#[derive(Clone, Copy, Debug)]
pub struct Queues {
    /// Where it listens.
    pub address: SocketAddr,
}

/// A message, until it is deleted or visible to others again.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Message {
    /// `MessageId`.
    pub message_id: String,
    /// `ReceiptHandle`: names this receipt of it.
    pub receipt_handle: String,
    /// `Body`.
    #[serde(default)]
    pub body: String,
    #[serde(default, rename = "MD5OfBody")]
    md5_of_body: String,
    #[serde(default)]
    attributes: Map<String, Value>,
    #[serde(default)]
    message_attributes: Map<String, Value>,
}

impl Message {
    /// The record that functions receive, as Lambda has it.
    pub fn record(&self, arn: &str) -> Value {
        let attribute = |value: &Value| {
            json!({
                "stringValue": value.get("StringValue"),
                "binaryValue": value.get("BinaryValue"),
                "stringListValues": [],
                "binaryListValues": [],
                "dataType": value.get("DataType"),
            })
        };
        let attributes = self.message_attributes.iter().map(|(name, value)| (name.clone(), attribute(value)));
        json!({
            "messageId": self.message_id,
            "receiptHandle": self.receipt_handle,
            "body": self.body,
            "attributes": self.attributes,
            "messageAttributes": attributes.collect::<Map<_, _>>(),
            "md5OfBody": self.md5_of_body,
            "eventSource": "aws:sqs",
            "eventSourceARN": arn,
            "awsRegion": REGION,
        })
    }
}

impl Queues {
    /// The address of a queue.
    ///
    /// # Errors
    /// There is none of this name, or no server.
    pub async fn url(&self, queue: &str) -> Result<String> {
        let answer = self.call("GetQueueUrl", &json!({ "QueueName": queue }), STALL).await?;
        Ok(answer
            .get("QueueUrl")
            .and_then(Value::as_str)
            .context("GetQueueUrl: there is no QueueUrl")?
            .into())
    }

    /// At most so many messages; none, if none arrives in that time. `attempt` is for FIFO queues.
    ///
    /// # Errors
    /// The server cannot be reached, or answers an error.
    pub async fn receive(
        &self,
        url: &str,
        most: usize,
        wait: Duration,
        attempt: Option<&str>,
    ) -> Result<Vec<Message>> {
        let wait = wait.min(LONGEST_WAIT);
        let mut wanted = json!({
            "QueueUrl": url,
            "MaxNumberOfMessages": most.clamp(1, AT_ONCE),
            "WaitTimeSeconds": wait.as_secs(),
            "AttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        });
        if let Some(attempt) = attempt {
            wanted["ReceiveRequestAttemptId"] = attempt.into();
        }
        let mut answer = self.call("ReceiveMessage", &wanted, wait + STALL).await?;
        match answer.get_mut("Messages").map(Value::take) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(messages) => serde_json::from_value(messages).context("ReceiveMessage: malformed messages"),
        }
    }

    /// Deletes messages.
    ///
    /// # Errors
    /// Some could not be deleted.
    pub async fn delete(&self, url: &str, receipts: &[&str]) -> Result<()> {
        for part in receipts.chunks(AT_ONCE) {
            let entry =
                |(id, receipt): (usize, &&str)| json!({ "Id": id.to_string(), "ReceiptHandle": receipt });
            let entries: Vec<Value> = part.iter().enumerate().map(entry).collect();
            let wanted = json!({ "QueueUrl": url, "Entries": entries });
            let answer = self.call("DeleteMessageBatch", &wanted, STALL).await?;
            let failed = answer.get("Failed").and_then(Value::as_array).map_or(0, Vec::len);
            ensure!(failed == 0, "DeleteMessageBatch: {failed} of {} messages are still there", part.len());
        }
        Ok(())
    }

    async fn call(&self, action: &str, body: &Value, patience: Duration) -> Result<Value> {
        let asked = async {
            let request = Request::post("/")
                .header(CONTENT_TYPE, "application/x-amz-json-1.0")
                .header("x-amz-target", format!("AmazonSQS.{action}"))
                .body(Full::new(Bytes::from(body.to_string())))?;
            let answer = client::send(self.address, request, patience).await?;
            let (status, mut text) = (answer.status(), Vec::new());
            let keep = |data: &[u8]| std::io::Write::write_all(&mut text, data);
            client::read(answer.into_body(), ANSWER_BYTES, keep).await?;
            ensure!(status.is_success(), "answers {status}: {}", shown(&String::from_utf8_lossy(&text)));
            // Some servers answer DeleteMessageBatch with an empty body.
            if text.is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_slice(&text)?) }
        };
        asked.await.with_context(|| format!("{action} of http://{}", self.address))
    }
}
