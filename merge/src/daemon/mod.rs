//! The page store: `mayfly share`.
//!
//! A thread accepts connections and learns from the kernel who they are; each trust domain has a thread and a store of
//! its own. So a client's worst, a file that never closes or hours of hashing, delays its own domain and nobody else.
//! Nothing that a client sends is believed: files are checked for their seals and hashed here.

mod answers;
mod budget;
mod claims;
mod descriptor_store;
mod domain;
mod figures;
mod json;
mod lock;
mod metrics;
mod packed;
mod programs;
mod server;
mod service;
mod store;
mod strangers;

pub use budget::Charge;
pub use domain::{Rule, cgroup_of_process};
pub use metrics::Endpoint;
pub use server::{Configuration, Server};
