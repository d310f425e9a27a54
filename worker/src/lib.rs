//! The worker: serves functions written for AWS Lambda on one machine, each instance in a sandbox of its own.
//!
//! ```text
//!   boto3, aws ──Lambda API──► api ──► worker ──► pool (who serves what)
//!                                        │
//!                                    instance ──► sandbox: a container, or a partition of a VM ──► the function's runtime
//!                                        ▲                                             │
//!                                        └──────────────── Runtime API ◄───────────────┘
//! ```

mod api;
mod below;
mod code;
mod connections;
mod container;
mod count;
mod environment;
mod error;
mod event_config;
mod event_store;
mod events;
mod extension_api;
mod function;
mod function_store;
mod handover;
mod history;
mod http;
mod http_client;
mod image;
mod instance;
mod invocation;
mod layers;
mod limits;
pub mod load;
mod lock;
mod logs;
pub mod machine;
mod memory;
mod name;
mod network;
pub mod options;
mod output;
mod ownership;
pub mod pool;
mod python;
mod queues;
mod readings;
mod runtime;
mod runtime_api;
mod runtime_files;
mod sampler;
mod sandbox;
mod service;
mod service_manager;
mod settings;
pub mod sigv4;
mod sources;
mod stack;
mod state_file;
mod template;
mod time;
mod traces;
mod worker;

pub use container::{LAUNCHER_VERB, launch};
pub use service::{Service, run};
