//! The worker of functions: serving, load and reports.

mod check;
mod credentials;
pub mod load;
mod reach;
mod reading;
pub mod report;
pub mod up;
