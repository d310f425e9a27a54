//! The end of an instance, as Lambda's guide has it. If an extension has registered, the runtime receives
//! SIGTERM. When it has ended, extensions receive SHUTDOWN. What is left after two seconds is killed, or
//! after half a second where no extension is a program of its own; six times as long in a VM that is
//! emulated. Without extensions everything is killed at once.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::Instance;
use crate::base::time::now_ms;
use crate::sandbox::interface::{Ending, Sandbox};

/// The reasons of a SHUTDOWN other than that an instance is not needed.
pub(super) const FAILURE: &str = "failure";
pub(super) const TIMEOUT: &str = "timeout";

/// How long runtime and extensions have, if an extension is a program of its own.
const WITH_PROGRAMS: Duration = Duration::from_secs(2);
/// The same if all extensions live in the runtime.
const WITHOUT_PROGRAMS: Duration = Duration::from_millis(500);
/// The part of it that is the runtime's, where programs follow it.
const OF_RUNTIME: f64 = 0.3;

/// What still runs in an instance that ends.
struct Running {
    runtime: bool,
    /// Names of extensions that have ended.
    ended: BTreeSet<String>,
    /// Whether nothing is left.
    nothing: bool,
}

impl Running {
    fn note(&mut self, ending: &Ending, in_steps: bool) {
        match ending {
            Ending::Extension(name, _) if in_steps => drop(self.ended.insert(name.clone())),
            Ending::Exit(_) | Ending::Signal(_) if in_steps => self.runtime = false,
            _ => (self.runtime, self.nothing) = (false, true),
        }
    }
}

impl Instance {
    /// Has its processes end. `first` is the process that has ended by itself, if one has. Returns when all
    /// may be killed.
    pub(super) async fn shut_down(&self, sandbox: &dyn Sandbox, first: Option<Ending>) {
        let (any, programs) = self.state().extensions.kinds();
        if !any {
            return;
        }
        let in_steps = sandbox.ends_in_steps();
        let mut running = Running { runtime: true, ended: BTreeSet::new(), nothing: false };
        if let Some(first) = first {
            running.note(&first, in_steps);
        }
        let begun = Instant::now();
        let time = if programs { WITH_PROGRAMS } else { WITHOUT_PROGRAMS } * sandbox.slower();
        self.works();
        sandbox.thaw();
        if in_steps && running.runtime {
            let until = begun + if programs { time.mul_f64(OF_RUNTIME) } else { time };
            sandbox.terminate().await;
            wait(sandbox, &mut running, until, |running| !running.runtime).await;
            if running.runtime {
                sandbox.terminate().await;
            }
        }
        if !running.nothing && programs {
            self.deliver_last_events(sandbox).await;
            let left = (begun + time).saturating_duration_since(Instant::now());
            let receivers = self.state().extensions.send_shutdown(now_ms() + left.as_millis() as u64);
            wait(sandbox, &mut running, begun + time, |running| receivers.is_subset(&running.ended)).await;
        }
    }
}

/// Waits until `done`, nothing runs, or it is time.
async fn wait(sandbox: &dyn Sandbox, running: &mut Running, until: Instant, done: impl Fn(&Running) -> bool) {
    let in_steps = sandbox.ends_in_steps();
    while !running.nothing && !done(running) {
        let Ok(ended) = timeout_at(until, sandbox.ending()).await else { return };
        running.note(&ended.how, in_steps);
    }
}
