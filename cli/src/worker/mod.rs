//! The worker of functions: serving, load and reports.

pub mod load;
pub mod report;
pub mod up;
