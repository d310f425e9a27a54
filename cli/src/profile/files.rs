//! The files of a profile: all forms of it at the end, and meanwhile checkpoints, periodically and on
//! request.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lifetime::code::symbols::Symbols;
use lifetime::profile::contents::Profile;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::profile::tree::Observer;

/// Time between two checkpoints; more where writing one takes long.
pub const KEEP: Duration = Duration::from_secs(2);
/// A checkpoint takes at most one in so many parts of the time.
pub const COST: u32 = 50;

/// Writes `NAME.profile` and the files made from it; returns their paths.
///
/// # Errors
/// A file cannot be written.
pub fn write<'a>(profile: &'a Profile, symbols: &mut Symbols<'a>, stem: &Path) -> Result<Vec<PathBuf>> {
    let [raw, pprof, table, code] =
        ["profile", "pb.gz", "parquet", "symbols.parquet"].map(|suffix| with_suffix(stem, suffix));
    profile.write(&raw)?;
    lifetime::export::pprof::write(profile, symbols, &pprof)?;
    lifetime::export::table::write(profile, symbols, &table)?;
    lifetime::export::table::write_code(profile, symbols, &code)?;
    Ok(vec![raw, pprof, table])
}

/// `NAME.SUFFIX`.
pub fn with_suffix(stem: &Path, suffix: &str) -> PathBuf {
    let mut name = stem.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// Writes a profile while it is taken, periodically and on request; and holds the request to stop.
pub struct Checkpoints {
    stem: Option<PathBuf>,
    stopped: Arc<AtomicBool>,
    requested: Arc<AtomicBool>,
    snapshots: u32,
    next: Instant,
}

impl Checkpoints {
    /// For the profile `stem`, or one without checkpoints; SIGRTMIN requests a snapshot.
    ///
    /// # Errors
    /// Signals cannot be handled.
    pub fn new(stem: Option<&Path>) -> Result<Self> {
        let requested = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(libc::SIGRTMIN(), requested.clone()).context("cannot take signals")?;
        let stopped = Arc::new(AtomicBool::new(false));
        Ok(Self {
            stem: stem.map(Path::to_owned),
            stopped,
            requested,
            snapshots: 0,
            next: Instant::now() + KEEP,
        })
    }

    /// Lets Ctrl-C and SIGTERM end the profile.
    ///
    /// # Errors
    /// Signals cannot be handled.
    pub fn stop_by_signals(&self) -> Result<()> {
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, self.stopped.clone()).context("cannot take signals")?;
        }
        Ok(())
    }

    /// Whether a snapshot was requested since the last call.
    pub fn is_requested(&self) -> bool {
        self.requested.swap(false, Relaxed)
    }

    /// Writes the profile so far to a file of its own.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn snapshot(&mut self, so_far: &Profile) -> Result<()> {
        let Some(stem) = &self.stem else { return Ok(()) };
        self.snapshots += 1;
        let path = with_suffix(stem, &format!("{}.profile", self.snapshots));
        so_far.write(&path)?;
        eprintln!("mayfly: so far: {0}; mayfly profile --from {0} shows it", path.display());
        Ok(())
    }
}

impl Observer for Checkpoints {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    fn wants(&mut self) -> bool {
        self.stem.is_some() && (self.requested.load(Relaxed) || Instant::now() >= self.next)
    }

    fn keep(&mut self, so_far: &Profile) -> Result<()> {
        if self.is_requested() {
            return self.snapshot(so_far);
        }
        let Some(stem) = &self.stem else { return Ok(()) };
        let began = Instant::now();
        so_far.write(&with_suffix(stem, "profile"))?;
        self.next = Instant::now() + KEEP.max(began.elapsed() * COST);
        Ok(())
    }
}
