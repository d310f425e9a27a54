//! The machine of Memento's Table 3 in software: an out-of-order core, caches, TLBs, a page walker and DDR4.
//!
//! It executes nothing. Something else runs the program (QEMU, or a synthetic stream in a test) and tells, block by
//! block, which instructions were executed and which memory they touched; the machine says how many cycles that took and
//! why. One pass in program order, instruction-window-centric: for each instruction the earliest cycle at which it can be
//! fetched, dispatched, issued, completed and committed, given the resources that earlier ones hold.

pub mod allocations;
pub mod block;
pub mod branch;
pub mod cache;
pub mod calendar;
pub mod cause;
pub mod core;
pub mod decode;
pub mod description;
pub mod dram;
pub mod extension;
pub mod hierarchy;
pub mod machine;
pub mod sampling;
pub mod statistics;
pub mod support;
pub mod tlb;

pub use block::{Access, Block};
pub use description::Description;
pub use machine::Machine;
