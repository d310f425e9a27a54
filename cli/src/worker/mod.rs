//! The worker of functions: serving, load and reports.

pub mod load;
mod reading;
pub mod report;
pub mod up;
