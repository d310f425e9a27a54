//! Load on a worker: a trace's invocations are sent when the trace says, whether or not earlier ones were
//! answered.

mod drive;
mod trace;

pub use drive::{Plan, Result as LoadResult, Tally, drive};
pub use trace::{Arrival, Trace};
