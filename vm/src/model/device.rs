//! The virtio-mem devices through which a VM's memory is plugged: the host requests a size of each, and the
//! guest's driver plugs or unplugs memory to match it.

use vm_protocol::{Mode, PartitionNumber};

use crate::base::settings::{BLOCK_BYTES, Settings};

/// A virtio-mem device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryDevice {
    /// Which device.
    pub device: Device,
    /// The most that it can plug: whole memory blocks of Linux. A smaller partition uses only part of its
    /// last block.
    pub bytes: u64,
    /// The NUMA node of its memory in the guest.
    pub node: u32,
}

/// Names a virtio-mem device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Device {
    /// The shared partition.
    Shared,
    /// A partition.
    Partition(PartitionNumber),
    /// Modes `ranges` and `plain`: the one device for everything.
    All,
}

impl Device {
    /// Its name in the hypervisor.
    pub fn id(self) -> String {
        match self {
            Device::Shared => "shared".to_string(),
            Device::Partition(number) => format!("partition{number}"),
            Device::All => "all".to_string(),
        }
    }
}

/// The virtio-mem devices of a VM.
pub fn memory_devices(settings: &Settings) -> Vec<MemoryDevice> {
    let layout = &settings.layout;
    match layout.mode {
        Mode::Static => Vec::new(),
        Mode::Plain | Mode::Ranges => vec![MemoryDevice {
            device: Device::All,
            bytes: settings.hotplug_bytes().next_multiple_of(BLOCK_BYTES),
            node: 0,
        }],
        Mode::Nodes | Mode::Hotmem => {
            let shared = MemoryDevice {
                device: Device::Shared,
                bytes: layout.shared_bytes,
                node: layout.shared_node(),
            };
            let partitions = layout.numbers().map(|number| MemoryDevice {
                device: Device::Partition(number),
                bytes: layout.bytes_of(number).next_multiple_of(BLOCK_BYTES),
                node: layout.node_of(number),
            });
            (layout.shared_bytes > 0).then_some(shared).into_iter().chain(partitions).collect()
        }
    }
}
