//! Where lifetimes come from: one interface, and the seam where a learned model goes.
//!
//! A call that a thread's prediction table does not know (LLAMA §7) is classified here, by one of four sources: a fixed
//! class, what was learned online ([`crate::sites`]), a trained model ([`crate::model`]), alone as in the paper or corrected
//! by what is learned online, or an oracle, the recorded lifetimes of an earlier run. A class that holds for all calls
//! alike may be put into the table; the oracle's holds for one object.
//!
//! A model is asked when a site is new: sites are the second, larger table behind those of the threads. And it is asked again
//! after 1,000 hits of a site and more, for the context that calls then; where it disagrees with itself, the longer class holds.

use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

use crate::heap::{Call, Heap};
use crate::lifetime::{CLASSES, FOREVER};
use crate::sites::{self, Site};
use crate::stats::{self, Event};
use crate::text::warn;
use crate::{config, fork, model, os};

/// Where lifetimes come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Every object has this class.
    Fixed(usize),
    /// Sampled allocations teach each call site its class while the program runs.
    Online,
    /// A trained model says the class of each call site, from its context.
    Model {
        /// Sampled allocations correct it.
        online: bool,
    },
    /// A table of the class of each thread's n-th allocation.
    Oracle,
}

/// A call's class.
pub struct Prediction {
    /// The lifetime class.
    pub class: usize,
    /// It holds for calls like this one until the epoch changes.
    pub cacheable: bool,
    /// The call site that learns from this object's lifetime.
    pub site: Option<&'static Site>,
}

const ONLINE: u8 = u8::MAX;
const ORACLE: u8 = u8::MAX - 1;
const MODEL: u8 = u8::MAX - 2;
const MODEL_AND_ONLINE: u8 = u8::MAX - 3;
static SOURCE: AtomicU8 = AtomicU8::new(ONLINE);

/// Chooses the source.
pub fn set_source(source: Source) {
    let code = match source {
        Source::Fixed(class) => class.min(FOREVER) as u8,
        Source::Online => ONLINE,
        Source::Oracle => ORACLE,
        Source::Model { online: false } => MODEL,
        Source::Model { online: true } => MODEL_AND_ONLINE,
    };
    SOURCE.store(code, Relaxed);
}

/// The source in use.
pub fn source() -> Source {
    match SOURCE.load(Relaxed) {
        ONLINE => Source::Online,
        ORACLE => Source::Oracle,
        MODEL => Source::Model { online: false },
        MODEL_AND_ONLINE => Source::Model { online: true },
        class => Source::Fixed(class as usize),
    }
}

/// Classifies a call.
pub fn classify(heap: &Heap, call: &Call) -> Prediction {
    match source() {
        Source::Fixed(class) => Prediction { class, cacheable: true, site: None },
        Source::Oracle => {
            let class = oracle::class(heap.thread.get(), heap.sequence.get());
            Prediction { class, cacheable: false, site: None }
        }
        Source::Online | Source::Model { .. } => {
            if heap.predicted_bin(call).is_none() {
                stats::count(Event::PredictionMissed);
            } // else the bin needs a span, and its site learns
            let site = sites::of(heap, call);
            if let Some(site) = site.filter(|site| site.was_hit(1, call.size)) {
                ask_again(site, call);
            }
            Prediction { class: site.map_or(FOREVER, Site::class), cacheable: true, site }
        }
    }
}

/// The thread's table knew the call, as it knew that of `count` objects since the last time.
#[inline]
pub fn was_hit(heap: &'static Heap, call: &Call, count: u32) {
    if matches!(source(), Source::Model { .. })
        && let Some(site) = heap.predictions.site(call).or_else(|| heap.known_sites.get(call))
    {
        let _pass = fork::pass(heap);
        if site.was_hit(count, call.size) {
            ask_again(site, call);
        }
    }
}

/// Runs the model once more for a site, in the context that is calling now (LLAMA §7).
#[cold]
#[inline(never)]
fn ask_again(site: &'static Site, call: &Call) {
    if matches!(source(), Source::Model { .. })
        && let Some(class) = model::predict(call.caller)
    {
        stats::count(Event::PredictionChecked);
        site.model_says(class);
    }
}

/// Reads an oracle table; whether there is one.
pub fn load_oracle(path: &[u8]) -> bool {
    let mut with_nul = [0; config::PATH_BYTES];
    let shown = core::str::from_utf8(path).unwrap_or("(not UTF-8)");
    if path.len() >= with_nul.len() {
        warn(format_args!(
            "oracle table: the path is longer than {} bytes; using online",
            config::PATH_BYTES - 1
        ));
        return false;
    }
    with_nul[..path.len()].copy_from_slice(path);
    let Some((at, bytes)) = os::map_file(&with_nul[..=path.len()]) else {
        warn(format_args!("oracle table {shown} cannot be read; using online"));
        return false;
    };
    // SAFETY: a fresh private mapping of that many bytes, never unmapped.
    let file = unsafe { core::slice::from_raw_parts(at as *const u8, bytes) };
    match oracle::check(file) {
        Ok(()) => oracle::install(file),
        Err(what) => {
            warn(format_args!("oracle table {shown}: {what}; using online"));
            return false;
        }
    }
    true
}

/// The oracle's table: for each thread, the class of its n-th allocation (docs/trace.md).
pub mod oracle {
    use super::*;

    const MAGIC: &[u8; 8] = b"MAYFLYOR";
    const HEADER: usize = 16;
    static AT: AtomicUsize = AtomicUsize::new(0);
    static BYTES: AtomicUsize = AtomicUsize::new(0);

    fn word(file: &[u8], at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(file.get(at..at + 8)?.try_into().ok()?))
    }

    fn threads(file: &[u8]) -> usize {
        word(file, 8).map_or(0, |both| (both >> 32) as usize)
    }

    fn classes(file: &[u8], thread: usize) -> Option<&[u8]> {
        if thread >= threads(file) {
            return None;
        }
        let start = word(file, HEADER + thread * 16)? as usize;
        let count = word(file, HEADER + thread * 16 + 8)? as usize;
        file.get(start..start.checked_add(count)?)
    }

    /// What is wrong with a table.
    pub fn check(file: &[u8]) -> Result<(), &'static str> {
        if file.len() < HEADER || &file[..8] != MAGIC {
            return Err("it does not begin with MAYFLYOR");
        }
        if u32::from_le_bytes([file[8], file[9], file[10], file[11]]) != 1 {
            return Err("its version is not 1");
        }
        for thread in 0..threads(file) {
            let Some(classes) = classes(file, thread) else {
                return Err("a thread's classes lie beyond its end");
            };
            if classes.iter().any(|&class| class as usize >= CLASSES) {
                return Err("it holds a class above 6");
            }
        }
        Ok(())
    }

    /// Makes a checked table the one in use.
    pub(super) fn install(file: &'static [u8]) {
        AT.store(file.as_ptr() as usize, Relaxed);
        BYTES.store(file.len(), Relaxed);
    }

    /// The class of a thread's n-th allocation; beyond the table, ∞.
    pub(super) fn class(thread: u32, sequence: u32) -> usize {
        // SAFETY: both were set together from a slice that lives on, before the source became the oracle.
        let file = unsafe { core::slice::from_raw_parts(AT.load(Relaxed) as *const u8, BYTES.load(Relaxed)) };
        let class = classes(file, thread as usize).and_then(|classes| classes.get(sequence as usize));
        class.map_or(FOREVER, |&class| class as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::oracle::check;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn table(classes: &[u8]) -> Vec<u8> {
        let mut file = b"MAYFLYOR\x01\0\0\0\x01\0\0\0".to_vec();
        file.extend(32u64.to_le_bytes());
        file.extend((classes.len() as u64).to_le_bytes());
        file.extend(classes);
        file
    }

    #[test]
    fn accepts_a_table_and_names_what_is_wrong() {
        assert_eq!(check(&table(&[0, 6, 3])), Ok(()));
        assert_eq!(check(&table(&[7])), Err("it holds a class above 6"));
        assert_eq!(check(b"MAYFLY"), Err("it does not begin with MAYFLYOR"));
        let whole = table(&[1, 2, 3]);
        assert_eq!(check(&whole[..whole.len() - 1]), Err("a thread's classes lie beyond its end"));
    }

    proptest! {
        #[test]
        fn hostile_tables_are_refused_not_followed(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), keep in 0usize..3) {
            if keep > 0 && bytes.len() > 16 {
                bytes[..12].copy_from_slice(b"MAYFLYOR\x01\0\0\0");
            }
            let _ = check(&bytes);
        }
    }
}
