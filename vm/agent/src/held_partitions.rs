//! Partitions that nobody uses and that are not empty: what of them is in use, and who has it. Pages outlive the process
//! that made them where it has handed them on: in a pipe, in a socket, in a file in memory. Such a partition is *held*:
//! nobody gets it, no unplug is begun, and somebody is told when it is over.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use vm_protocol::{Event, FromAgent};

use crate::memory;
use crate::port::Outbox;

const LOOK_EVERY: Duration = Duration::from_millis(250);
const STACK_BYTES: usize = 128 << 10;
/// In a message; more are counted.
const NAMED: usize = 3;

/// What is known of such partitions.
pub struct Holds {
    outbox: Outbox,
    /// Who was in a partition last.
    last: Mutex<HashMap<u32, String>>,
    watched: Mutex<HashSet<u32>>,
}

impl Holds {
    pub fn new(outbox: Outbox) -> Arc<Holds> {
        Arc::new(Holds { outbox, last: Mutex::default(), watched: Mutex::default() })
    }

    /// An instance has gone out of a partition.
    pub fn left_by(&self, partition: u32, instance: &str) {
        self.last.lock().expect("not poisoned").insert(partition, instance.to_string());
    }

    /// Why the partition is not empty, if it is not. Whoever asks makes sure that nobody uses it. The host is told when that
    /// is over.
    pub fn look(self: &Arc<Self>, partition: u32, node: u32, patience: Duration) -> Option<String> {
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

    fn watch(self: &Arc<Self>, partition: u32, node: u32) {
        if !self.watched.lock().expect("not poisoned").insert(partition) {
            return;
        }
        let all = Arc::clone(self);
        let watching = move || {
            // Until it is empty or, as it has no memory then, unplugged.
            while memory::wait_free(node, Duration::ZERO) > 0 {
                std::thread::sleep(LOOK_EVERY);
            }
            all.watched.lock().expect("not poisoned").remove(&partition);
            all.outbox.send(FromAgent::Event(Event::Released { partition }));
        };
        if Builder::new().stack_size(STACK_BYTES).spawn(watching).is_err() {
            self.watched.lock().expect("not poisoned").remove(&partition);
        }
    }
}

/// Who has pages of a node, as far as can be known: those who map them; else those who have something open that could be
/// full of them.
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
    let named =
        open.into_iter().map(|(name, (bytes, who))| format!("{name} with {} KiB of {who}", bytes >> 10));
    match listed(named.collect()) {
        none if none.is_empty() => "mapped by nobody: the kernel has them, or a file in memory".to_string(),
        list => format!("mapped by nobody; there are {list}"),
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
    let group = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let instance = group.trim().rsplit_once("/instances/").map(|(_, name)| format!(" of {name}"));
    format!("process {pid} ({}){}", name.trim(), instance.unwrap_or_default())
}

/// What a process has open that can keep pages, with what is in it now.
fn full_descriptors(pid: i32) -> Vec<(String, u64)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let full = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        let (name, bytes) = match target.split_once(':') {
            Some(("pipe", inode)) => (format!("a pipe {inode}"), waiting(pid, number)),
            Some(("socket", inode)) => (format!("a socket {inode}"), waiting(pid, number)),
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

/// A file of a tmpfs or memfd, whatever it is called where this looks from.
fn is_in_memory(path: &Path) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    rustix::fs::statfs(path).is_ok_and(|about| about.f_type == TMPFS_MAGIC)
}

/// Bytes that nobody has read from another process's pipe or socket.
fn waiting(pid: i32, descriptor: i32) -> u64 {
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

/// Moves file pages that others map out of a node that is to be empty: on a kernel without HotMem a file lies where its
/// first reader's memory comes from, and goes on being mapped when that has ended.
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
