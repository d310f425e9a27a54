//! The `mayfly` command, verb by verb, and its readers and simulators.

pub mod child;
pub mod command;
pub mod failure;
pub mod libraries;
pub mod manual;
pub mod model;
pub mod node;
pub mod process;
pub mod profile;
pub mod program;
pub mod progress;
pub mod quantity;
pub mod run;
pub mod settings;
pub mod share;
pub mod sim;
pub mod statistics;
pub mod trace;
pub mod vm;
pub mod worker;
