//! Helpers for the worker and the crates beside it: locks, folders of a worker's own, files that a caller
//! names, files of other processes, descriptors, and texts of errors. It contains nothing of functions,
//! instances or HTTP.

pub mod descriptors;
pub mod lock;
pub mod open_below;
pub mod owned_folder;
pub mod processes;
pub mod text;
