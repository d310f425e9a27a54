//! What the agent hands to the first process of an instance ([`crate::launch`]), and what that reports back: JSON in a file
//! in memory one way, a line of JSON each in a pipe the other way.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use serde::{Deserialize, Serialize};

/// How an instance is to run. Descriptors are open in the process that reads this, and only there.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    pub name: String,
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    /// The vCPUs it may run on; all if there are none.
    pub cpus: Vec<u32>,
    pub source: Source,
    /// Where the instance writes its [`Report`]s.
    pub report: RawFd,
    /// `cgroup.procs` of its group.
    pub group: RawFd,
    /// Its user namespace.
    pub users: RawFd,
    pub identity: Identity,
    /// The most that its writable layer takes.
    pub layer_bytes: u64,
    /// The folder that is its root, if that is not the guest's disk.
    pub root: Option<String>,
    /// What `/etc/resolv.conf` says, if it has a way out.
    pub resolvers: Option<String>,
    /// Whether it is a worker's function, which may have Lambda's extensions.
    pub is_function: bool,
    /// Folders and files, and where it sees them.
    pub binds: Vec<(String, String)>,
    /// Without ASLR.
    pub fixed_layout: bool,
}

/// Where an instance's memory comes from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Source {
    /// Anywhere: modes `plain` and `static`.
    Anywhere,
    /// These NUMA nodes only.
    Nodes(Vec<u32>),
    /// The HotMem partition that is this node; the descriptor is `/dev/hotmem`.
    Hotmem { device: RawFd, node: u32 },
}

/// Who an instance is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The guest's user that is root inside, and owns the instance's own root file system.
    pub owner: u32,
    /// The user inside that it runs as: 0, which owns its root, or a worker's function, which owns nothing.
    pub user: u32,
}

/// Users inside, counted from 0, that a namespace has.
pub const USERS: u32 = 65536;

impl Identity {
    /// In the guest, each partition has users of its own.
    pub fn of(partition: u32, user: u32) -> Identity {
        Identity { owner: USERS * (1 + 2 * partition), user }
    }

    /// The guest's user that it runs as.
    pub fn outside(self) -> u32 {
        if self.user < USERS { self.owner + self.user } else { self.owner + USERS }
    }

    /// For `uid_map` and `gid_map`.
    pub fn map(self) -> String {
        let Identity { owner, user } = self;
        let beyond = if user < USERS { String::new() } else { format!("{user} {} 1\n", owner + USERS) };
        format!("0 {owner} {USERS}\n{beyond}")
    }
}

/// What an instance's first process tells the agent.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// The program runs, and these extensions.
    Started(Vec<String>),
    /// It could not be started, and why.
    Failed(String),
    /// It has ended with this status of `wait`, or an extension has.
    Ended { status: i32, extension: Option<String> },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_partitions_have_a_user_in_common() {
        let mut last = 0;
        for partition in 0..vm_protocol::MAX_PARTITIONS {
            let (root, function) = (Identity::of(partition, 0), Identity::of(partition, 2_000_000_007));
            assert!(root.outside() > last && root.outside() == root.owner);
            assert!(function.outside() >= root.owner + USERS);
            assert!(function.map().ends_with(&format!("2000000007 {} 1\n", function.outside())));
            last = function.outside();
        }
    }
}
