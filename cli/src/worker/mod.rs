//! The worker of functions: started, loaded, reported on.

pub mod load;
pub mod report;
pub mod up;
