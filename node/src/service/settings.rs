//! The agent's settings.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::base::request::Name;

/// The agent's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The `mayfly` command, which is also the page store.
    pub program: PathBuf,
    /// The agent's folder, which containers mount parts of: at the same path for the agent and for the
    /// runtime.
    pub data: PathBuf,
    /// Libraries for programs on glibc.
    pub glibc: PathBuf,
    /// Libraries for programs on musl.
    pub musl: Option<PathBuf>,
    /// Models, `NAME.mayfly-model`.
    pub models: Option<PathBuf>,
    /// The storage of profiles: a folder, or `s3://BUCKET/PREFIX`.
    pub profiles: String,
    /// The folder for CDI specifications, if any.
    pub cdi: Option<PathBuf>,
    /// The runtime's NRI socket, if any.
    pub nri: Option<PathBuf>,
    /// Trust domains with a CDI device.
    pub domains: Vec<Name>,
    /// Bytes that each domain's store may hold.
    pub store_bytes: u64,
    /// The address of `/metrics` and `/healthz`.
    pub listen: Option<SocketAddr>,
}
