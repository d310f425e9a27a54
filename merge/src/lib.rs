//! User-guided page merging (UPM): pages are merged when a program advises them, without the kernel's help.
//!
//! Layers, from the bottom up; each imports from those before it only (`tests/modules` checks this). The
//! client does not import from the daemon either: they share [`base`] and the protocol.
//!
//! | layer | what it is |
//! | --- | --- |
//! | [`base`] | pages and their hashes; the index that a store shares with its clients; sealed memory that holds pages; the protocol and its messages |
//! | [`daemon`] | the page store: one for each trust domain |
//! | [`client`] | `advise` and `unadvise`: look up, compare, remap |
//!
//! docs/merge.md describes how they work together.

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux")))]
compile_error!("merging supports Linux on x86-64 and aarch64 only");

pub mod base {
    //! What client and daemon share: pages and segments, the index, the protocol.
    pub mod channel;
    pub mod error;
    pub mod fault;
    pub mod index;
    pub mod mapping;
    pub mod page;
    pub mod protocol;
    pub mod segment;
    pub mod socket_path;
}

pub mod daemon {
    //! The page store: `mayfly share`.
    //!
    //! One thread accepts connections and asks the kernel which process and user each comes from. Each trust
    //! domain has a thread and a store of its own, so that a client's worst, a file that never closes or
    //! hours of hashing, delays its own domain only. The daemon trusts nothing that a client sends: it checks
    //! each file's seals and hashes it again.
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
    mod turn_away;
    mod untrusted_fds;
    mod upload_claims;

    pub use metrics_http::Endpoint;
    #[cfg(fuzzing)]
    pub use metrics_http::answer_to;
    pub use page_budget::Charge;
    pub use server::{Configuration, Server};
    pub use trust_domain::Rule;
}

pub mod client {
    //! `advise` and `unadvise` for this process: by the kernel where it has UPM, else by the engine.
    mod address_space;
    mod background;
    mod checked_fd;
    pub mod connection;
    mod device_writers;
    mod engine;
    mod excluded_ranges;
    mod flags;
    mod freeze;
    mod interpose;
    mod kernel;
    mod mapping_flags;
    mod move_aside;
    mod page_map;
    mod plan;
    mod process;
    mod remap;
    mod scratch;
    mod statistics;
    mod stopped_store;
    mod this_process;

    pub use background::Ticket;
    pub use flags::Flags;
    pub use process::{
        advise, advise_begin, advise_wait, bypass, keep_anonymous, path, statistics, unadvise,
    };
    pub use statistics::{Path, Statistics};
}

pub use base::error::Error;
pub use base::{channel, socket_path};
pub use client::{
    Flags, Path, Statistics, Ticket, advise, advise_begin, advise_wait, bypass, keep_anonymous, path,
    statistics, unadvise,
};
