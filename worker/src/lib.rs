//! The worker: serves functions written for AWS Lambda on one machine, each instance in a sandbox of its own.
//!
//! ```text
//!   boto3, aws ──Lambda API──► api ──► worker ──► pool (who serves what)
//!                                        │
//!                                    instance ──► sandbox: a container, or a partition of a VM ──► the function's runtime
//!                                        ▲                                             │
//!                                        └──────────────── Runtime API ◄───────────────┘
//! ```

pub mod api;
mod below;
pub mod code;
mod connections;
mod container;
pub mod count;
mod environment;
pub mod error;
mod event_config;
mod event_store;
pub mod events;
mod extension_api;
pub mod function;
mod function_store;
mod handover;
pub mod history;
pub mod http;
mod http_client;
pub mod image;
pub mod instance;
pub mod invocation;
mod layers;
pub mod limits;
pub mod load;
mod logs;
pub mod machine;
pub mod memory;
pub mod name;
mod network;
pub mod options;
pub mod output;
mod ownership;
pub mod pool;
pub mod python;
pub mod queues;
mod readings;
pub mod runtime;
mod runtime_api;
mod runtime_files;
mod sampler;
pub mod sandbox;
mod service;
mod service_manager;
pub mod settings;
pub mod sigv4;
mod sources;
mod stack;
mod state_file;
pub mod template;
mod time;
mod traces;
pub mod worker;

pub use container::{LAUNCHER_VERB, launch};
pub use service::{Service, run};
