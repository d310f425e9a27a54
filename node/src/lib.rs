//! The agent of a node, `mayfly node`: it injects Mayfly into any container by one line, without a change of
//! its image.
//!
//! ```text
//!   mayfly.dev/heap: online               request    what a pod's annotations, or a CDI name, request
//!            │
//!   NRI ─ nri, adjustment ┐               injection  mounts, variables and devices for it
//!   CDI ─ cdi ────────────┘               artifacts  the libraries and models that containers mount
//!            │
//!   trust_domain ─ page_stores ─ cgroup   a page store for each trust domain, in a cgroup of its own
//!   profiler ─ upload_queue ─ storage     lifetime profiles, into a data set: a folder or a bucket
//!   containers, load_check, shared_memory, model_coverage   running containers, seen from outside
//!   agent ─ nri_handler, memory, metrics ─ http             all of it, for runtimes, people and Prometheus
//! ```
//!
//! Layers, from the bottom up; each imports from those before it only (`tests/modules` checks it): [`base`],
//! [`nri`], [`domains`], [`inject`], [`profiles`], [`observe`], [`service`].
//!
//! It fails open: no failure here keeps a container from starting. A response to the runtime is never an
//! error, loaders skip a library that is missing, and programs keep their shared pages when a store ends.

pub mod base {
    //! Requests that annotations can make, and cgroups.
    pub mod cgroup;
    pub mod request;
}

pub mod nri {
    //! The Node Resource Interface: the runtime reports each container before it creates it, and the agent
    //! may add to it.
    #[cfg(test)]
    mod crio_test;
    pub mod messages;
    pub mod plugin;
    #[cfg(test)]
    mod recorder;
    pub mod wire;
}

pub mod domains {
    //! Trust domains, and a page store for each.
    pub mod page_stores;
    pub mod trust_domain;
}

pub mod inject {
    //! Injections into containers, by NRI or CDI, and the folders that containers mount.
    pub mod adjustment;
    pub mod artifacts;
    pub mod cdi;
    pub mod injection;
}

pub mod profiles {
    //! Lifetime profiles of containers, from the sampler to the data set.
    pub mod profiler;
    pub mod storage;
    pub mod upload_queue;
}

pub mod observe {
    //! Running containers, seen from outside.
    pub mod containers;
    pub mod load_check;
    pub mod model_coverage;
    pub mod shared_memory;
}

pub mod service {
    //! The agent: its settings, handlers, metrics and memory report.
    pub mod agent;
    pub mod http;
    pub mod memory;
    pub mod metrics;
    pub mod nri_handler;
    pub mod run;
    pub mod settings;
}

pub use base::request::Name;
pub use service::memory::{ContainerMemory, NodeMemory, StoreMemory};
pub use service::run::run;
pub use service::settings::Settings;

/// Removes the folders that containers mount and the CDI specifications; no container may use them any more.
///
/// # Errors
/// A file or folder cannot be removed; the error names it.
pub fn clean(data: &std::path::Path, cdi: Option<&std::path::Path>) -> anyhow::Result<()> {
    if let Some(folder) = cdi {
        inject::cdi::remove(folder)?;
    }
    inject::artifacts::remove(data)
}
