//! What the kernel says of memory: by node, of the machine, and its counters.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use vm_protocol::Merged;

const NODES: &str = "/sys/devices/system/node";
const UPM: &str = "/sys/kernel/mm/upm";
const PAGE_BYTES: u64 = 4096;

/// Memory of one node, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeMemory {
    /// What is online.
    pub total: u64,
    /// What nobody uses.
    pub free: u64,
    /// Anonymous memory of processes.
    pub anonymous: u64,
    /// Page cache and tmpfs.
    pub file: u64,
}

/// A node that is not there has no memory.
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

/// Waits until no process's memory, page cache or tmpfs is left on a node; returns how many pages are.
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

/// Plugged memory on a node that also has boot memory: what its zone for movable pages manages.
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

/// What the kernel's UPM holds; nothing on a kernel without.
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

#[cfg(test)]
mod tests {
    use super::*;

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
