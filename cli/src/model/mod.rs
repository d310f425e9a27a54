//! Models of lifetimes: trained, bound to other builds, and measured.

pub mod bind;
pub mod bound;
pub mod named;
pub mod predict;
pub mod train;
