//! The machine of Memento's Table 3 in software: an out-of-order core, caches, TLBs, a page walker and DDR4.
//!
//! It executes nothing. Something else runs the program (QEMU, or a synthetic stream in a test) and reports,
//! block by block, which instructions were executed and which memory they touched; the machine computes how
//! many cycles that took and why. One pass in program order, instruction-window-centric: for each instruction
//! the earliest cycle at which it can be fetched, dispatched, issued, completed and committed, given the
//! resources that earlier ones hold.
//!
//! Layers, from the bottom up; each imports from those before it only (`tests/modules` checks that):
//!
//! | layer | modules | what |
//! | --- | --- | --- |
//! | [`base`] | [`base::description`], [`base::calendar`], [`base::cause`] | the machine's sizes and latencies; which cycles of a resource are taken; why a cycle passed, and for whom |
//! | [`isa`] | [`isa::block`], [`isa::decode`] | blocks of instructions, and how x86 is decoded into them |
//! | [`memory`] | [`memory::cache`], [`memory::replacement`], [`memory::dram`], [`memory::hierarchy`], [`memory::tlb`] | one cache, which of its lines is replaced, DDR4, all levels together; TLBs and the page walker |
//! | [`core`] | [`core::branch`], [`core::pipeline`] | the branch predictor, the out-of-order core |
//! | | [`core::extension`], [`core::support`] | Memento's units beside a core; SpeedMalloc's support core |
//! | [`system`] | [`system::machine`], [`system::sampling`] | cores, memory and units together; sampled runs |
//! | | [`system::allocations`], [`system::pages`] | the program's objects; the pages that are held |
//! | | [`system::statistics`], [`system::trace`] | everything that is counted; instructions for ChampSim |
//! | | [`system::replay`] | a trace of allocations on a machine without a guest |

pub mod base {
    //! What every other layer uses.
    pub mod calendar;
    pub mod cause;
    pub mod description;
}

pub mod isa {
    //! Instructions as the machine receives them.
    pub mod block;
    pub mod decode;
}

pub mod memory {
    //! Caches, TLBs and DRAM.
    pub mod cache;
    pub mod dram;
    pub mod hierarchy;
    pub mod replacement;
    pub mod tlb;
}

pub mod core {
    //! Cores, and the units beside them.
    pub mod branch;
    pub mod extension;
    pub mod pipeline;
    pub mod support;
}

pub mod system {
    //! The whole machine, and what it counts.
    pub mod allocations;
    pub mod machine;
    pub mod pages;
    pub mod replay;
    pub mod sampling;
    pub mod statistics;
    pub mod trace;
}

pub use base::description::Description;
pub use isa::block::{Access, Block};
pub use system::machine::Machine;
