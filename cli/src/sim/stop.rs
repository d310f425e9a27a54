//! A simulation's early end: by a signal to this process, or because another one that runs beside it has
//! failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::Failure;

/// Not a signal's number.
const FAILED: usize = 1 << 16;

/// Whether runs are to end. Clones are of one request.
#[derive(Clone)]
pub struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// From now on SIGINT, SIGTERM and SIGHUP end runs, not this process: folders are removed, counts kept.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn at_signals() -> Result<Stop> {
        let stop = Stop(Arc::default());
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_usize(signal, stop.0.clone(), signal as usize)
                .context("cannot take signals")?;
        }
        Ok(stop)
    }

    /// Ends the runs beside one that has failed.
    pub fn others(&self) {
        let _ = self.0.compare_exchange(0, FAILED, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether runs are to end.
    pub fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Whether a run ended because another one had failed.
    pub fn is_of_another(&self, error: &anyhow::Error) -> bool {
        self.0.load(Ordering::Relaxed) == FAILED && error.is::<Failure>()
    }

    /// An error with one line, `interrupted` and `counted`, and the exit code that a shell has for the
    /// signal.
    pub fn error(&self, counted: &str) -> anyhow::Error {
        let signal = self.0.load(Ordering::Relaxed);
        let code = if signal < FAILED { 128 + signal as i32 } else { crate::failure::OWN_FAILURE };
        Failure::new(code, format!("interrupted{counted}")).into()
    }
}
