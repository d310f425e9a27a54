//! Instances as processes of this host: namespaces, a read-only root, a private /tmp, cgroup limits,
//! seccomp, no privileges.
//!
//! ```text
//!   worker ──spawn──► monitor ──unshare, fork──► init, process 1 inside ──fork──► the function's runtime
//!      │                │ dies with the worker      │ dies with the monitor
//!      ├── control ─────┘ and ends init when        ├ everything inside dies with process 1
//!      │   socket         the socket closes         │
//!      └── order ───────────────────────────────────┘ root, user and limits of one function
//! ```
//! Until process 1 has its order the sandbox is empty, and any function's.
//!
//! The monitor is this same program, started under [`LAUNCHER_VERB`]. The Runtime API's socket is made
//! inside the instance's own network namespace and handed out to the worker, so the function reaches it on
//! its loopback device and reaches nothing else.

pub mod cgroup;
pub mod disk;
mod ending;
mod launcher;
mod limits;
mod order;
pub mod page_out;
pub mod page_store;
mod proc;
pub mod rights;
mod root;
pub mod spawn;
pub mod steps;
mod syscalls;

pub use ending::Ending;
pub use launcher::launch;

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use worker_snapshot::{Entry, MappedFile};

/// The first argument under which `mayfly` becomes the monitor of a sandbox, reading a [`Spec`] from its
/// stdin.
pub const LAUNCHER_VERB: &str = "sandbox-monitor";
/// The user id that a function sees as its own if the worker is not root.
const INSIDE_USER: u32 = 993;
/// Open files of one process in an instance.
pub const OPEN_FILES: u64 = 1024;
/// Port of the Runtime API on the loopback device of every instance.
pub const RUNTIME_PORT: u16 = 9001;

/// A file or folder of the host, seen read-only inside.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bind {
    /// On the host.
    pub source: PathBuf,
    /// Inside.
    pub target: PathBuf,
}

/// How the runtime begins.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub enum Beginning {
    /// The command is executed.
    #[default]
    Command,
    /// The command is executed, with a line to the worker as descriptor [`worker_snapshot::WAITS`]: it is to
    /// be taken.
    Taken,
    /// It becomes the process that was taken.
    Restored {
        /// If these files of the disk are as they were.
        files: Vec<MappedFile>,
        /// With these in /tmp.
        entries: Vec<Entry>,
    },
}

impl Beginning {
    /// Descriptors that come with the order: the line; program, pages and line.
    fn descriptors(&self) -> usize {
        match self {
            Beginning::Command => 0,
            Beginning::Taken => 1,
            Beginning::Restored { .. } => 3,
        }
    }
}

/// The worker's order to the monitor: an empty sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Preparation {
    /// The worker's process id.
    pub worker: u32,
    /// An empty folder on which the root is assembled; only the sandbox sees what is mounted there.
    pub mount_point: PathBuf,
    /// The files of cgroups that the monitor writes itself into.
    pub cgroup_files: Vec<PathBuf>,
    /// The freezer's cgroup that process 1 enters and the monitor does not, in version 1.
    pub freezer: Option<PathBuf>,
}

/// The worker's order to process 1 of an empty sandbox: what it is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// In place of the system's own programs and libraries: the root of an image.
    pub image: Option<PathBuf>,
    /// In place of the host's own programs and libraries, where there is no image: a root with folders as the
    /// host's, of which instances see /usr and /etc.
    pub system: Option<PathBuf>,
    /// Beside the system's own programs and libraries.
    pub binds: Vec<Bind>,
    /// Folders of the host's that look empty inside.
    pub hidden: Vec<PathBuf>,
    /// Size of /tmp, where it is memory: where no disk comes with the order.
    pub tmp_mib: u32,
    /// Memory of the instance, which it sees as the machine's.
    pub memory_mib: u32,
    /// Host user and group of the function's processes, where the worker is root.
    pub user: u32,
    /// Host name inside.
    pub host_name: String,
    /// Whether all instances have the same addresses (no ASLR), so that pages with pointers are alike.
    pub fixed_layout: bool,
    /// Whether there is a network beside the loopback device, which the worker makes: the contents of
    /// /etc/resolv.conf.
    pub resolvers: Option<String>,
    /// Addresses inside on which process 1 listens, beside the Runtime API's.
    pub listen: Vec<SocketAddr>,
    /// Names of the loopback address, beside `localhost`.
    pub loopback_names: Vec<String>,
    /// How the runtime begins.
    pub beginning: Beginning,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Where they are started.
    pub folder: String,
    /// All of its environment.
    pub environment: Vec<(String, String)>,
}
