//! The worker: serves functions written for AWS Lambda on one machine, each instance in a sandbox of its own.
//!
//! ```text
//!   boto3, aws ──Lambda API──► api ──► control ──► pool (which instance serves a request)
//!                                        │
//!                                    instance ──► sandbox: a container, or a partition of a VM ──► the function's runtime
//!                                        ▲                                             │
//!                                        └──────────────── Runtime API ◄───────────────┘
//! ```
//!
//! Folders are layers, declared here from the bottom up; each imports from those before it only (`tests/modules` sees to
//! it), and no modules import one another in a circle.

pub mod base {
    //! Errors, limits, names, locks, folders and time: what every other layer uses.
    pub(crate) mod error;
    pub(crate) mod limits;
    pub(crate) mod name;
    pub(crate) mod process_memory;
    pub(crate) mod time;
}

pub mod http;

pub mod invocation {
    //! One request to a function: what it is, its output, log lines, counters and trace.
    pub(crate) mod counters;
    pub(crate) mod logs;
    pub(crate) mod output;
    pub(crate) mod request;
    pub(crate) mod traces;
}

pub(crate) mod code;

pub mod function {
    //! What a function is: its settings, its versions, and the template that declares it. Also what a worker is started with.
    pub(crate) mod definition;
    pub(crate) mod event_config;
    pub(crate) mod settings;
    pub(crate) mod template;
    pub mod worker_options;
}

pub mod state {
    //! What survives the worker: functions and accepted events on disk, and what a successor receives.
    pub(crate) mod event_store;
    pub(crate) mod function_store;
    pub(crate) mod handover;
    pub(crate) mod state_file;
}

pub mod sandbox {
    //! Where an instance runs: a container, or a partition of a VM, behind one interface.
    pub(crate) mod containers;
    pub(crate) mod environment;
    pub(crate) mod history;
    pub(crate) mod interface;
    pub(crate) mod network;
    pub mod vm;
}

pub(crate) mod instance;

pub(crate) mod control;

pub mod events {
    //! Invocations that no caller waits for: asynchronous ones, and those from SQS queues.
    pub(crate) mod async_invokes;
    pub(crate) mod event_sources;
    pub(crate) mod sqs;
}

pub(crate) mod api;

pub mod service {
    //! The process: start, signals, handover and end, and deploying a template.
    pub(crate) mod serve;
    pub(crate) mod stack;
    pub(crate) mod systemd;
}

pub use service::serve::{Service, run};
pub use worker_container::{LAUNCHER_VERB, launch};
