//! What an instance reports of its idle work (`mayfly/rest`), for events and metrics.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::Deserialize;
use worker_page::data::Event;

use super::Instance;
use worker_system::text::plain_reason;

/// An instance's report of its idle work. Nothing depends on its truth.
#[derive(Debug, Deserialize)]
pub(crate) struct IdleWork {
    /// Resident memory that fell when the heap gave back what it held free.
    trimmed_bytes: u64,
    /// Bytes that were examined for merging.
    advised_bytes: u64,
    /// Pages that are shared since.
    shared_pages: u64,
    /// Bytes of live objects in Mayfly's heap, and of the blocks that they are in; 0 on another heap.
    #[serde(default)]
    heap_live_bytes: u64,
    #[serde(default)]
    heap_held_bytes: u64,
    /// Whether it merged at all.
    merges: bool,
    /// Why merging ended early; 0: it did not.
    errno: i32,
    /// How long it took.
    ms: f64,
    /// After how long without work it wants to do idle work again; none: not before it has had work.
    #[serde(default)]
    again_after_ms: Option<u64>,
}

impl Instance {
    /// Counts a report of idle work. Its figures are noted from at most five reports a second.
    pub(crate) fn note_idle_work(&self, rest: &IdleWork) {
        self.context.count.idle_work.fetch_add(1, Ordering::Relaxed);
        self.did_idle_work(rest.again_after_ms.map(Duration::from_millis));
        {
            let mut state = self.state();
            if state.noted_idle_work.is_some_and(|last| last.elapsed() < Duration::from_millis(200)) {
                return;
            }
            state.noted_idle_work = Some(Instant::now());
            state.heap = (rest.heap_live_bytes, rest.heap_held_bytes);
        }
        let ms = Some(rest.ms).filter(|ms| ms.is_finite());
        if rest.merges && (rest.shared_pages > 0 || rest.errno != 0) {
            let error = std::io::Error::from_raw_os_error(rest.errno);
            let message = (rest.errno != 0).then(|| format!("not merged: {}", plain_reason(&error)));
            let (bytes, merged_bytes) =
                (Some(rest.advised_bytes), Some(rest.shared_pages.saturating_mul(4096)));
            self.note(Event { ms, bytes, merged_bytes, message, ..self.event("merge") });
        }
        if rest.trimmed_bytes > 0 {
            self.note(Event { ms, trimmed_bytes: Some(rest.trimmed_bytes), ..self.event("rest") });
        }
    }
}
