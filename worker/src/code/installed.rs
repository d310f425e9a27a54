//! What the worker installs for a runtime that functions name: the clients of the Runtime API for Python, and
//! interpreters that this host lacks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::code::node_imports;
use crate::code::python_packages::{self, RUNTIME};
use crate::code::runtime::{LANGUAGE, Runtime};
use worker_install::{node, sdk};
use worker_system::lock::lock;

/// A registry that cannot be reached takes time to find out.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// What is installed, of the runtimes that functions of this worker have.
#[derive(Debug)]
pub struct Installed {
    cache: PathBuf,
    /// By the runtime's name: folders, and where instances see them.
    folders: Mutex<BTreeMap<String, Vec<(PathBuf, &'static str)>>>,
    /// AWS' SDK for JavaScript: whether functions may have it, and where it is once one of them needs it.
    may_have_sdk: bool,
    sdk: OnceLock<PathBuf>,
    /// When it could not be installed.
    sdk_failed: Mutex<Option<Instant>>,
}

impl Installed {
    /// Nothing yet.
    pub fn new(cache: &Path, may_have_sdk: bool) -> Installed {
        Installed {
            cache: cache.into(),
            folders: Mutex::default(),
            may_have_sdk,
            sdk: OnceLock::new(),
            sdk_failed: Mutex::default(),
        }
    }

    /// Where it lies.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// Installs what this runtime needs, unless it is there. That may take minutes.
    ///
    /// # Errors
    /// It cannot be installed.
    pub fn provide(&self, runtime: &Runtime) -> Result<()> {
        if lock(&self.folders).contains_key(runtime.name()) {
            return Ok(());
        }
        let folders = match runtime {
            Runtime::Python(program, name) => {
                vec![(python_packages::client(program, name, &self.cache)?, RUNTIME)]
            }
            Runtime::Node(..) => match runtime.node_to_install() {
                Some(major) => vec![(node::provide(major, &self.cache)?, LANGUAGE)],
                None => Vec::new(),
            },
            Runtime::Provided(_) | Runtime::Image => Vec::new(),
        };
        lock(&self.folders).insert(runtime.name().into(), folders);
        Ok(())
    }

    /// Installs AWS' SDK if code in Node.js names packages of it that lie neither beside it nor in one of the
    /// `layers`. Later functions have it, too. Without it the function is served: it may not need all that it
    /// names.
    pub fn provide_sdk(&self, runtime: &Runtime, code: &Path, layers: &[PathBuf]) {
        if !matches!(runtime, Runtime::Node(..)) || !self.may_have_sdk {
            return;
        }
        let mut absent = node_imports::absent(code);
        let places: Vec<PathBuf> = layers.iter().map(|layer| layer.join("nodejs/node_modules")).collect();
        absent.retain(|name| !places.iter().any(|place| place.join(name).exists()));
        if absent.is_empty() {
            return;
        }
        let unknown: Vec<&str> = absent.iter().map(String::as_str).filter(|name| !sdk::has(name)).collect();
        if !unknown.is_empty() {
            tracing::warn!(
                "{}: the SDK that the worker installs lacks {}: the function needs a package of its own",
                code.display(),
                unknown.join(", ")
            );
        }
        let mut failed = lock(&self.sdk_failed);
        let tried = failed.is_some_and(|failed| failed.elapsed() < TRY_AGAIN);
        if self.sdk.get().is_some() || unknown.len() == absent.len() || tried {
            return;
        }
        match sdk::provide(&self.cache) {
            Ok(folder) => drop(self.sdk.set(folder)),
            Err(error) => {
                tracing::warn!("{error:#}: functions do without");
                *failed = Some(Instant::now());
            }
        }
    }

    /// The folders of a runtime, and where its instances see them.
    pub fn of(&self, runtime: &Runtime) -> Vec<(PathBuf, &'static str)> {
        let mut folders = lock(&self.folders).get(runtime.name()).cloned().unwrap_or_default();
        if let (Runtime::Node(..), Some(sdk)) = (runtime, self.sdk.get()) {
            folders.push((sdk.clone(), RUNTIME));
        }
        folders
    }

    /// All folders.
    pub fn all(&self) -> Vec<PathBuf> {
        let sdk = self.sdk.get().cloned();
        lock(&self.folders).values().flatten().map(|(folder, _)| folder.clone()).chain(sdk).collect()
    }
}
