//! What the worker installs for a runtime that functions name: the clients of the Runtime API for Python and
//! Java, and interpreters that this host lacks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::code::node_imports;
use crate::code::python_packages::{self, Interpreter, RUNTIME};
use crate::code::runtime::{LANGUAGE, Runtime, settings_of_java};
use worker_install::{debian, java, node, ruby, sdk};
use worker_system::lock::lock;

/// A registry that cannot be reached takes time to find out.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// What is installed, of the runtimes that functions of this worker have.
#[derive(Debug)]
pub struct Installed {
    cache: PathBuf,
    /// By the runtime's name.
    provided: Mutex<BTreeMap<String, Provided>>,
    /// AWS' SDK for JavaScript: whether functions may have it, and where it is once one of them needs it.
    may_have_sdk: bool,
    sdk: OnceLock<PathBuf>,
    /// When it could not be installed.
    sdk_failed: Mutex<Option<Instant>>,
}

/// What instances of a runtime see.
#[derive(Clone, Debug, Default)]
pub struct Provided {
    /// Folders, and where.
    pub folders: Vec<(PathBuf, PathBuf)>,
    /// In place of the host's programs and libraries.
    pub system: Option<PathBuf>,
}

impl Provided {
    fn with(mut self, folder: PathBuf, place: &str) -> Provided {
        self.folders.push((folder, place.into()));
        self
    }

    /// A root, and the interpreter in it.
    fn of_system(root: PathBuf) -> Provided {
        let language = root.join(debian::LANGUAGE);
        Provided { system: Some(root), ..Provided::default() }.with(language, LANGUAGE)
    }
}

impl Installed {
    /// Nothing yet.
    pub fn new(cache: &Path, may_have_sdk: bool) -> Installed {
        Installed {
            cache: cache.into(),
            provided: Mutex::default(),
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
        if lock(&self.provided).contains_key(runtime.name()) {
            return Ok(());
        }
        let cache = &self.cache;
        let none = Provided::default();
        let provided = match (runtime, runtime.to_install()) {
            (Runtime::Python(_, name), version) => {
                let interpreter = Interpreter::of(runtime, cache)?;
                let own =
                    version.and(interpreter.root()).map_or(none, |root| Provided::of_system(root.into()));
                own.with(python_packages::client(&interpreter, name, cache)?, RUNTIME)
            }
            (Runtime::Node(..), Some(major)) => none.with(node::provide(major, cache)?, LANGUAGE),
            (Runtime::Java(..), Some(major)) => {
                Provided::of_system(java::provide(major, cache)?).with(java::client(cache)?, RUNTIME)
            }
            (Runtime::Java(program, _), None) => {
                let mut provided = none.with(java::client(cache)?, RUNTIME);
                provided.folders.extend(settings_of_java(program).map(|folder| (folder.clone(), folder)));
                provided
            }
            (Runtime::Ruby(..), Some(version)) => Provided::of_system(ruby::provide(version, cache)?),
            (Runtime::Node(..) | Runtime::Ruby(..), None) | (Runtime::Provided(_) | Runtime::Image, _) => {
                none
            }
        };
        lock(&self.provided).insert(runtime.name().into(), provided);
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

    /// What instances of a runtime see.
    pub fn of(&self, runtime: &Runtime) -> Provided {
        let provided = lock(&self.provided).get(runtime.name()).cloned().unwrap_or_default();
        match (runtime, self.sdk.get()) {
            (Runtime::Node(..), Some(sdk)) => provided.with(sdk.clone(), RUNTIME),
            _ => provided,
        }
    }

    /// All folders, without roots.
    pub fn all(&self) -> Vec<PathBuf> {
        let sdk = self.sdk.get().cloned();
        let provided = lock(&self.provided);
        let seen = provided.values().filter(|provided| provided.system.is_none());
        seen.flat_map(|provided| &provided.folders).map(|(folder, _)| folder.clone()).chain(sdk).collect()
    }
}
