//! The kernel's memory statistics, by node and of the whole guest; and how a process is bound to a node.
//!
//! In mode `nodes` a process is bound to its partition's node by a memory policy, which fork, clone and exec
//! inherit. `MPOL_F_STATIC_NODES` is required: without it the kernel remaps the policy to another node while
//! a partition is plugged or unplugged. In mode `hotmem` the process requests the partition from the kernel
//! (HotMem §4, "The HotMem interface"), which binds the address space.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use vm_protocol::Merged;

const NODES: &str = "/sys/devices/system/node";
const UPM: &str = "/sys/kernel/mm/upm";
const PAGE_BYTES: u64 = 4096;

/// Memory of one node, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeMemory {
    /// Online memory.
    pub total: u64,
    /// Free memory.
    pub free: u64,
    /// Anonymous memory of processes.
    pub anonymous: u64,
    /// Page cache and tmpfs.
    pub file: u64,
}

/// Memory of a node; zero if there is no such node.
pub fn of_node(node: u32) -> NodeMemory {
    let text = fs::read_to_string(format!("{NODES}/node{node}/meminfo")).unwrap_or_default();
    // Lines like `Node 3 AnonPages:   1024 kB`.
    let value = |name: &str| {
        text.lines()
            .filter_map(|line| line.split_whitespace().skip(2).collect::<Vec<_>>().try_into().ok())
            .find_map(|[key, number, _unit]: [&str; 3]| {
                (key.trim_end_matches(':') == name).then(|| number.parse::<u64>().ok())?
            })
    };
    let bytes = |name| value(name).unwrap_or(0) * 1024;
    NodeMemory {
        total: bytes("MemTotal"),
        free: bytes("MemFree"),
        anonymous: bytes("AnonPages"),
        file: bytes("FilePages"),
    }
}

/// Waits until no anonymous memory, page cache or tmpfs is left on a node; returns how many pages are left.
pub fn wait_unused(node: u32, patience: Duration) -> u64 {
    let begin = Instant::now();
    loop {
        let now = of_node(node);
        let left = (now.anonymous + now.file) / PAGE_BYTES;
        if left == 0 || begin.elapsed() >= patience {
            return left;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Between two rounds in which all CPUs flush their batches of pages.
const DRAIN_EVERY: Duration = Duration::from_millis(50);
/// How many rounds before the pages left count as held. Each round waits for every CPU, so on a busy machine
/// rounds take longer, and the kernel's background work for ended processes gets its turn.
const DRAINS: u32 = 4;

/// Waits until every page of a node is free, and returns how many are not. Unlike [`wait_unused`] this counts
/// pages that no process maps and no file has: in a pipe, in a socket.
pub fn wait_free(node: u32, patience: Duration) -> u64 {
    let (mut drains, mut drained) = (0, None::<Instant>);
    let settle = || {
        // A freed page in a CPU's batch counts as used until the CPU flushes it. migrate_pages first makes
        // all CPUs flush theirs; from node 0 to node 0 it moves nothing. Repeated, because a process that has
        // just ended may leave such pages after the first round.
        if drained.is_none_or(|last| last.elapsed() >= DRAIN_EVERY) {
            move_pages_of(0, 0, 0);
            drained = Some(Instant::now());
            drains += 1;
        }
        // The kernel keeps per-CPU parts of its counters; this makes it sum them up.
        let _ = fs::read("/proc/sys/vm/stat_refresh");
        drains >= DRAINS
    };
    let used = || used_pages_in(&fs::read_to_string("/proc/zoneinfo").unwrap_or_default(), node);
    until_none(patience, used, settle)
}

/// Polls `count` until it is 0 or `patience` has passed. A count only stands once `settle` has returned true,
/// which can take longer than `patience` on a machine with few CPUs.
fn until_none(patience: Duration, mut count: impl FnMut() -> u64, mut settle: impl FnMut() -> bool) -> u64 {
    let begin = Instant::now();
    let mut settled = false;
    loop {
        let left = count();
        if left == 0 || settled && begin.elapsed() >= patience {
            return left;
        }
        settled = settle();
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Pages that are neither in the node's free lists nor in those of the CPUs.
fn used_pages_in(zoneinfo: &str, node: u32) -> u64 {
    let heading = format!("Node {node}, zone");
    let (mut here, mut used) = (false, 0i64);
    for line in zoneinfo.lines() {
        if line.starts_with("Node ") {
            here = line.starts_with(&heading);
        }
        let Some((name, number)) = line.trim().rsplit_once(' ').filter(|_| here) else { continue };
        let number: i64 = number.parse().unwrap_or(0);
        match name.trim() {
            "managed" => used += number,
            "pages free" | "count:" => used -= number,
            _ => {}
        }
    }
    used.max(0) as u64
}

/// How many pages of a node a process maps.
pub fn mapped_pages(pid: i32, node: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/numa_maps")).unwrap_or_default();
    let wanted = format!("N{node}=");
    text.split_whitespace().filter_map(|word| word.strip_prefix(&wanted)?.parse::<u64>().ok()).sum()
}

/// Moves the pages that a process maps on one node to another.
pub fn move_pages_of(pid: i32, from: u32, to: u32) {
    let mask = |node: u32| {
        let mut mask = [0u64; 4];
        mask[node as usize / 64] |= 1 << (node % 64);
        mask
    };
    let (from, to) = (mask(from), mask(to));
    // SAFETY: both masks have 256 bits, and the kernel reads one fewer than the number given. What cannot be
    // moved stays.
    unsafe { libc::syscall(libc::SYS_migrate_pages, pid, 257, from.as_ptr(), to.as_ptr()) };
}

/// The nodes that the kernel shows, in order.
pub fn nodes() -> Vec<u32> {
    let mut nodes: Vec<u32> = fs::read_dir(NODES)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("node")?.parse().ok())
        .collect();
    nodes.sort_unstable();
    nodes
}

/// Plugged memory on a node that also has boot memory: the size of its zone for movable pages.
pub fn movable_bytes(node: u32) -> u64 {
    movable_bytes_in(&fs::read_to_string("/proc/zoneinfo").unwrap_or_default(), node)
}

fn movable_bytes_in(zoneinfo: &str, node: u32) -> u64 {
    let heading = format!("Node {node}, zone");
    let mut lines = zoneinfo.lines();
    lines.find(|line| line.starts_with(&heading) && line.ends_with(" Movable"));
    lines
        .take_while(|line| !line.starts_with("Node "))
        .find_map(|line| line.trim().strip_prefix("managed")?.trim().parse::<u64>().ok())
        .map_or(0, |pages| pages * PAGE_BYTES)
}

/// Pages merged by the kernel's UPM; zero on a kernel without it.
pub fn merged() -> Merged {
    let bytes = |name: &str| {
        let text = fs::read_to_string(format!("{UPM}/{name}")).unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or(0) * PAGE_BYTES
    };
    Merged { bytes: bytes("stable_pages"), advised_bytes: bytes("entries") }
}

/// `/proc/meminfo`, in bytes. Its counters without a unit (huge pages) are counts.
pub fn meminfo_bytes() -> BTreeMap<String, u64> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let entry = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let mut words = rest.split_whitespace();
        let number: u64 = words.next()?.parse().ok()?;
        Some((name.to_string(), if words.next() == Some("kB") { number * 1024 } else { number }))
    };
    text.lines().filter_map(entry).collect()
}

/// `/proc/vmstat`.
pub fn vmstat() -> BTreeMap<String, u64> {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let entry = |line: &str| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_string(), number.trim().parse().ok()?))
    };
    text.lines().filter_map(entry).collect()
}

/// Binds this thread, and the processes that it starts, to memory of these nodes.
pub fn bind_to_node(nodes: &[u32]) -> io::Result<()> {
    let mut mask = [0u64; 4];
    nodes.iter().for_each(|&node| mask[node as usize / 64] |= 1 << (node % 64));
    let mode = libc::MPOL_BIND | libc::MPOL_F_STATIC_NODES;
    // SAFETY: the mask has 256 bits, and the kernel reads one fewer than the number given; node numbers end
    // at 128.
    let status = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), 257) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `struct hotmem_assign` of include/uapi/linux/hotmem.h.
#[repr(C)]
struct HotmemAssign {
    flags: u32,
    node: i32,
    timeout_ns: u64,
}

const HOTMEM_NONBLOCK: u32 = 1;
const HOTMEM_ASSIGN: libc::c_ulong = 0xc010_b901;

/// Binds this address space, and those forked from it, to this HotMem partition.
pub fn assign(device: impl AsFd, node: u32) -> io::Result<()> {
    // Not waiting: the agent gives a partition to one instance only, so it is free.
    let mut request = HotmemAssign { flags: HOTMEM_NONBLOCK, node: node as i32, timeout_ns: 0 };
    // SAFETY: the structure is the one this request number takes, and it lives during the call.
    let status = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), HOTMEM_ASSIGN, &raw mut request) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_before_settling_are_not_pages_in_use() {
        // Seven pages on their way from a CPU's list to the node's, which takes three rounds, and no
        // patience.
        let rounds = std::cell::Cell::new(0);
        let count = || if rounds.get() < 3 { 7 } else { 0 };
        let settle = || {
            rounds.set(rounds.get() + 1);
            rounds.get() == 3
        };
        assert_eq!(until_none(Duration::ZERO, count, settle), 0);
        assert_eq!(until_none(Duration::ZERO, || 7, || true), 7);
    }

    #[test]
    fn counts_pages_that_are_in_no_free_list() {
        let zone = |node, free, count| {
            format!(
                "Node {node}, zone  Movable\n  per-node stats\n      nr_inactive_anon 9\n  pages free     {free}\n        \
                 managed  65536\n        protection: (0, 0)\n      nr_free_pages {free}\n  pagesets\n    cpu: 0\n              \
                 count:    {count}\n              high:     63\n    cpu: 1\n              count:    6\n"
            )
        };
        let zoneinfo = zone(2, 65500, 30) + &zone(20, 1, 0) + &zone(3, 64000, 0);
        assert_eq!(used_pages_in(&zoneinfo, 2), 0);
        assert_eq!(used_pages_in(&zoneinfo, 3), 1530);
        assert_eq!(used_pages_in(&zoneinfo, 4), 0);
    }

    #[test]
    fn finds_the_movable_zone_of_the_right_node() {
        let zoneinfo = "Node 0, zone    DMA32\n  pages free 7\n        managed  100\nNode 0, zone  Movable\n  \
                        pages free 3\n        managed  65536\nNode 1, zone  Movable\n        managed  5\n";
        assert_eq!(movable_bytes_in(zoneinfo, 0), 65536 * 4096);
        assert_eq!(movable_bytes_in(zoneinfo, 1), 5 * 4096);
        assert_eq!(movable_bytes_in(zoneinfo, 2), 0);
        assert_eq!(movable_bytes_in("Node 0, zone  Movable\nNode 1, zone  Normal\n managed 9\n", 0), 0);
    }
}
