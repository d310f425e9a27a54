//! Models of lifetimes: trained, bound to other builds, asked.

pub mod bind;
pub mod bound;
pub mod named;
pub mod predict;
pub mod train;
