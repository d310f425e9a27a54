//! The agent of a node: `mayfly node`. Any container gets Mayfly by one line, without a change of its image.
//!
//! ```text
//!   mayfly.dev/heap: online               request    what a pod's annotations, or a CDI name, ask for
//!            │
//!   NRI ─ nri, adjustment ┐               injection  mounts, variables and devices that give it
//!   CDI ─ cdi ────────────┘               artifacts  where the libraries and models lie, that containers mount
//!            │
//!   trust_domain ─ page_stores ─ cgroup   a page store for each trust domain, in a cgroup of its own
//!   profiler ─ upload_queue ─ storage     lifetimes of programs that ask for it, into a data set: a folder, a bucket
//!   load_check, shared_memory, model_coverage ─ metrics ─ http   what programs have of it, for people and Prometheus
//! ```
//!
//! Layers, from the bottom up; each imports from those before it only (`tests/modules` checks it):
//! `base`, `nri`, `domains`, `inject`, `profiles`, `observe`, `service`.
//!
//! It fails open. Nothing that goes wrong here keeps a container from starting: an answer to the runtime is never an
//! error, a library that is not there is not loaded, a store that is gone leaves programs what they share.

pub mod base {
    //! What annotations can ask for, and cgroups.
    pub mod cgroup;
    pub mod request;
}

pub mod nri {
    //! The Node Resource Interface: the runtime tells of each container before it makes it, and the agent may add to it.
    pub mod messages;
    pub mod plugin;
    pub mod wire;
}

pub mod domains {
    //! Trust domains, and a page store for each.
    pub mod page_stores;
    pub mod trust_domain;
}

pub mod inject {
    //! What containers get, by NRI or CDI, and the folders that they mount.
    pub mod adjustment;
    pub mod artifacts;
    pub mod cdi;
    pub mod injection;
}

pub mod profiles {
    //! Lifetime profiles of containers, and their way into a data set.
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
    //! The agent: settings, the runtime's requests, metrics.
    pub mod agent;
    pub mod http;
    pub mod metrics;
    pub mod nri_handler;
    pub mod run;
    pub mod settings;
}

pub use base::request::Name;
pub use service::run::run;
pub use service::settings::Settings;

/// Takes away what containers mount and what engines read: after the last container that has any of it.
///
/// # Errors
/// Something cannot be removed, named.
pub fn clean(data: &std::path::Path, cdi: Option<&std::path::Path>) -> anyhow::Result<()> {
    if let Some(folder) = cdi {
        inject::cdi::remove(folder)?;
    }
    inject::artifacts::remove(data)
}
