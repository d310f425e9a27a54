//! How an agent is set up.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::base::request::Name;

/// How an agent is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The `mayfly` command, which is also the page store.
    pub program: PathBuf,
    /// The agent's folder, at the same path for the agent and for the runtime: containers mount what is in it.
    pub data: PathBuf,
    /// Libraries for programs on glibc.
    pub glibc: PathBuf,
    /// Libraries for programs on musl.
    pub musl: Option<PathBuf>,
    /// Models, `NAME.mayfly-model`.
    pub models: Option<PathBuf>,
    /// Where profiles go: a folder, or `s3://BUCKET/PREFIX`.
    pub profiles: String,
    /// Where CDI specifications go, if they do.
    pub cdi: Option<PathBuf>,
    /// The runtime's NRI socket, if there is one.
    pub nri: Option<PathBuf>,
    /// Trust domains that CDI devices name.
    pub domains: Vec<Name>,
    /// Bytes that each domain's store may hold.
    pub store_bytes: u64,
    /// Where `/metrics` and `/healthz` are.
    pub listen: Option<SocketAddr>,
}
