//! What the worker needs to know of a snapshot, wherever the sandboxes of its kind keep it.

use std::fmt;

use worker_snapshot::Snapshot;

/// A snapshot that was taken. Instances that were restored live on when it is dropped.
pub(super) trait Taken: Send + Sync + 'static {
    /// Bytes of memory.
    fn bytes(&self) -> u64;

    /// Bytes that are kept: the memory, and the contents of files.
    fn size(&self) -> u64;

    /// Mappings of a restored process.
    fn mappings(&self) -> usize;

    /// Why restored processes have copies of its pages, if they do not share them.
    fn why_copied(&self) -> Option<&str>;

    /// Whether it is on this machine's disk, and in memory as far as it was touched.
    fn is_on_disk(&self) -> bool {
        false
    }

    /// Has the kernel forget pages on the disk that no process maps.
    fn drop_unused(&self) {}
}

impl Taken for Snapshot {
    fn bytes(&self) -> u64 {
        self.bytes()
    }

    fn size(&self) -> u64 {
        self.size()
    }

    fn mappings(&self) -> usize {
        self.mappings()
    }

    fn why_copied(&self) -> Option<&str> {
        self.why_copied()
    }

    fn is_on_disk(&self) -> bool {
        self.is_on_disk()
    }

    fn drop_unused(&self) {
        self.drop_unused();
    }
}

/// The error of a restore whose snapshot is there no more, by no fault of its own.
#[derive(Debug)]
pub(super) struct Gone;

impl fmt::Display for Gone {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("its snapshot has gone with its VM")
    }
}

impl std::error::Error for Gone {}
