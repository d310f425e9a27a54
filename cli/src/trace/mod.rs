//! Traces: recorded, and replayed on pages and on Mayfly's heap.

pub mod confusion;
pub mod distribution;
pub mod driver;
pub mod file;
pub mod live_objects;
pub mod on_heap;
pub mod oracle;
pub mod pages;
pub mod placement;
pub mod plot;
pub mod record;
pub mod replay;
pub mod simulation;
pub mod timeline;
pub mod writer;
