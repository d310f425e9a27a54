//! The interface between the model of a VM and the hypervisor that runs it: the trait [`Hypervisor`]. QEMU
//! and Firecracker implement it ([`crate::hypervisor`]), and so does the simulated VM of the tests. What
//! happens to the process and to the agent a hypervisor records by itself ([`crate::model::record`]).

use std::time::{Duration, Instant};

use vm_protocol::{Answer, Layout, Operation, Refusal};

use crate::base::error::Error;
use crate::base::host_memory::resident_bytes;
use crate::model::device::Device;

/// A VM that runs. Dropping it kills it.
pub(crate) trait Hypervisor: Send + Sync {
    /// Requests that the guest have this much of a device plugged; does not wait for it.
    fn request_size(&self, device: Device, bytes: u64) -> Result<(), Error>;
    /// How much of a device the guest has plugged.
    fn plugged_size(&self, device: Device) -> Result<u64, Error>;
    /// Sends a request to the agent in the guest and waits for its answer.
    fn ask_agent(&self, op: Operation, timeout: Duration) -> Result<Answer, AskError>;
    /// Called once the shared partition is plugged, and before any other: lets the guest use all addresses of
    /// its devices, if this hypervisor does not from the start.
    fn open_addresses(&self, _: &Layout, _deadline: Instant) -> Result<(), Error> {
        Ok(())
    }
    /// The host process that holds the guest's memory.
    fn pid(&self) -> u32;
    /// Kills that process if it still runs.
    fn kill(&self);
    /// Fails if the host has less memory available than this.
    fn require_host_memory(&self, purpose: &str, bytes: u64) -> Result<(), Error>;
    /// Resident memory of the process that holds the guest's.
    fn resident_bytes(&self) -> u64 {
        resident_bytes(self.pid())
    }
}

/// Why a request to the agent has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskError {
    /// The agent refused.
    Refused(Refusal),
    /// The agent died, or the VM ended, before it answered.
    Lost,
    /// The agent did not answer in time. It may have carried out the request.
    TimedOut,
    /// The request cannot be encoded.
    Unsendable(String),
}
