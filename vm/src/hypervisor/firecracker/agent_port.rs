//! The agent's port under Firecracker: a vsock port of the host. When a process in the guest connects to it,
//! Firecracker connects to a Unix socket of the host's, whose name ends in the port's number.
//!
//! A connection ends with the agent that made it, and the next agent makes another. Instances cannot connect:
//! their `socket` calls are limited to other address families (`vm/sandbox/src/syscalls.rs`).

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tracing::warn;
use vm_protocol::{Answer, Event, Operation, VSOCK_PORT};

use crate::base::error::Error;
use crate::hypervisor::agent_client::AgentClient;
use crate::hypervisor::process::spawn_thread;
use crate::model::hypervisor::AskError;
use crate::model::record::Record;

/// The port, and the connection of the agent that connected last.
pub struct AgentPort {
    path: PathBuf,
    record: Arc<Record>,
    current: Mutex<Current>,
}

#[derive(Default)]
struct Current {
    /// Counts connections: what an earlier one still reports is dropped.
    number: u64,
    client: Option<Arc<AgentClient>>,
}

impl AgentPort {
    /// Listens beside the vsock device's socket.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn listen(vsock: &Path, record: &Arc<Record>) -> Result<Arc<AgentPort>, Error> {
        let mut path = vsock.as_os_str().to_os_string();
        path.push(format!("_{VSOCK_PORT}"));
        let path = PathBuf::from(path);
        let listener = UnixListener::bind(&path)
            .map_err(|error| Error::Failed(format!("cannot listen at {}: {error}", path.display())))?;
        let record = Arc::clone(record);
        let port = Arc::new(AgentPort { path, record, current: Mutex::default() });
        let weak = Arc::downgrade(&port);
        spawn_thread("vm-agent-port", move || {
            for stream in listener.incoming().flatten() {
                let Some(port) = weak.upgrade() else { return };
                if let Err(error) = port.connected(stream) {
                    warn!("the agent's port: {error}");
                }
            }
        })?;
        Ok(port)
    }

    /// Sends a request to the agent, and waits for its answer.
    pub fn ask(&self, op: Operation, timeout: Duration) -> Result<Answer, AskError> {
        let client = self.current.lock().expect("no panic under this lock").client.clone();
        client.ok_or(AskError::Lost)?.ask(op, timeout)
    }

    /// An agent has connected. If the last one's connection is there still, that agent has died.
    fn connected(self: &Arc<Self>, stream: UnixStream) -> std::io::Result<()> {
        let mut current = self.current.lock().expect("no panic under this lock");
        if let Some(last) = current.client.take() {
            self.record.agent_lost();
            last.fail_pending();
        }
        current.number += 1;
        let number = current.number;
        // Its threads must not keep the port, which has it.
        let (events, end) = (Arc::downgrade(self), Arc::downgrade(self));
        let client = AgentClient::new(
            stream,
            move |event| of(&events, |port| port.event(number, event)),
            move || of(&end, |port| port.disconnected(number)),
        )?;
        current.client = Some(Arc::new(client));
        self.record.agent_connected();
        Ok(())
    }

    fn event(&self, number: u64, event: Event) {
        let current = self.current.lock().expect("no panic under this lock");
        if current.number == number {
            self.record.agent_event(event);
        }
    }

    fn disconnected(&self, number: u64) {
        let mut current = self.current.lock().expect("no panic under this lock");
        if current.number == number {
            current.client = None;
            self.record.agent_lost();
        }
    }
}

impl Drop for AgentPort {
    fn drop(&mut self) {
        // Wakes the thread that accepts, which then ends.
        let _ = UnixStream::connect(&self.path);
    }
}

fn of(port: &Weak<AgentPort>, act: impl FnOnce(&AgentPort)) {
    if let Some(port) = port.upgrade() {
        act(&port);
    }
}
