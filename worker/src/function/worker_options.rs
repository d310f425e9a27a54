//! How the worker is set up, and which of Mayfly's libraries its instances have.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::code::python_packages::Clients;
use crate::http::sigv4::Credentials;
use worker_pool::Capacity;

/// How the worker is set up.
#[derive(Debug)]
pub struct Options {
    /// Where the Lambda API listens.
    pub address: SocketAddr,
    /// What the instances may use.
    pub capacity: Capacity,
    /// Requests must be signed with these, if given.
    pub credentials: Option<Credentials>,
    /// Mayfly's libraries in instances, which save memory.
    pub libraries: Libraries,
    /// Lambda's own clients of the Runtime API for functions in Python.
    pub python: Clients,
    /// `mayfly` itself, which becomes the monitor of each sandbox.
    pub program: PathBuf,
    /// Where unpacked code lies while the worker runs.
    pub cache: PathBuf,
    /// Folders below which callers may name code.
    pub code_folders: Vec<PathBuf>,
    /// Registries on this machine from which callers may name images.
    pub image_registries: Vec<SocketAddr>,
    /// The address of the server whose queues functions are called from.
    pub queues: Option<SocketAddr>,
    /// Whether functions without a setting for it reach the outside world.
    pub outside: bool,
    /// The folder where functions and layers of callers and accepted events survive the worker; otherwise
    /// they are in memory.
    pub state: Option<PathBuf>,
    /// How templates are read.
    pub template: TemplateOptions,
}

/// How a template is read.
#[derive(Clone, Debug, Default)]
pub struct TemplateOptions {
    /// Values of parameters: `NAME=VALUE`, several separated by spaces.
    pub parameters: Vec<String>,
    /// A file with values of functions' variables, as `sam local` has it.
    pub variables: Option<PathBuf>,
    /// Folders of this host in place of buckets, by the bucket's name.
    pub buckets: BTreeMap<String, PathBuf>,
    /// Whether a function that cannot be served ends the start.
    pub strict: bool,
    /// Whether packages must be pinned and hashed.
    pub pinned: bool,
    /// Whether a function runs in the nearest version where this host lacks its runtime's.
    pub nearest_runtime: bool,
}

/// Mayfly's libraries for instances; absent ones are left out.
#[derive(Clone, Debug, Default)]
pub struct Libraries {
    /// `libmayfly_heap.so`, preloaded.
    pub heap: Option<PathBuf>,
    /// `libmayfly_merge.so`: instances of a function share pages.
    pub merge: Option<PathBuf>,
    /// `libmayfly_rest.so`, which uses both while an instance is idle.
    pub rest: Option<PathBuf>,
    /// What an idle instance advises to merge.
    pub advise: Advise,
}

/// What an idle instance advises to merge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Advise {
    /// All its anonymous memory.
    #[default]
    Whole,
    /// Only what the function's code has named (UPM §IV-C).
    Named,
}

#[cfg(test)]
impl Options {
    /// Options of a worker whose files all lie in this folder, also its state.
    pub(crate) fn of_tests(folder: &std::path::Path) -> Options {
        let second = std::time::Duration::from_secs(1);
        Options {
            address: ([127, 0, 0, 1], 0).into(),
            capacity: Capacity {
                concurrency: 1,
                starting: 1,
                memory_mib: 128,
                queue: 1,
                queue_wait: second,
                keep_alive: second,
            },
            credentials: None,
            libraries: Libraries::default(),
            python: Clients::new(folder),
            program: folder.into(),
            cache: folder.into(),
            code_folders: Vec::new(),
            image_registries: Vec::new(),
            queues: None,
            outside: false,
            state: Some(folder.join("state")),
            template: TemplateOptions::default(),
        }
    }
}
