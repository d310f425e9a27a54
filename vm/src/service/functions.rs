//! What a worker needs of the instances of its functions beside what all instances have: how their processes
//! end one after the other, connections to servers inside, snapshots.

use std::time::Instant;

use vm_protocol::{Answer, Operation, TakeSnapshot, Taken};

use crate::base::error::Error;
use crate::model::record::AgentLink;
use crate::model::report::End;
use crate::service::control::Output;
use crate::service::vm::{Vm, unexpected};

impl Vm {
    /// Waits for the next end of an instance's processes, after so many of [`End::Process`]; `None` at the
    /// deadline.
    ///
    /// # Errors
    /// No such instance was started.
    pub fn next_end(&self, instance: &str, seen: usize, deadline: Instant) -> Result<Option<End>, Error> {
        self.partitions().next_end(instance, seen, deadline)
    }

    /// Sends SIGTERM to a function's program, and the next time SIGKILL. Its extensions live on.
    ///
    /// # Errors
    /// No such function runs, or the guest is down.
    pub fn terminate(&self, instance: &str) -> Result<(), Error> {
        let op = Operation::Terminate { instance: instance.to_string() };
        self.ask_once(op, "terminate a function", || format!("terminating {instance}")).map(drop)
    }

    /// Has the guest connect to a server on a function's loopback device. The connection arrives on the relay
    /// as a stream with this token.
    ///
    /// # Errors
    /// Nothing listens there ([`vm_protocol::ErrorKind::NotListening`]), no such function runs, or the guest
    /// is down.
    pub fn connect(&self, instance: &str, port: u16, token: u32) -> Result<(), Error> {
        let op = Operation::Connect { instance: instance.to_string(), port, token };
        self.ask_once(op, "connect to a function", || format!("connecting to {instance}")).map(drop)
    }

    /// Whether the guest's agent knows of snapshots: that of an earlier image does not.
    pub fn knows_snapshots(&self) -> bool {
        matches!(&self.partitions().record.read().agent, AgentLink::Up(agent) if agent.snapshots)
    }

    /// Has the guest take an instance that began as [`vm_protocol::Beginning::Taken`], and keep the snapshot.
    ///
    /// # Errors
    /// It cannot be restored ([`vm_protocol::ErrorKind::Unsupported`]), does not wait in time or has failed
    /// ([`vm_protocol::ErrorKind::Fault`]), has ended, or the guest is down.
    pub fn take_snapshot(&self, order: TakeSnapshot) -> Result<Taken, Error> {
        let what = format!("taking {}", order.instance);
        match self.ask_once(Operation::TakeSnapshot(order), "take an instance", || what)? {
            Answer::Taken(taken) => Ok(taken),
            other => Err(unexpected(&other)),
        }
    }

    /// Has the guest forget a snapshot. Instances that were restored live on.
    ///
    /// # Errors
    /// The guest is down: then it has none.
    pub fn drop_snapshot(&self, snapshot: &str) -> Result<(), Error> {
        let op = Operation::DropSnapshot { snapshot: snapshot.to_string() };
        self.ask_once(op, "forget a snapshot", || format!("forgetting {snapshot}")).map(drop)
    }

    /// The output of a function's extensions from a byte position on.
    ///
    /// # Errors
    /// No such instance was started.
    pub fn output_of_extensions(&self, instance: &str, from: u64) -> Result<Output, Error> {
        self.read_output(Operation::Output { instance: instance.to_string(), from, of_extensions: true })
    }
}
