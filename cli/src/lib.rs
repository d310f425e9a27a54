//! What the `mayfly` command does, verb by verb, and the readers and simulators it does it with.

pub mod child;
pub mod failure;
pub mod heap_driver;
pub mod heap_replay;
pub mod lifetime;
pub mod live_objects;
pub mod oracle;
pub mod pages;
pub mod plot;
pub mod program;
pub mod progress;
pub mod quantity;
pub mod record;
pub mod replay;
pub mod run;
pub mod settings;
pub mod simulation;
pub mod statistics;
pub mod timeline;
pub mod trace_file;
pub mod vm;
pub mod vm_boot;
pub mod vm_instances;
pub mod vm_partitions;
pub mod vm_quantity;
pub mod vm_state;
