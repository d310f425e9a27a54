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
//! Folders are layers, declared here from the bottom up. Each imports only from those before it, and no
//! modules import one another in a circle (`tests/modules` checks both). In `sandbox`, containers and VMs
//! import nothing of each other; nor do `sandbox` and `state`.
//!
//! | layer | its work |
//! | --- | --- |
//! | [`base`] | errors of the API, Lambda's limits, names, times, memory of processes |
//! | [`http`] | serving and sending HTTP/1.1 within bounds; signatures |
//! | [`invocation`] | one request to a function: its output, log lines, counters, trace |
//! | [`code`] | code as folders: .zips, images, Lambda layers, runtimes and their files |
//! | [`function`] | a function's settings, versions and template; the options of a worker |
//! | [`state`] | functions and events on disk; handing over to a new version of the worker |
//! | [`sandbox`] | the interface to where an instance runs, and its two kinds: [`sandbox::containers`], [`sandbox::vm`] |
//! | [`instance`] | one instance: the Runtime API, the Extensions API, its idle work, its end |
//! | [`control`] | all functions and instances; carries out the pool's decisions |
//! | [`events`] | asynchronous invocations, messages of SQS queues, schedules |
//! | [`gateway`] | HTTP APIs: routes, authorisers, events and answers in API Gateway's formats |
//! | [`api`] | the Lambda API, function URLs, metrics, logs, the page |
//! | [`service`] | the process: start, template, signals, handover, end |
//!
//! Beside it are crates that import nothing of the worker. `worker/pool` decides which instance serves
//! which request. `worker/image` reads container images, `worker/install` installs runtimes,
//! `worker/container` runs an instance as a container, `worker/snapshot` takes a process and restores it,
//! `worker/page` draws the page. `worker/system` wraps
//! the parts of the operating system that they and the worker need. `worker/load` calls a worker.
//! `worker/rest` is the library that does an instance's idle work.

pub mod base {
    //! What every other layer uses: errors of the API, levels of log lines, limits, names, times, memory of
    //! processes.
    pub(crate) mod error;
    pub(crate) mod level;
    pub(crate) mod limits;
    pub(crate) mod name;
    pub(crate) mod process_memory;
    pub(crate) mod resource_policy;
    pub(crate) mod time;
}

pub mod http;

pub mod invocation {
    //! One request to a function: what it is, its output, log lines, counters and trace.
    pub(crate) mod counters;
    pub(crate) mod id;
    pub(crate) mod logs;
    pub(crate) mod output;
    pub(crate) mod platform;
    pub(crate) mod reasons;
    pub(crate) mod request;
    pub(crate) mod traces;
}

pub(crate) mod code;

pub mod function {
    //! What a function is: its settings, its versions, and the template that declares it. Also what a
    //! worker is started with.
    pub(crate) mod attached;
    pub(crate) mod capacity_provider;
    pub(crate) mod definition;
    pub(crate) mod event_config;
    pub(crate) mod failed;
    pub(crate) mod filters;
    pub(crate) mod http_api;
    pub(crate) mod logging;
    pub(crate) mod queue_source;
    pub(crate) mod schedule;
    pub(crate) mod settings;
    pub(crate) mod snap_start;
    pub(crate) mod template;
    pub(crate) mod tenancy;
    pub(crate) mod variables;
    pub(crate) mod wanted;
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
    pub(crate) mod accept;
    pub(crate) mod account;
    mod callers;
    mod container;
    pub(crate) mod containers;
    pub(crate) mod environment;
    mod first_request;
    pub(crate) mod history;
    pub(crate) mod interface;
    pub(crate) mod interpreters;
    mod line;
    pub(crate) mod network;
    pub(crate) mod reach;
    mod restoring;
    mod runtime_process;
    mod saved_snapshots;
    mod snapshots;
    mod taken;
    pub mod vm;
}

pub(crate) mod instance;

pub(crate) mod control;

pub mod events {
    //! Invocations that no caller waits for: asynchronous ones, and those from SQS queues and schedules.
    pub(crate) mod async_invokes;
    pub(crate) mod elsewhere;
    pub(crate) mod event_sources;
    pub(crate) mod schedules;
    pub(crate) mod sqs;
}

pub(crate) mod gateway;

pub(crate) mod api;

pub mod service {
    //! The process: start, signals, handover and end, and deploying a template.
    pub(crate) mod changes;
    pub mod check;
    pub(crate) mod deploy;
    pub(crate) mod http_apis;
    pub(crate) mod open_files;
    mod parts;
    pub(crate) mod serve;
    pub(crate) mod sources;
    pub mod stack;
    pub(crate) mod start;
    pub(crate) mod systemd;
    pub(crate) mod vm_domains;
}

#[cfg(fuzzing)]
pub mod fuzzing;

pub use service::serve::run;
pub use service::start::Service;
pub use worker_container::{LAUNCHER_VERB, RUNTIME_PORT, launch};
