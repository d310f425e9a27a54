//! Statistics of this process's calls.

use std::time::Instant;

/// How pages are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Path {
    /// No call yet.
    #[default]
    None = 0,
    /// madvise, on a kernel with UPM.
    Kernel = 1,
    /// This library and a page store.
    Engine = 2,
}

/// `struct mayfly_merge_stats`, which documents each field.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Statistics {
    pub size: u32,
    pub path: Path,
    pub calls: u64,
    pub pages: u64,
    pub unchanged_pages: u64,
    pub merged_pages: u64,
    pub inserted_pages: u64,
    pub private_pages: u64,
    pub zero_pages: u64,
    pub busy_pages: u64,
    pub refused_pages: u64,
    pub mappings: u64,
    pub unadvised_pages: u64,
    pub total_ns: u64,
    pub hash_ns: u64,
    pub search_ns: u64,
    pub known_ns: u64,
    pub insert_ns: u64,
    pub map_ns: u64,
    pub freeze_ns: u64,
    pub compare_ns: u64,
    pub remap_ns: u64,
}

/// Attributes time to steps, one after the other.
pub struct Clock(Instant);

impl Clock {
    /// Begins.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// Nanoseconds since the last lap.
    #[inline]
    pub fn lap(&mut self) -> u64 {
        let now = Instant::now();
        let ns = now.duration_since(self.0).as_nanos() as u64;
        self.0 = now;
        ns
    }
}
