//! Partitions in the guest: confirms plugs, empties partitions and confirms unplugs, by polling the memory of
//! their nodes.
//!
//! QEMU changes a virtio-mem device's size when the guest has *requested* blocks or returned them. Only the
//! guest knows when the kernel has brought them online, or has finished with them.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use vm_protocol::{Answer, ErrorKind, Layout, Mode, PartitionNumber, Refusal};

use crate::held_partitions::move_file_pages;
use crate::instances::Instances;
use crate::memory::{self, bind_to_node};
use crate::memory_blocks;
use crate::refusal::refusal;

/// Short enough to add little to measured latencies, long enough to use little CPU.
const POLL_EVERY: Duration = Duration::from_millis(2);
/// How long to wait for an ended instance's mounts to be torn down, and for page cache to be dropped.
const TEARDOWN_PATIENCE: Duration = Duration::from_millis(200);
const EMPTY_PATIENCE: Duration = Duration::from_secs(1);

/// The partitions that are closed to new instances.
#[derive(Default)]
pub struct Partitions {
    closed: Mutex<HashSet<PartitionNumber>>,
}

impl Partitions {
    /// Waits until `bytes` are online, and opens the partition.
    pub fn confirm_plug(
        &self,
        layout: &Layout,
        partition: Option<PartitionNumber>,
        bytes: u64,
        patience: Duration,
        instances: &Instances,
    ) -> Result<Answer, Refusal> {
        let begin = Instant::now();
        if layout.mode == Mode::Nodes
            && let Some(partition) = partition
        {
            memory_blocks::bring_online(layout.node_of(partition));
        }
        let mut answer = wait_for(layout, partition, patience, "plugged", |online| online >= bytes)?;
        if layout.mode == Mode::Nodes {
            let node = partition.map_or(layout.shared_node(), |partition| layout.node_of(partition));
            wait_until_bindable(layout, node, patience.saturating_sub(begin.elapsed()))?;
        }
        if let Some(partition) = partition {
            self.closed.lock().expect("not poisoned").remove(&partition);
            if let Answer::Confirmed { held, .. } = &mut answer {
                *held = why_held(layout, partition, instances);
            }
        } else if layout.mode == Mode::Nodes {
            preload(layout.shared_node());
        }
        Ok(answer)
    }

    /// Waits until at most `bytes` are online.
    pub fn confirm_unplug(
        &self,
        layout: &Layout,
        partition: Option<PartitionNumber>,
        bytes: u64,
        patience: Duration,
    ) -> Result<Answer, Refusal> {
        wait_for(layout, partition, patience, "unplugged", |online| online <= bytes)
    }

    /// Closes a partition and empties it of page cache; refuses if an instance uses it. In mode `nodes` this
    /// takes its memory offline, too.
    pub fn prepare(
        &self,
        layout: &Layout,
        partition: PartitionNumber,
        instances: &Instances,
    ) -> Result<Answer, Refusal> {
        // Closes first, so that no instance can be started after the check.
        self.closed.lock().expect("not poisoned").insert(partition);
        let outcome = match instances.user_of(partition) {
            Some(user) => {
                Err(refusal(ErrorKind::Busy, format!("partition {partition} is used by instance {user}")))
            }
            None if layout.mode.has_nodes() => empty(layout, partition, instances),
            None => Ok(0),
        };
        match outcome {
            // Mayfly's kernel does this in the driver.
            Ok(_) if layout.mode == Mode::Nodes => memory_blocks::take_offline(layout.node_of(partition)),
            Ok(_) => {}
            Err(_) => self.open(partition),
        }
        outcome.map(|dropped_pages| Answer::Prepared { dropped_pages })
    }

    /// Opens a partition to new instances again.
    pub fn open(&self, partition: PartitionNumber) {
        self.closed.lock().expect("not poisoned").remove(&partition);
    }

    /// Fails unless an instance can be started in the partition.
    pub fn check_open(
        &self,
        layout: &Layout,
        partition: PartitionNumber,
        instances: &Instances,
    ) -> Result<(), Refusal> {
        if partition.0 >= layout.partitions() {
            let message =
                format!("partition {partition}: this VM has {}, numbered from 0", layout.partitions());
            return Err(refusal(ErrorKind::NotPlugged, message));
        }
        if self.closed.lock().expect("not poisoned").contains(&partition) {
            return Err(refusal(ErrorKind::Busy, format!("partition {partition} is being unplugged")));
        }
        if layout.mode.has_nodes() {
            let online = memory::of_node(layout.node_of(partition)).total;
            let bytes = layout.bytes_of(partition);
            if online < bytes {
                let message = format!("partition {partition}: {online} of {bytes} bytes are plugged");
                return Err(refusal(ErrorKind::NotPlugged, message));
            }
            let node = layout.node_of(partition);
            if let Some(why) = instances.held.check(partition, node, EMPTY_PATIENCE) {
                return Err(refusal(ErrorKind::Held, why));
            }
        }
        Ok(())
    }
}

fn online_bytes(layout: &Layout, partition: Option<PartitionNumber>) -> u64 {
    match (layout.mode, partition) {
        (mode, Some(partition)) if mode.has_nodes() => memory::of_node(layout.node_of(partition)).total,
        (mode, None) if mode.has_nodes() => memory::of_node(layout.shared_node()).total,
        _ => memory::movable_bytes(0),
    }
}

fn wait_for(
    layout: &Layout,
    partition: Option<PartitionNumber>,
    patience: Duration,
    what: &str,
    enough: impl Fn(u64) -> bool,
) -> Result<Answer, Refusal> {
    let begin = Instant::now();
    loop {
        let online_bytes = online_bytes(layout, partition);
        if enough(online_bytes) {
            let waited_ns = begin.elapsed().as_nanos() as u64;
            return Ok(Answer::Confirmed { online_bytes, waited_ns, held: None });
        }
        if begin.elapsed() >= patience {
            let which = partition
                .map_or("the shared memory".to_string(), |partition| format!("partition {partition}"));
            let message = format!(
                "{which}: not {what} after {} ms; {online_bytes} bytes are online",
                patience.as_millis()
            );
            return Err(refusal(ErrorKind::TimedOut, message));
        }
        std::thread::sleep(POLL_EVERY);
    }
}

/// Waits until the kernel accepts the node in memory policies: it updates cpusets for new nodes in the
/// background.
fn wait_until_bindable(layout: &Layout, node: u32, patience: Duration) -> Result<(), Refusal> {
    let begin = Instant::now();
    while let Err(error) = bind_to_node(&[node]) {
        if begin.elapsed() >= patience {
            return Err(refusal(
                ErrorKind::TimedOut,
                format!("node {node} is online, but cannot be bound to: {error}"),
            ));
        }
        std::thread::sleep(POLL_EVERY);
    }
    // Restores this thread's policy.
    bind_to_node(&[0, layout.shared_node()])
        .map_err(|error| refusal(ErrorKind::Failed, format!("memory policy: {error}")))
}

/// Empties an unused partition, and returns how many pages were left in it. One that cannot be emptied is
/// held.
///
/// What can be left is page cache that the last instance read: another instance may still map it, or it is
/// charged to a control group whose teardown the kernel has not finished.
fn empty(layout: &Layout, partition: PartitionNumber, instances: &Instances) -> Result<u64, Refusal> {
    let node = layout.node_of(partition);
    let first = memory::wait_unused(node, Duration::ZERO);
    // Usually only the teardown of mounts is late.
    if memory::wait_unused(node, TEARDOWN_PATIENCE) > 0 {
        if layout.mode == Mode::Nodes {
            move_file_pages(node, layout.shared_node());
        }
        let _ = fs::write("/proc/sys/vm/drop_caches", "1");
    }
    match instances.held.check(partition, node, EMPTY_PATIENCE) {
        None => Ok(first),
        Some(why) => Err(refusal(ErrorKind::Held, why)),
    }
}

/// Why an unused partition is not empty, if it is not.
fn why_held(layout: &Layout, partition: PartitionNumber, instances: &Instances) -> Option<String> {
    if !layout.mode.has_nodes() || instances.user_of(partition).is_some() {
        return None;
    }
    instances.held.check(partition, layout.node_of(partition), Duration::ZERO)
}

/// Reads Python and the libraries into the shared partition (HotMem §4: it "is pre-populated at boot time").
/// On a kernel without HotMem, page cache lies on the node of its first reader, so no instance should be the
/// first. Files that do not fit are read later by the instances that need them.
pub fn preload(shared_node: u32) {
    // In a thread of its own, because the memory policy is the thread's.
    let reading = std::thread::spawn(move || {
        if bind_to_node(&[shared_node]).is_ok() {
            PRELOADED.iter().for_each(|folder| read_below(folder.as_ref(), shared_node));
        }
    });
    let _ = reading.join();
}

const PRELOADED: [&str; 5] = [
    "/usr/bin/python3.11",
    "/usr/bin/dash",
    "/usr/bin/bash",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/python3.11",
];

/// Files that functions seldom read, and that make up most of these folders: Perl's, tables of character
/// sets, static libraries, and Python sources that exist compiled.
fn is_seldom_read(path: &Path) -> bool {
    let named =
        |names: &[&str], part: Option<&std::ffi::OsStr>| names.iter().any(|name| part == Some(name.as_ref()));
    named(&["perl", "perl-base", "gconv"], path.file_name()) || named(&["a", "py"], path.extension())
}

fn read_below(path: &Path, node: u32) {
    let Ok(about) = fs::symlink_metadata(path) else { return };
    if is_seldom_read(path) {
        return;
    }
    if about.is_dir() {
        fs::read_dir(path).into_iter().flatten().flatten().for_each(|entry| read_below(&entry.path(), node));
        return;
    }
    // A quarter stays free for files that instances read.
    let memory = memory::of_node(node);
    if about.is_file()
        && memory.free > about.len() + memory.total / 4
        && let Ok(mut file) = fs::File::open(path)
    {
        let _ = std::io::copy(&mut file, &mut std::io::sink());
    }
}
