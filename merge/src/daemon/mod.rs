//! The page store: `mayfly share`.
//!
//! A thread accepts connections and learns from the kernel who they are; each trust domain has a thread and a store of
//! its own. So a client's worst, a file that never closes or hours of hashing, delays its own domain and nobody else.
//! Nothing that a client sends is believed: files are checked for their seals and hashed here.

mod descriptor_store;
mod domain_metrics;
mod domain_thread;
mod json;
mod metrics_http;
mod packed_segment;
mod page_budget;
mod page_store;
mod programs;
mod requests;
mod server;
mod socket_lock;
mod trust_domain;
mod untrusted_fds;
mod upload_claims;

pub use metrics_http::Endpoint;
pub use page_budget::Charge;
pub use server::{Configuration, Server};
pub use trust_domain::{Rule, cgroup_of_process};
