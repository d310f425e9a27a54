//! What the agent passes to the first process of an instance ([`crate::launch`]), as JSON in a memfd, and the
//! reports of that process, one line of JSON each in a pipe.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use serde::{Deserialize, Serialize};
use vm_protocol::PartitionNumber;
use worker_snapshot::{Entry, MappedFile};

/// How an instance is to run. Descriptors are valid in the process that reads this, and only there.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    pub name: String,
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    /// The vCPUs that it may run on; empty: all.
    pub cpus: Vec<u32>,
    pub memory: MemoryBinding,
    /// The pipe for its [`Report`]s.
    pub report: RawFd,
    /// The pipe for the output of Lambda's extensions, which a worker's function may have.
    pub of_extensions: Option<RawFd>,
    /// `cgroup.procs` of its control group.
    pub group: RawFd,
    /// Its user namespace.
    pub users: RawFd,
    pub identity: Identity,
    /// Size limit of its writable layer.
    pub layer_bytes: u64,
    /// The folder that becomes its root; the guest's root disk by default.
    pub root: Option<String>,
    /// Content of `/etc/resolv.conf`, if it has a network.
    pub resolvers: Option<String>,
    /// Bind mounts: source and target.
    pub binds: Vec<(String, String)>,
    /// Without ASLR.
    pub fixed_layout: bool,
    pub beginning: Beginning,
}

impl Plan {
    /// Its host name: the instance's name, as much as a kernel takes.
    pub fn host(&self) -> String {
        self.name.chars().take(63).collect()
    }
}

/// How an instance's program begins.
#[derive(Debug, Serialize, Deserialize)]
pub enum Beginning {
    /// As its command says.
    Command,
    /// The same, with a line to the agent, at which it waits to be taken.
    Taken { line: RawFd },
    /// It becomes the process that was taken, which relies on these files, and had these in /tmp.
    Restored { program: RawFd, pages: RawFd, line: RawFd, files: Vec<MappedFile>, entries: Vec<Entry> },
}

impl Beginning {
    /// The descriptors that it needs, the line last.
    pub fn descriptors(&self) -> Vec<RawFd> {
        match self {
            Beginning::Command => Vec::new(),
            Beginning::Taken { line } => vec![*line],
            Beginning::Restored { program, pages, line, .. } => vec![*program, *pages, *line],
        }
    }
}

/// How an instance's memory is bound to its partition.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum MemoryBinding {
    /// Anywhere: modes `plain` and `static`.
    Anywhere,
    /// These NUMA nodes only.
    Nodes(Vec<u32>),
    /// The HotMem partition of this node; the descriptor is `/dev/hotmem`.
    Hotmem { device: RawFd, node: u32 },
}

/// The users of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The guest's user that is root in the instance's user namespace, and owns its root file system.
    pub owner: u32,
    /// The user in that namespace that it runs as: 0, which owns its root, or another one for a worker's
    /// function, which owns nothing.
    pub user: u32,
}

/// How many users a namespace has, from 0 on.
pub const USERS: u32 = 65536;

impl Identity {
    /// Each partition has users of its own in the guest.
    pub fn of(partition: PartitionNumber, user: u32) -> Identity {
        Identity { owner: USERS * (1 + 2 * partition.0), user }
    }

    /// The user that it runs as, by its number in the guest.
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

/// A report of an instance's first process to the agent.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// The program was started, and these extensions.
    Started(Vec<String>),
    /// It could not be started; why.
    Failed(String),
    /// The program, or this extension, ended with this status of `wait`. Another end may follow.
    Ended { status: i32, extension: Option<String> },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_share_no_users() {
        let mut last = 0;
        for partition in (0..vm_protocol::MAX_PARTITIONS).map(PartitionNumber) {
            let (root, function) = (Identity::of(partition, 0), Identity::of(partition, 2_000_000_007));
            assert!(root.outside() > last && root.outside() == root.owner);
            assert!(function.outside() >= root.owner + USERS);
            assert!(function.map().ends_with(&format!("2000000007 {} 1\n", function.outside())));
            last = function.outside();
        }
    }
}
