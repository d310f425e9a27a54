//! QEMU's command line.

use std::os::fd::RawFd;
use std::path::Path;

use vm_protocol::{Mode, PORT, relay};

use crate::base::settings::{Backing, PIECE_BYTES, Settings};
use crate::hypervisor::accelerator::Accelerator;
use crate::hypervisor::guest_kernel;
use crate::model::device::{MemoryDevice, memory_devices};

use super::confinement::Files;

/// QEMU's name for the agent's virtio-serial port, in its events too.
pub(super) const AGENT_PORT: &str = "agent-port";

/// The first PCI slot for virtio-mem devices; eight functions a slot, up to slot 31.
const FIRST_MEMORY_SLOT: u32 = 6;

/// QEMU's own seccomp filter, on all its threads. A guest that has broken out of a device's emulation can
/// then not start programs, change user, set CPU affinity or priorities, or make system calls that QEMU never
/// makes.
const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// The arguments for QEMU. The descriptors are those of monitor, agent port, console and relay. The files
/// have the paths at which QEMU, once confined, finds them.
pub(super) fn arguments(
    settings: &Settings,
    accelerator: Accelerator,
    descriptors: [RawFd; 4],
    files: &Files,
) -> Vec<String> {
    let layout = &settings.layout;
    let devices = memory_devices(settings);
    let nodes = if matches!(layout.mode, Mode::Nodes | Mode::Hotmem) { devices.len() as u32 } else { 0 };
    let cpus = settings.cpus;
    let [monitor, agent, console, relay] = descriptors;
    let boot_bytes = settings.memory_at_boot_bytes();
    // Room for every device, and for QEMU to align each one.
    let plug_bytes: u64 = devices.iter().map(|device| device.bytes + (128 << 20)).sum();
    let max = if devices.is_empty() {
        String::new()
    } else {
        format!(",slots=1,maxmem={}", boot_bytes + plug_bytes + (4 << 30))
    };
    let mut list: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| list.extend(words.iter().map(ToString::to_string));
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    add(&["-sandbox", SANDBOX]);
    add(&["-name", &format!("mayfly-{},debug-threads=on", settings.name), "-machine", "pc,mem-merge=off"]);
    add(&["-accel", accelerator.option(), "-cpu", accelerator.cpu()]);
    let all = cpus + nodes;
    add(&[
        "-smp",
        &format!("{cpus},maxcpus={all},sockets={all},cores=1,threads=1"),
        "-m",
        &format!("size={boot_bytes}B{max}"),
    ]);
    // Without a reservation QEMU would be killed where the pool of huge pages runs dry.
    let reserve = settings.backing == Backing::HugePages;
    add(&["-object", &memory(settings.backing, "boot", boot_bytes, reserve)]);
    add(&["-numa", "node,nodeid=0,memdev=memory-boot"]);
    // QEMU describes an empty node to the guest only if a CPU belongs to it: here one that is never plugged.
    for node in 1..=nodes {
        add(&["-numa", &format!("node,nodeid={node}")]);
    }
    for cpu in 0..cpus + nodes {
        let node = (cpu + 1).saturating_sub(cpus);
        add(&["-numa", &format!("cpu,node-id={node},socket-id={cpu}")]);
    }
    add(&["-chardev", &format!("socket,id=monitor,fd={monitor}"), "-mon", "chardev=monitor,mode=control"]);
    add(&["-chardev", &format!("socket,id=console,fd={console}"), "-serial", "chardev:console"]);
    add(&["-device", "virtio-serial-pci,addr=4", "-chardev", &format!("socket,id=agent,fd={agent}")]);
    add(&["-device", &format!("virtserialport,id={AGENT_PORT},chardev=agent,name={PORT}")]);
    add(&["-chardev", &format!("socket,id=relay,fd={relay}")]);
    add(&["-device", &format!("virtserialport,id=relay-port,chardev=relay,name={}", relay::PORT)]);
    if let Some(disk) = &files.disk {
        let disk = comma_escaped(disk);
        add(&["-drive", &format!("if=none,id=root,format=raw,readonly=on,file={disk}")]);
        add(&["-device", "virtio-blk-pci,drive=root,addr=5"]);
    }
    if let Some(disk) = &files.code {
        let disk = comma_escaped(disk);
        add(&["-drive", &format!("if=none,id=code,format=raw,readonly=on,file={disk}")]);
        // After the root disk, which the agent takes as the first.
        add(&["-device", "virtio-blk-pci,drive=code,addr=1e,serial=mayfly-code"]);
    }
    if settings.reports_free_memory {
        add(&["-device", "virtio-balloon-pci,addr=1d,free-page-reporting=on"]);
    }
    for (index, MemoryDevice { device, bytes, node }) in devices.into_iter().enumerate() {
        let (id, slot, function) = (device.id(), FIRST_MEMORY_SLOT + index as u32 / 8, index % 8);
        let first = if function == 0 { ",multifunction=on" } else { "" };
        add(&["-object", &memory(settings.backing, &id, bytes, false)]);
        // QEMU takes the pages of a block before it plugs that; if the pool has none it refuses the block.
        let prealloc = if settings.backing == Backing::HugePages { ",prealloc=on" } else { "" };
        add(&[
            "-device",
            &format!(
                "virtio-mem-pci,id={id},memdev=memory-{id},node={node},block-size={PIECE_BYTES},requested-size=0{prealloc},\
                 addr={slot:x}.{function}{first}"
            ),
        ]);
    }
    add(&["-kernel", &files.kernel.to_string_lossy(), "-initrd", &files.initrd.to_string_lossy()]);
    add(&["-append", &guest_kernel::command_line(settings, "")]);
    list
}

/// A memory backend. No host memory is reserved for parts that can be unplugged.
fn memory(backing: Backing, id: &str, bytes: u64, reserve: bool) -> String {
    let kind = match backing {
        Backing::Anonymous => "ram",
        Backing::Shared => "memfd,share=on",
        Backing::HugePages => "memfd,share=on,hugetlb=on,hugetlbsize=2M",
    };
    format!(
        "memory-backend-{kind},id=memory-{id},size={bytes}B,reserve={}",
        if reserve { "on" } else { "off" }
    )
}

fn comma_escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}
