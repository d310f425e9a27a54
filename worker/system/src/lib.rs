//! What the worker and the crates beside it ask of the operating system: locks, folders of a worker's own,
//! files that a caller names, and texts of errors. It knows nothing of functions, instances or HTTP.

pub mod lock;
pub mod open_below;
pub mod owned_folder;
pub mod text;
