//! Sends events to one subscriber, a server inside the instance. Nothing else waits for it.

use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;

use super::event::TelemetryEvent;
use super::queue::{Batch, Queue};
use super::subscription::Subscription;
use crate::sandbox::interface::{self as sandbox, Sandbox};
use worker_system::lock::lock;

/// Attempts to connect: a server may not listen yet.
const ATTEMPTS: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(100);
/// The most that is read of a server's answer.
const ANSWER_BYTES: usize = 64 * 1024;

/// A subscriber.
pub(super) struct Subscriber {
    /// The extension.
    pub name: String,
    subscription: Subscription,
    queue: Mutex<Queue>,
    /// Notified when a delivery may be due.
    changes: Notify,
    /// Notified when nothing waits any more.
    drained: Notify,
}

/// An open connection.
enum Connection {
    Http(SendRequest<Full<Bytes>>),
    Lines(Box<dyn sandbox::Connection>),
}

impl Subscriber {
    pub fn new(name: String, subscription: Subscription) -> Subscriber {
        let (changes, drained) = (Notify::new(), Notify::new());
        Subscriber { name, subscription, queue: Mutex::default(), changes, drained }
    }

    /// Has it receive an event, if it has subscribed to its type. Never waits.
    pub fn push(&self, event: &TelemetryEvent) {
        if self.subscription.types.contains(&event.kind) {
            lock(&self.queue).push(event.json(&self.subscription), &self.subscription);
            self.changes.notify_one();
        }
    }

    /// Has all that waits be sent, and waits for that.
    pub async fn flush(&self) {
        let drained = self.drained.notified();
        lock(&self.queue).flushes = true;
        self.changes.notify_one();
        drained.await;
    }

    /// Delivers until it is dropped.
    pub async fn deliver(self: Arc<Self>, sandbox: Arc<dyn Sandbox>) {
        let mut connection = None;
        loop {
            let batch = self.next().await;
            let (records, bytes) = (batch.events.len(), batch.bytes);
            if let Err(error) = self.send(&mut connection, batch, &*sandbox).await {
                connection = None;
                lock(&self.queue).lose(records, bytes, &format!("could not send events: {error}"));
            }
        }
    }

    async fn next(&self) -> Batch {
        loop {
            let changes = self.changes.notified();
            let due = {
                let mut queue = lock(&self.queue);
                match queue.due_in(&self.subscription) {
                    Some(due) if due.is_zero() => return queue.take(&self.subscription),
                    Some(due) => Some(due),
                    None => {
                        if queue.flushes {
                            self.drained.notify_waiters();
                        }
                        None
                    }
                }
            };
            match due {
                Some(due) => drop(tokio::time::timeout(due, changes).await),
                None => changes.await,
            }
        }
    }

    async fn send(
        &self,
        connection: &mut Option<Connection>,
        batch: Batch,
        sandbox: &dyn Sandbox,
    ) -> io::Result<()> {
        let is_closed = match connection {
            Some(Connection::Http(sender)) => sender.ready().await.is_err(),
            Some(Connection::Lines(_)) => false,
            None => true,
        };
        if is_closed {
            *connection = Some(self.connect(sandbox).await?);
        }
        match connection.as_mut().expect("made above") {
            Connection::Lines(stream) => {
                let mut lines = batch.events.join("\n");
                lines.push('\n');
                stream.write_all(lines.as_bytes()).await
            }
            Connection::Http(sender) => {
                let body = Bytes::from(format!("[{}]", batch.events.join(",")));
                let destination = &self.subscription.destination;
                let request = Request::post(destination.path.as_deref().unwrap_or("/"))
                    .header(HOST, format!("sandbox.localdomain:{}", destination.port))
                    .header(CONTENT_TYPE, "application/json")
                    .body(Full::new(body))
                    .map_err(io::Error::other)?;
                let answer = sender.send_request(request).await.map_err(io::Error::other)?;
                let status = answer.status();
                let read = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
                read.map_err(|_| io::Error::other("the answer is too long"))?;
                match status.is_success() {
                    true => Ok(()),
                    false => Err(io::Error::other(format!("the answer is {status}"))),
                }
            }
        }
    }

    async fn connect(&self, sandbox: &dyn Sandbox) -> io::Result<Connection> {
        let mut attempt = 1;
        let stream = loop {
            match sandbox.connect(self.subscription.destination.port).await {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused && attempt < ATTEMPTS => {
                    attempt += 1;
                    tokio::time::sleep(BETWEEN).await;
                }
                connected => break connected?,
            }
        };
        if self.subscription.destination.path.is_none() {
            return Ok(Connection::Lines(stream));
        }
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        // Ends with the sender.
        tokio::spawn(connection);
        Ok(Connection::Http(sender))
    }
}
