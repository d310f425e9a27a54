//! A guest on disk at the end of its imports, where its program asks to be timed. What it executes up to
//! there is the same on every machine, so runs on other machines start from there, too. The plugin writes
//! down the program's marks and has QEMU pause (sim/plugin/src/run/checkpoint.rs), and QEMU's state is kept
//! as the booted guest's is.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::console::{read_all, read_console};
use super::{Guest, escaped};
use crate::sim::snapshot;

/// The environment of programs that ask for that themselves.
pub const MARKED: [&str; 2] = ["MAYFLY_REGION=first", "MAYFLY_REGION=warm"];
/// The number of the marks' format.
const FORMAT: u32 = 1;
/// How long a QEMU that is to end may take.
const ENDING: Duration = Duration::from_secs(10);

/// The checkpoint of this guest, whose state when it had booted is in `booted`: its state, and the plugin's
/// words for it. It is made if there is none; `progress` receives the seconds so far, and can end it.
///
/// # Errors
/// The program does not reach its region, or there is no room for its state.
pub fn of(
    guest: &Guest,
    booted: &Path,
    items: &[(&'static str, Vec<u8>)],
    progress: &mut impl FnMut(f64) -> Result<()>,
) -> Result<(PathBuf, String)> {
    let mut key = DefaultHasher::new();
    // The booted guest's name stands for QEMU, the image and the memory.
    (FORMAT, booted.file_name(), items).hash(&mut key);
    let state = snapshot::kept(key.finish(), &["marks", "state"], |scratch| {
        make(guest, booted, items, scratch, progress)
    })?;
    let words = format!(",from={}", escaped(&state.with_extension("marks")));
    Ok((state, words))
}

fn make(
    guest: &Guest,
    booted: &Path,
    items: &[(&'static str, Vec<u8>)],
    scratch: &Path,
    progress: &mut impl FnMut(f64) -> Result<()>,
) -> Result<()> {
    let words = format!(",save={}", escaped(&scratch.join("marks")));
    let mut child = guest.start(booted, scratch, items, &words)?;
    let console = child.stdout.take().map(|output| std::thread::spawn(move || read_console(output)));
    let complaints = child.stderr.take().map(|errors| std::thread::spawn(move || read_all(errors)));
    let kept = snapshot::resume(&scratch.join("monitor"), &mut child)
        .and_then(|mut monitor| monitor.keep_state("paused", &scratch.join("state"), progress));
    // A guest that has paused is ended here, and one that has powered off ends QEMU itself.
    let ended = if kept.is_err() { child.wait_timeout(ENDING)? } else { None };
    let status = match ended {
        Some(status) => status,
        None => {
            child.kill()?;
            child.wait()?
        }
    };
    let Err(error) = kept else { return Ok(()) };
    let console = console.and_then(|thread| thread.join().ok()).unwrap_or_default();
    let complaints = complaints.and_then(|thread| thread.join().ok()).unwrap_or_default();
    if console.text.contains("@sim exit ") {
        return Err(anyhow!("--checkpoint: the program ended before it asked to be timed"));
    }
    match guest.judge(&console, &complaints, status) {
        Err(told) if ended.is_some() => Err(told),
        _ => Err(error),
    }
}
