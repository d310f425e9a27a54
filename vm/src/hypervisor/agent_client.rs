//! The connection to the guest agent: sends requests, matches answers by their id, passes events on.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::{debug, warn};
use vm_protocol::{Answer, Decoder, Event, FromAgent, Operation, Outcome, Reply, Request, encode};

use crate::model::hypervisor::AskError;

/// A working agent reads a request in far less; a guest that does not is stuck.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

type Pending = Mutex<HashMap<u64, SyncSender<Result<Answer, AskError>>>>;

/// A connection to the port of the agent.
pub struct AgentClient {
    writer: Mutex<UnixStream>,
    pending: Arc<Pending>,
    next_id: AtomicU64,
}

impl AgentClient {
    /// Takes the host's end of the port. `on_event` is called for each event, in order with the answers: an
    /// answer is only returned once `on_event` has returned for all events before it. `on_event` must not
    /// send requests. `on_end` is called when the connection has ended.
    pub fn new(
        stream: UnixStream,
        on_event: impl FnMut(Event) + Send + 'static,
        on_end: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<AgentClient> {
        let reader = stream.try_clone()?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let pending = Arc::new(Pending::default());
        let shared = Arc::clone(&pending);
        std::thread::Builder::new().name("vm-agent".to_string()).spawn(move || {
            read_all(reader, &shared, on_event);
            fail_all(&shared);
            on_end();
        })?;
        Ok(AgentClient { writer: Mutex::new(stream), pending, next_id: AtomicU64::new(1) })
    }

    /// Sends a request and waits for its answer.
    pub fn ask(&self, op: Operation, timeout: Duration) -> Result<Answer, AskError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let frame = encode(&Request { id, op }).map_err(|error| AskError::Unsendable(error.to_string()))?;
        let (sender, receiver) = sync_channel(1);
        self.pending.lock().expect("no panic under this lock").insert(id, sender);
        let sent = self.writer.lock().expect("no panic under this lock").write_all(&frame);
        let outcome = match sent {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Err(AskError::TimedOut),
            Err(_) => Err(AskError::Lost),
            Ok(()) => match receiver.recv_timeout(timeout) {
                Ok(outcome) => outcome,
                Err(RecvTimeoutError::Timeout) => Err(AskError::TimedOut),
                Err(RecvTimeoutError::Disconnected) => Err(AskError::Lost),
            },
        };
        self.pending.lock().expect("no panic under this lock").remove(&id);
        outcome
    }

    /// The agent died: fails all requests under way, for no agent will answer them.
    pub fn fail_pending(&self) {
        fail_all(&self.pending);
    }
}

fn fail_all(pending: &Pending) {
    // Dropping the senders wakes the threads that wait for answers.
    pending.lock().expect("no panic under this lock").clear();
}

fn read_all(mut reader: UnixStream, pending: &Pending, mut on_event: impl FnMut(Event)) {
    let mut decoder = Decoder::new();
    let mut bytes = vec![0; 64 << 10];
    loop {
        match reader.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => decoder.push(&bytes[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        }
        loop {
            match decoder.next_frame() {
                Ok(Some(text)) => match serde_json::from_slice(&text) {
                    Ok(FromAgent::Reply(reply)) => answer(pending, reply),
                    Ok(FromAgent::Event(event)) => on_event(event),
                    Err(_) => warn!("the guest's agent sent a frame that is no message"),
                },
                Ok(None) => break,
                Err(error) => warn!("from the guest's agent: {error}"),
            }
        }
    }
}

fn answer(pending: &Pending, reply: Reply) {
    let Some(sender) = pending.lock().expect("no panic under this lock").remove(&reply.id) else {
        debug!(?reply, "an answer that no request waits for");
        return;
    };
    let outcome = match reply.outcome {
        Outcome::Ok(answer) => Ok(answer),
        Outcome::Error(refusal) => Err(AskError::Refused(refusal)),
    };
    // The channel has room for one message, and this is its only one: this does not block.
    let _ = sender.send(outcome);
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_protocol::{ErrorKind, Refusal};

    fn receive(stream: &mut UnixStream, decoder: &mut Decoder) -> Request {
        let mut bytes = [0; 1000];
        loop {
            if let Some(text) = decoder.next_frame().unwrap() {
                return serde_json::from_slice(&text).unwrap();
            }
            let count = stream.read(&mut bytes).unwrap();
            decoder.push(&bytes[..count]);
        }
    }

    #[test]
    fn answers_reach_their_requests_despite_garbage_and_events() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (sender, events) = std::sync::mpsc::channel();
        let (ended, end) = std::sync::mpsc::channel();
        let on_event = move |event| sender.send(event).unwrap();
        let client = Arc::new(AgentClient::new(ours, on_event, move || ended.send(()).unwrap()).unwrap());
        let ask = |op| {
            let client = Arc::clone(&client);
            std::thread::spawn(move || client.ask(op, Duration::from_secs(10)))
        };
        let mut decoder = Decoder::new();
        let list = ask(Operation::List);
        let first = receive(&mut theirs, &mut decoder);
        let stats = ask(Operation::Stats);
        let second = receive(&mut theirs, &mut decoder);
        let busy = Refusal { kind: ErrorKind::Busy, message: "used".to_string() };
        let mut bytes = b"garbage".to_vec();
        bytes.extend(encode(&FromAgent::Event(Event::Notice { message: "n".to_string() })).unwrap());
        bytes.extend(encode(&Reply { id: 99, outcome: Outcome::Ok(Answer::Done) }).unwrap());
        bytes.extend(encode(&Reply { id: second.id, outcome: Outcome::Error(busy.clone()) }).unwrap());
        bytes.extend(&encode(&serde_json::json!({"what": 1})).unwrap());
        bytes.extend(encode(&Reply { id: first.id, outcome: Outcome::Ok(Answer::Done) }).unwrap());
        theirs.write_all(&bytes).unwrap();
        assert_eq!(list.join().unwrap(), Ok(Answer::Done));
        assert_eq!(stats.join().unwrap(), Err(AskError::Refused(busy)));
        assert_eq!(events.recv().unwrap(), Event::Notice { message: "n".to_string() });
        assert_eq!(client.ask(Operation::List, Duration::from_millis(20)), Err(AskError::TimedOut));
        let lost = ask(Operation::List);
        receive(&mut theirs, &mut decoder);
        receive(&mut theirs, &mut decoder);
        assert!(end.try_recv().is_err());
        drop(theirs);
        assert_eq!(lost.join().unwrap(), Err(AskError::Lost));
        end.recv().unwrap();
    }
}
