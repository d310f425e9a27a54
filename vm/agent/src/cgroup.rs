//! Control groups: one for the agent, which has priority, and one for each instance.
//!
//! An instance's group reports the end of its last process, kills all processes at once, however fast they
//! fork, and counts kills by the out-of-memory killer.

use std::time::Duration;

use cgroups::{Error, Group, Limits, PERIOD_US, Share};

const ROOT: &str = "/sys/fs/cgroup";
const CONTROLLERS: &str = "+cpu +memory +pids";

/// More than a function needs, and few enough that the guest does not run out of process numbers.
const MOST_PROCESSES: u64 = 1024;

/// Limit for page tables and other kernel memory of an instance, which lie outside its partition.
const KERNEL_MEMORY_BYTES: u64 = 32 << 20;

/// How long killed processes may take to end: the kernel frees their memory in that time.
pub const KILL_PATIENCE: Duration = Duration::from_secs(60);

fn instances() -> Group {
    Group::two(ROOT).child("instances")
}

/// Makes the groups, moves this process into the agent's, and kills the instances that a former agent left.
pub fn set_up() -> Result<(), Error> {
    let (root, instances) = (Group::two(ROOT), instances());
    let agent = root.child("agent");
    agent.create()?;
    instances.create()?;
    root.pass_controllers(CONTROLLERS)?;
    instances.pass_controllers(CONTROLLERS)?;
    agent.add(0)?;
    // Busy instances must not delay the agent's answers to the host.
    agent.set_share(Share { part: 100, whole: 1 })?;
    for left in instances.children() {
        left.kill()?;
        left.wait_empty(KILL_PATIENCE)?;
        left.remove_within(KILL_PATIENCE)?;
    }
    Ok(())
}

/// Makes an instance's group with limits: for processes, for memory if the instance has a partition, and for
/// CPU time, in thousandths of a vCPU. When CPUs are short, groups share them by weight (the same for all by
/// default), however many processes each has.
pub fn create(
    name: &str,
    memory_bytes: Option<u64>,
    kernel_memory_apart: bool,
    vcpus_milli: Option<u32>,
    cpu_weight: Option<u32>,
) -> Result<Group, Error> {
    let group = instances().child(name);
    group.create_new()?;
    let apart = if kernel_memory_apart { KERNEL_MEMORY_BYTES } else { 0 };
    group.limit(&Limits {
        memory_bytes: memory_bytes.map(|bytes| bytes + apart),
        // On overflow the kernel kills all processes of this instance, and of no other (HotMem §4).
        ends_as_one: true,
        processes: Some(MOST_PROCESSES),
        share: cpu_weight.map(|weight| Share { part: weight.into(), whole: 100 }),
        quota_us: vcpus_milli.map(|milli| u64::from(milli) * PERIOD_US / 1000),
        ..Limits::default()
    })?;
    Ok(group)
}
