//! What a VM needs of whatever runs it. There is one, [`crate::hypervisor::qemu`], and nothing else knows that it is QEMU but for
//! [`crate::hypervisor::accelerator`], which tries it. Another one (docs/vm.md, "Another hypervisor") implements this.

use crate::base::error::Error;
use crate::model::device::Device;

/// A VM that runs. Dropping it kills it.
pub(crate) trait Hypervisor: Send + Sync {
    /// Asks the guest to have so much of a device plugged, and does not wait for it.
    fn request(&self, device: Device, bytes: u64) -> Result<(), Error>;
    /// How much of a device the guest has plugged.
    fn size(&self, device: Device) -> Result<u64, Error>;
    /// The process that has the guest's memory.
    fn pid(&self) -> u32;
    /// Ends it at once, if it has not ended.
    fn kill(&self);
}

/// What it tells by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// Something in the guest has opened the agent's port.
    AgentCame,
    /// And closed it: it has died.
    AgentLost,
}
