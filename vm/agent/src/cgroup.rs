//! Control groups: one for the agent, which has priority, and one for each instance.
//!
//! An instance's group reports the end of its last process, kills all processes at once, however fast they
//! fork, and counts kills by the out-of-memory killer.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

const ROOT: &str = "/sys/fs/cgroup";
const INSTANCES: &str = "/sys/fs/cgroup/instances";

/// More than a function needs, and few enough that the guest does not run out of process numbers.
const MOST_PROCESSES: &str = "1024";

/// Limit for page tables and other kernel memory of an instance, which lie outside its partition.
const KERNEL_MEMORY_BYTES: u64 = 32 << 20;

/// The period of an instance's CPU quota.
const CPU_PERIOD_US: u64 = 100_000;

/// Makes the groups, moves this process into the agent's, and kills the instances that a former agent left.
pub fn set_up() -> io::Result<()> {
    fs::create_dir_all(format!("{ROOT}/agent"))?;
    fs::create_dir_all(INSTANCES)?;
    fs::write(format!("{ROOT}/cgroup.subtree_control"), "+cpu +memory +pids")?;
    fs::write(format!("{INSTANCES}/cgroup.subtree_control"), "+cpu +memory +pids")?;
    fs::write(format!("{ROOT}/agent/cgroup.procs"), "0")?;
    // Busy instances must not delay the agent's answers to the host.
    fs::write(format!("{ROOT}/agent/cpu.weight"), "10000")?;
    for entry in fs::read_dir(INSTANCES)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let left = Group { path: entry.path() };
            left.kill()?;
            left.wait_empty(Duration::from_secs(60))?;
            left.remove()?;
        }
    }
    Ok(())
}

/// One instance's group.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
}

impl Group {
    /// Makes a group with limits: for processes, for memory if the instance has a partition, and for CPU
    /// time, in thousandths of a vCPU. When CPUs are short, groups share them by weight (the same for all by
    /// default), however many processes each has.
    pub fn create(
        name: &str,
        memory_bytes: Option<u64>,
        kernel_memory_apart: bool,
        vcpus_milli: Option<u32>,
        cpu_weight: Option<u32>,
    ) -> io::Result<Group> {
        let group = Group { path: Path::new(INSTANCES).join(name) };
        fs::create_dir(&group.path)?;
        group.set("pids.max", MOST_PROCESSES)?;
        // On overflow the kernel kills all processes of this instance, and of no other (HotMem §4).
        group.set("memory.oom.group", "1")?;
        if let Some(bytes) = memory_bytes {
            let apart = if kernel_memory_apart { KERNEL_MEMORY_BYTES } else { 0 };
            group.set("memory.max", &(bytes + apart).to_string())?;
        }
        if let Some(milli) = vcpus_milli {
            group.set("cpu.max", &format!("{} {CPU_PERIOD_US}", u64::from(milli) * CPU_PERIOD_US / 1000))?;
        }
        if let Some(weight) = cpu_weight {
            group.set("cpu.weight", &weight.clamp(1, 10_000).to_string())?;
        }
        Ok(group)
    }

    /// Freezes all its processes, or thaws them. Frozen processes can be killed.
    pub fn freeze(&self, frozen: bool) -> io::Result<()> {
        self.set("cgroup.freeze", if frozen { "1" } else { "0" })
    }

    /// The file into which a new process writes itself.
    pub fn procs(&self) -> io::Result<File> {
        File::options().write(true).open(self.path.join("cgroup.procs"))
    }

    /// Its current processes.
    pub fn processes(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Sends SIGKILL to all processes, including those that are just being forked.
    pub fn kill(&self) -> io::Result<()> {
        self.set("cgroup.kill", "1")
    }

    /// Waits until no process is left.
    pub fn wait_empty(&self, patience: Duration) -> io::Result<()> {
        let begin = Instant::now();
        loop {
            // Opened before it is read: a change in between is then reported by poll.
            let events = File::open(self.path.join("cgroup.events"))?;
            if io::read_to_string(&events)?.lines().any(|line| line == "populated 0") {
                return Ok(());
            }
            if begin.elapsed() > patience {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("{}: still has processes", self.path.display()),
                ));
            }
            let tenth = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let _ = poll(&mut [PollFd::from_borrowed_fd(events.as_fd(), PollFlags::PRI)], Some(&tenth));
        }
    }

    /// How often the kernel killed one of its processes because its memory ran out, by its limit or by its
    /// node.
    pub fn memory_kills(&self) -> u64 {
        let text = fs::read_to_string(self.path.join("memory.events")).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or(0)
    }

    /// Reclaims the page cache that is charged to the group. The group must have no processes.
    pub fn reclaim(&self) {
        // Pages that other processes have just used need more than one pass.
        for _ in 0..8 {
            let text = fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
            let file = text.lines().find_map(|line| line.strip_prefix("file ")?.parse::<u64>().ok());
            if file.is_none_or(|bytes| bytes == 0) {
                return;
            }
            // More than the group has, which the kernel reports as an error: reclaim everything.
            let _ = self.set("memory.reclaim", "1G");
        }
    }

    /// Removes the empty group.
    pub fn remove(&self) -> io::Result<()> {
        let begin = Instant::now();
        loop {
            match fs::remove_dir(&self.path) {
                // The last process has ended, but the kernel has not finished its teardown.
                Err(error)
                    if error.kind() == io::ErrorKind::ResourceBusy
                        && begin.elapsed() < Duration::from_secs(60) =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                outcome => return outcome,
            }
        }
    }

    fn set(&self, name: &str, value: &str) -> io::Result<()> {
        fs::write(self.path.join(name), value)
    }
}
