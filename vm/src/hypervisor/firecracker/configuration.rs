//! Firecracker's configuration before the guest starts: one request for each resource.

use std::path::Path;

use serde_json::{Value, json};
use vm_protocol::Mode;

use crate::base::settings::{BLOCK_BYTES, PIECE_BYTES, Settings};
use crate::hypervisor::guest_kernel;

/// The guest's own address on its vsock device. Each VM has a device of its own.
const GUEST_ADDRESS: u32 = 3;

/// Paths and bodies of the PUT requests, in their order; the last one starts the guest. `kernel` has a format
/// that Firecracker boots; `vsock` is where it makes the socket of the vsock device.
pub(super) fn requests(settings: &Settings, kernel: &Path, vsock: &Path) -> Vec<(&'static str, Value)> {
    let boot_mib = settings.memory_at_boot_bytes() >> 20;
    let mut list = vec![
        ("/machine-config", json!({"vcpu_count": settings.cpus, "mem_size_mib": boot_mib})),
        (
            "/boot-source",
            json!({
                "kernel_image_path": kernel,
                "initrd_path": settings.image.initrd,
                // A reset by the keyboard controller ends Firecracker.
                "boot_args": guest_kernel::command_line(settings, "reboot=k"),
            }),
        ),
        ("/vsock", json!({"guest_cid": GUEST_ADDRESS, "uds_path": vsock})),
    ];
    if let Some(disk) = &settings.image.disk {
        // For Firecracker no root device: the initial RAM file system mounts it.
        let drive = json!({
            "drive_id": "root", "path_on_host": disk, "is_root_device": false, "is_read_only": true
        });
        list.push(("/drives/root", drive));
    }
    if settings.reports_free_memory {
        let balloon = json!({"amount_mib": 0, "deflate_on_oom": false, "free_page_reporting": true});
        list.push(("/balloon", balloon));
    }
    if settings.layout.mode != Mode::Static {
        let memory = json!({
            "total_size_mib": settings.hotplug_bytes().next_multiple_of(BLOCK_BYTES) >> 20,
            "block_size_mib": PIECE_BYTES >> 20,
            // What Firecracker takes from the guest as a whole: the block in which Linux plugs memory.
            "slot_size_mib": BLOCK_BYTES >> 20,
        });
        list.push(("/hotplug/memory", memory));
    }
    list.push(("/actions", json!({"action_type": "InstanceStart"})));
    list
}
