//! How the worker is set up, and which of Mayfly's libraries its instances have.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::base::name::REGION;
use crate::code::installed::Installed;
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
    /// What is installed for the runtimes of functions.
    pub installed: Installed,
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
    /// The services of this host that functions reach.
    pub reach: Vec<SocketAddr>,
    /// What functions sign calls of AWS' services with.
    pub account: Account,
    /// The folder where functions and layers of callers and accepted events survive the worker; otherwise
    /// they are in memory.
    pub state: Option<PathBuf>,
    /// How templates are read.
    pub template: TemplateOptions,
}

/// What functions sign calls of AWS' services with, and the region that they are for.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    /// `AWS_ACCESS_KEY_ID` of functions.
    pub access_key_id: String,
    /// `AWS_SECRET_ACCESS_KEY` of functions.
    pub secret_access_key: String,
    /// `AWS_SESSION_TOKEN` of functions; that of a user of IAM has none.
    pub session_token: Option<String>,
    /// `AWS_REGION` of functions.
    pub region: String,
}

impl Account {
    /// One that no service of AWS knows.
    pub fn test() -> Account {
        let text = || "test".to_string();
        let region = REGION.to_string();
        Account { access_key_id: text(), secret_access_key: text(), session_token: Some(text()), region }
    }
}

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Account({} in {}, the secrets are not shown)", self.access_key_id, self.region)
    }
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
    /// Folders or archives of this host in place of layers that other accounts publish, by the layer's name.
    pub layers: BTreeMap<String, PathBuf>,
    /// Whether a function that cannot be served ends the start.
    pub strict: bool,
    /// Whether packages must be pinned and hashed.
    pub pinned: bool,
    /// Whether a function runs in the nearest version where this host lacks its runtime's.
    pub nearest_runtime: bool,
    /// Whether functions in Node.js go without AWS' SDK.
    pub without_sdk: bool,
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
    /// Whether instances are restored from snapshots, where that is wanted and pages are shared.
    pub snapshot: bool,
    /// Whether empty sandboxes are kept ready for the next starts.
    pub ready: bool,
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
                processors: 1,
            },
            credentials: None,
            libraries: Libraries::default(),
            installed: Installed::new(folder, true),
            program: folder.into(),
            cache: folder.into(),
            code_folders: Vec::new(),
            image_registries: Vec::new(),
            queues: None,
            outside: false,
            reach: Vec::new(),
            account: Account::test(),
            state: Some(folder.join("state")),
            template: TemplateOptions::default(),
        }
    }
}
