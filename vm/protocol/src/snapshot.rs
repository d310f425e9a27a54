//! Snapshots of instances: the agent keeps the memory of one that waits, and restores others from it.

use serde::{Deserialize, Serialize};

/// An instance that is to be taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeSnapshot {
    /// Which one. It began as [`crate::Beginning::Taken`], and goes on afterwards, whatever the outcome.
    pub instance: String,
    /// The snapshot's name; another of this name is dropped.
    pub snapshot: String,
    /// Of its memory and of its files in /tmp.
    pub most_bytes: u64,
    /// How long it may take until it waits; then [`crate::ErrorKind::Fault`].
    pub timeout_ms: u64,
}

/// A snapshot that was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Memory that the instance had written.
    pub memory_bytes: u64,
    /// What the agent keeps: that, and the files in /tmp.
    pub kept_bytes: u64,
    /// Mappings of a restored process.
    pub mappings: u64,
    /// Why restored processes have copies of its pages, if they do not share them.
    pub why_copied: Option<String>,
}
