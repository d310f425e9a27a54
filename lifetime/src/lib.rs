//! Profiles of object lifetimes by calling context (LLAMA §4): what `mayfly profile` leaves, read, named and handed on.
//!
//! The heap writes addresses ([`profile_file`] reads them into a [`profile`]); names are found afterwards, outside the program ([`symbols`]); the
//! result goes to people's tools ([`pprof`]) and to training ([`table`]). What training made of it is read by [`model`], for
//! people; the heap reads it itself. [`bind`] gives a model another build's functions, by their names.

pub use lifetime_model::attach;

pub mod bind;
pub mod code;
pub mod label;
pub mod model;
pub mod names;
mod perf_map;
pub mod pprof;
pub mod profile;
pub mod profile_file;
mod profile_write;
pub mod readable;
pub mod root;
pub mod sections;
pub mod symbols;
pub mod table;
