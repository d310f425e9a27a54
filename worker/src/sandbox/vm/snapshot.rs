//! A snapshot in a VM. The agent in the guest takes and keeps it (vm/agent/src/snapshots.rs); here it is a
//! name.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use vm::Error;
use vm::protocol::{Beginning, ErrorKind, TakeSnapshot, Taken as InGuest};

use super::{Running, SLOWER};
use crate::function::definition::Deployment;
use crate::function::settings::Settings;
use crate::sandbox::interface::{Order, SPARE};
use crate::sandbox::line::Fault;
use crate::sandbox::snapshots;
use crate::sandbox::taken::{Gone, Taken};

/// The longest that a guest is waited for: the VM's own patience is longer.
const MOST_WAIT: Duration = Duration::from_secs(100);

/// A snapshot that a guest keeps until this is dropped.
pub struct VmSnapshot {
    name: String,
    taken: InGuest,
    running: Weak<Running>,
}

impl VmSnapshot {
    /// Whether this VM has it.
    pub fn is_in(&self, running: &Arc<Running>) -> bool {
        std::ptr::eq(self.running.as_ptr(), Arc::as_ptr(running))
    }
}

impl Taken for VmSnapshot {
    fn bytes(&self) -> u64 {
        self.taken.memory_bytes
    }

    fn size(&self) -> u64 {
        self.taken.kept_bytes
    }

    fn mappings(&self) -> usize {
        self.taken.mappings as usize
    }

    fn why_copied(&self) -> Option<&str> {
        self.taken.why_copied.as_deref()
    }
}

impl Drop for VmSnapshot {
    fn drop(&mut self) {
        let Some(running) = self.running.upgrade() else { return };
        let name = std::mem::take(&mut self.name);
        // The guest may be slow. If no thread can be started for it, the snapshot ends with the VM.
        let drop_it = move || {
            if let Err(error) = running.vm.drop_snapshot(&name) {
                tracing::debug!("{name} is not dropped: {error}");
            }
        };
        let _ = std::thread::Builder::new().name("vm".into()).spawn(drop_it);
    }
}

/// How an instance begins.
pub enum Start {
    /// Its runtime starts.
    Fresh,
    /// It starts, and waits to be taken.
    Taken,
    /// It is restored.
    Restored(Arc<VmSnapshot>),
}

impl Start {
    /// For the guest.
    ///
    /// # Errors
    /// The snapshot is another VM's.
    pub fn beginning(&self, order: &Order, running: &Arc<Running>) -> Result<Beginning, Gone> {
        match self {
            Start::Fresh => Ok(Beginning::Command),
            Start::Taken => Ok(Beginning::Taken),
            Start::Restored(snapshot) if snapshot.is_in(running) => {
                // One on trial yields to others.
                let limit = if order.id == SPARE { snapshots::START } else { snapshots::RESTORE };
                let timeout_ms = limit_of(limit, running).as_millis() as u64;
                Ok(Beginning::Restored { snapshot: snapshot.name.clone(), timeout_ms })
            }
            Start::Restored(_) => Err(Gone),
        }
    }

    /// The variable that has an instance wait to be taken.
    pub fn variable(&self, deployment: &Deployment) -> Option<(String, String)> {
        let is_asked = snapshots::is_asked_for(deployment);
        let why = if is_asked { snapshots::ASKED } else { snapshots::BY_DEFAULT };
        matches!(self, Start::Taken).then(|| (snapshots::VARIABLE.into(), why.into()))
    }

    /// Whether the runtime is restored.
    pub fn is_restored(&self) -> bool {
        matches!(self, Start::Restored(_))
    }
}

/// Has the guest take an instance of this name, which waits, or is about to. Blocks.
///
/// # Errors
/// It cannot be restored, or has ended, or the guest is down.
pub fn take(running: &Arc<Running>, instance: &str, settings: &Settings) -> anyhow::Result<VmSnapshot> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("snapshot-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let order = TakeSnapshot {
        instance: instance.into(),
        snapshot: name.clone(),
        most_bytes: u64::from(settings.memory_mib) << 20,
        timeout_ms: limit_of(snapshots::START, running).as_millis() as u64,
    };
    let taken = running.vm.take_snapshot(order).map_err(in_own_words)?;
    Ok(VmSnapshot { name, taken, running: Arc::downgrade(running) })
}

/// A guest's error as that of any sandbox's snapshot.
pub fn in_own_words(error: Error) -> anyhow::Error {
    match error {
        Error::Refused(refusal) if refusal.kind == ErrorKind::Unsupported => {
            worker_snapshot::Error::Unsupported(refusal.message).into()
        }
        Error::Refused(refusal) if refusal.kind == ErrorKind::Fault => {
            Fault(worker_system::text::shown(&refusal.message)).into()
        }
        error if error.is_refusal(ErrorKind::NoSuchSnapshot) => Gone.into(),
        error => error.into(),
    }
}

fn limit_of(limit: Duration, running: &Running) -> Duration {
    let slower = if running.vm.is_emulated() { SLOWER } else { 1 };
    (limit * slower).min(MOST_WAIT)
}

#[cfg(test)]
mod tests {
    use vm::protocol::Refusal;

    use super::*;

    #[test]
    fn refusals_of_a_guest_are_errors_of_snapshots() {
        let refused = |kind| in_own_words(Error::Refused(Refusal { kind, message: "a\nb".into() }));
        let unsupported = refused(ErrorKind::Unsupported);
        assert!(matches!(unsupported.downcast_ref(), Some(worker_snapshot::Error::Unsupported(_))));
        let fault = refused(ErrorKind::Fault);
        assert!(fault.is::<Fault>() && fault.to_string() == "a\\nb", "{fault}");
        assert!(refused(ErrorKind::NoSuchSnapshot).is::<Gone>());
        assert!(refused(ErrorKind::CannotStart).is::<Error>());
        assert!(in_own_words(Error::NoneReady).is::<Error>());
    }
}
