//! The agent of a node: `mayfly node`. Any container gets Mayfly by one line, without a change of its image.
//!
//! ```text
//!   mayfly.dev/heap: online          ask       what a pod's annotations, or a CDI name, ask for
//!            │
//!   NRI ─ nri ┤                      gift      mounts, variables and devices that give it
//!   CDI ─ cdi ┘                      offer     where the libraries and models lie, that containers mount
//!            │
//!   domain ─ stores ─ cgroup         a page store for each trust domain, in a cgroup of its own
//!   profiles ─ outbox ─ storage      lifetimes of programs that ask for it, into a data set: a folder, a bucket
//!   watch, memory, standing ─ metrics ─ http   what became of it, for people and Prometheus
//! ```
//!
//! It fails open. Nothing that goes wrong here keeps a container from starting: an answer to the runtime is never an
//! error, a library that is not there is not loaded, a store that is gone leaves programs what they share.

mod adjust;
mod agent;
mod answers;
mod ask;
mod cdi;
mod cgroup;
mod containers;
mod domain;
mod gift;
mod http;
mod memory;
mod metrics;
mod nri;
mod offer;
mod outbox;
mod profiles;
mod serve;
mod settings;
mod standing;
mod storage;
mod stores;
mod watch;

pub use ask::Name;
pub use serve::run;
pub use settings::Settings;

/// Takes away what containers mount and what engines read: after the last container that has any of it.
///
/// # Errors
/// Something cannot be removed, named.
pub fn clean(data: &std::path::Path, cdi: Option<&std::path::Path>) -> anyhow::Result<()> {
    if let Some(folder) = cdi {
        cdi::remove(folder)?;
    }
    offer::remove(data)
}
