//! Snapshots of instances. The agent takes one that waits, keeps its memory, and restores others from it,
//! each in its own sandbox and partition.
//!
//! ```text
//!   spawn, taken      ─► it waits at its line ─► take ─► sealed memory files, in the shared partition
//!   spawn, restored   ─► partition, sandbox, user as ever ─► maps them privately, reads its environment, runs
//! ```
//! Mayfly's kernel places files in memory by who fills them: those of a process without partition lie in the
//! shared partition, or in boot memory once that is full. The agent is such a process. So a restored instance
//! has in its own partition only what it writes, and holds no other partition.
//!
//! The agent traces the process that it takes, which it may as the guest's root. What it reads there is
//! untrusted (`worker_snapshot`). A restored process has no right that a started one lacks.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use vm_protocol::{Beginning, ErrorKind, Layout, Refusal, Spawn, TakeSnapshot, Taken};
use worker_snapshot::{Error, Limits, Snapshot, Waiting};

use crate::begin::Start;
use crate::instance::Instance;
use crate::memory;
use crate::refusal::refusal;

/// How long a process may take from its line to the call in which it waits.
const WAIT: Duration = Duration::from_secs(5);
/// This part of the shared partition stays for files.
const RESERVED: u64 = 8;

/// The snapshots that are kept, by name.
#[derive(Default)]
pub struct Snapshots(Mutex<HashMap<String, Arc<Snapshot>>>);

impl Snapshots {
    /// How an instance of this order begins.
    pub fn start(&self, order: &Spawn, layout: &Layout) -> Result<Start, Refusal> {
        if order.beginning == Beginning::Command {
            return Ok(Start::Command);
        }
        check(layout)?;
        if order.confinement.is_none() {
            let message = format!("instance {}: it is no function", order.instance);
            return Err(refusal(ErrorKind::CannotStart, message));
        }
        let Beginning::Restored { snapshot, timeout_ms } = &order.beginning else { return Ok(Start::Taken) };
        let missing = || refusal(ErrorKind::NoSuchSnapshot, format!("no snapshot {snapshot}"));
        let found = self.lock().get(snapshot).cloned().ok_or_else(missing)?;
        Ok(Start::Restored(found, Duration::from_millis(*timeout_ms)))
    }

    /// Takes an instance that waits, or is about to, and keeps the snapshot.
    pub fn take(&self, order: &TakeSnapshot, instance: &Instance, layout: &Layout) -> Result<Taken, Refusal> {
        check(layout)?;
        instance.until_it_waits(Duration::from_millis(order.timeout_ms))?;
        let room = room(layout.shared_node(), order.most_bytes);
        let bytes = order.most_bytes.min(room);
        let limits = Limits { bytes, own_folder: Some(Path::new("/tmp")), disk: None };
        let process = instance.program()?;
        let taken = worker_snapshot::take_once_it_waits(process, Waiting::AtLine, limits, WAIT);
        let snapshot = taken.map_err(|error| match error {
            Error::Unsupported(why) if bytes < order.most_bytes => {
                let why = format!("{why} (the shared partition has room for {} MiB)", room >> 20);
                refusal(ErrorKind::Unsupported, why)
            }
            Error::Unsupported(why) => refusal(ErrorKind::Unsupported, why),
            error @ Error::System(..) => refusal(ErrorKind::Failed, error.to_string()),
        })?;
        let taken = Taken {
            memory_bytes: snapshot.bytes(),
            kept_bytes: snapshot.size(),
            mappings: snapshot.mappings() as u64,
            why_copied: snapshot.why_copied().map(str::to_string),
        };
        self.lock().insert(order.snapshot.clone(), Arc::new(snapshot));
        Ok(taken)
    }

    /// Forgets a snapshot.
    pub fn forget(&self, name: &str) {
        self.lock().remove(name);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Snapshot>>> {
        self.0.lock().expect("not poisoned")
    }
}

/// Whether snapshots lie outside the instances' partitions.
fn check(layout: &Layout) -> Result<(), Refusal> {
    if layout.mode.is_kernels() && layout.shared_bytes > 0 {
        return Ok(());
    }
    let what = format!("an instance of a VM in mode {} without a shared partition", layout.mode.name());
    Err(refusal(ErrorKind::Unsupported, what))
}

/// How much of a snapshot the shared partition has room for, where page cache that can be read again goes if
/// there is too little.
fn room(node: u32, wanted: u64) -> u64 {
    let free = || {
        let memory = memory::of_node(node);
        memory.free.saturating_sub(memory.total / RESERVED)
    };
    if free() < wanted {
        let _ = fs::write("/proc/sys/vm/drop_caches", "1");
    }
    free()
}

#[cfg(test)]
mod tests {
    use vm_protocol::{Confinement, Limits as OfFunctions, Mode, PartitionNumber};

    use super::*;

    fn layout(mode: Mode, shared_bytes: u64) -> Layout {
        Layout { mode, partition_bytes: vec![128 << 20], shared_bytes }
    }

    fn order(beginning: Beginning, is_function: bool) -> Spawn {
        let confinement = is_function.then(|| {
            let limits = OfFunctions { memory_bytes: 1, file_bytes: 1, cpu_weight: 1 };
            Confinement {
                user: 1,
                port: 9001,
                connections: 1,
                network: None,
                root: None,
                binds: Vec::new(),
                fixed_layout: false,
                limits,
            }
        });
        Spawn {
            instance: "i".to_string(),
            partition: Some(PartitionNumber(0)),
            more: Vec::new(),
            argv: vec!["true".to_string()],
            env: Default::default(),
            cwd: None,
            cpus: Vec::new(),
            vcpus_milli: None,
            waits_for_reader: false,
            beginning,
            confinement: confinement.map(Box::new),
        }
    }

    fn refused(order: Spawn, layout: &Layout) -> Option<ErrorKind> {
        Snapshots::default().start(&order, layout).err().map(|refusal| refusal.kind)
    }

    #[test]
    fn snapshots_need_a_shared_partition_of_the_kernels() {
        let (taken, command) = (|| Beginning::Taken, || Beginning::Command);
        for mode in [Mode::Nodes, Mode::Plain, Mode::Static] {
            let layout = layout(mode, 128 << 20);
            assert_eq!(refused(order(taken(), true), &layout), Some(ErrorKind::Unsupported), "{mode:?}");
            assert_eq!(refused(order(command(), true), &layout), None, "{mode:?}");
        }
        assert_eq!(refused(order(taken(), true), &layout(Mode::Hotmem, 0)), Some(ErrorKind::Unsupported));
        assert_eq!(refused(order(taken(), true), &layout(Mode::Hotmem, 1)), None);
        assert_eq!(refused(order(taken(), true), &layout(Mode::Ranges, 1)), None);
    }

    #[test]
    fn only_functions_are_restored_and_from_snapshots_that_are_there() {
        let restored = || Beginning::Restored { snapshot: "s".to_string(), timeout_ms: 1 };
        let layout = layout(Mode::Hotmem, 1);
        assert_eq!(refused(order(restored(), true), &layout), Some(ErrorKind::NoSuchSnapshot));
        assert_eq!(refused(order(restored(), false), &layout), Some(ErrorKind::CannotStart));
    }
}
