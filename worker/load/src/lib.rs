//! Load on a worker: sends a trace's invocations at the trace's times, whether or not earlier ones were
//! answered.

mod drive;
mod trace;

pub use drive::{Plan, Result as LoadResult, Tally, drive};
pub use trace::{Arrival, Trace};
