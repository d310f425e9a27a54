//! Held partitions: no instance uses them, and yet they are not empty. Pages outlive the process that
//! allocated them if it has passed them on: in a pipe, in a socket, in a file in memory. No instance is
//! started in a held partition, and no unplug begins. A thread watches it and sends the host an event when it
//! is empty.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::Duration;

use cgroups::Membership;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use vm_protocol::{Event, FromAgent, PartitionNumber};

use crate::memory;
use crate::port::SendQueue;

const POLL_EVERY: Duration = Duration::from_millis(250);
const STACK_BYTES: usize = 128 << 10;
/// How many holders a message names; further ones are counted.
const NAMED: usize = 3;

/// The partitions that are held, and watched.
pub struct HeldPartitions {
    to_host: SendQueue,
    /// The last instance in each partition.
    last: Mutex<HashMap<PartitionNumber, String>>,
    watched: Mutex<HashSet<PartitionNumber>>,
}

impl HeldPartitions {
    pub fn new(to_host: SendQueue) -> Arc<HeldPartitions> {
        Arc::new(HeldPartitions { to_host, last: Mutex::default(), watched: Mutex::default() })
    }

    /// Records that an instance in a partition has ended.
    pub fn record_user(&self, partition: PartitionNumber, instance: &str) {
        self.last.lock().expect("not poisoned").insert(partition, instance.to_string());
    }

    /// Why the partition is not empty, if it is not. The caller makes sure that no instance uses it. The host
    /// gets an event when it is empty.
    pub fn check(
        self: &Arc<Self>,
        partition: PartitionNumber,
        node: u32,
        patience: Duration,
    ) -> Option<String> {
        let pages = memory::wait_free(node, patience);
        if pages == 0 {
            return None;
        }
        let last = self.last.lock().expect("not poisoned").get(&partition).cloned();
        let left = last.map(|instance| format!(" left by instance {instance}")).unwrap_or_default();
        let why = format!("{pages} pages{left} are in use, {}", holders(node));
        self.watch(partition, node);
        Some(why)
    }

    fn watch(self: &Arc<Self>, partition: PartitionNumber, node: u32) {
        if !self.watched.lock().expect("not poisoned").insert(partition) {
            return;
        }
        let all = Arc::clone(self);
        let watching = move || {
            // Ends when the partition is empty, also because it was unplugged.
            while memory::wait_free(node, Duration::ZERO) > 0 {
                std::thread::sleep(POLL_EVERY);
            }
            all.watched.lock().expect("not poisoned").remove(&partition);
            all.to_host.send(FromAgent::Event(Event::Released { partition }));
        };
        if Builder::new().stack_size(STACK_BYTES).spawn(watching).is_err() {
            self.watched.lock().expect("not poisoned").remove(&partition);
        }
    }
}

/// The processes that hold pages of a node, as far as the kernel shows: those that map them, or else those
/// with an open pipe, socket or file that may contain them.
fn holders(node: u32) -> String {
    let mapping: Vec<_> = processes()
        .into_iter()
        .map(|pid| (pid, memory::mapped_pages(pid, node)))
        .filter(|(_, pages)| *pages > 0)
        .map(|(pid, pages)| format!("{pages} of them mapped by {}", describe(pid)))
        .collect();
    if !mapping.is_empty() {
        return listed(mapping);
    }
    // The same pipe may be open in many processes.
    let mut open = BTreeMap::new();
    for pid in processes() {
        for (name, bytes) in full_descriptors(pid) {
            open.entry(name).or_insert_with(|| (bytes, describe(pid)));
        }
    }
    let named = open
        .into_iter()
        .map(|(name, (bytes, process))| format!("{name} with {} KiB of {process}", bytes >> 10));
    match listed(named.collect()) {
        none if none.is_empty() => {
            "mapped by no process: the kernel has them, or a file in memory".to_string()
        }
        list => format!("mapped by no process; there are {list}"),
    }
}

fn listed(mut all: Vec<String>) -> String {
    let more = all.len().saturating_sub(NAMED);
    all.truncate(NAMED);
    if more > 0 {
        all.push(format!("{more} more"));
    }
    all.join(", ")
}

fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// "process 71 (python3) of a".
fn describe(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let groups = Membership::of(pid).ok();
    let group = groups.as_ref().and_then(Membership::unified).unwrap_or_default();
    let instance = group.rsplit_once("/instances/").map(|(_, name)| format!(" of {name}"));
    format!("process {pid} ({}){}", name.trim(), instance.unwrap_or_default())
}

/// A process's open pipes, sockets and files in memory that have content, with its size.
fn full_descriptors(pid: i32) -> Vec<(String, u64)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let full = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        let (name, bytes) = match target.split_once(':') {
            Some(("pipe", inode)) => (format!("a pipe {inode}"), unread_bytes(pid, number)),
            Some(("socket", inode)) => (format!("a socket {inode}"), unread_bytes(pid, number)),
            _ if is_in_memory(&entry.path()) => {
                let bytes = fs::metadata(entry.path()).map_or(0, |about| about.blocks() * 512);
                (format!("a file {}", target.trim_end_matches(" (deleted)")), bytes)
            }
            _ => return None,
        };
        (bytes > 0).then_some((name, bytes))
    };
    entries.filter_map(full).collect()
}

/// Whether this is a file of a tmpfs or a memfd, by its file system and not by its name.
fn is_in_memory(path: &Path) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    rustix::fs::statfs(path).is_ok_and(|about| about.f_type == TMPFS_MAGIC)
}

/// Unread bytes in another process's pipe or socket.
fn unread_bytes(pid: i32, descriptor: i32) -> u64 {
    let copy = || -> Option<OwnedFd> {
        let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        pidfd_getfd(process, descriptor, PidfdGetfdFlags::empty()).ok()
    };
    let Some(copy) = copy() else { return 0 };
    let mut bytes: libc::c_int = 0;
    // SAFETY: FIONREAD writes an int, which outlives the call.
    let status = unsafe { libc::ioctl(copy.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    if status == 0 { bytes.max(0) as u64 } else { 0 }
}

/// Moves file pages that other processes map out of a node that is to be emptied. On a kernel without HotMem
/// a file's pages come from the node of its first reader, and other processes may map them after that reader
/// has ended.
pub fn move_file_pages(from: u32, to: u32) {
    if memory::of_node(from).file == 0 || !Path::new("/proc/self/numa_maps").exists() {
        return;
    }
    for pid in processes() {
        if memory::mapped_pages(pid, from) > 0 {
            memory::move_pages_of(pid, from, to);
        }
    }
}
