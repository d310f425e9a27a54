//! Functions and layers that callers have made, on disk: a restarted worker has them again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use anyhow::{Context, Result};
use redb::{ReadableDatabase, ReadableTable};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::base::name;
use crate::code::lambda_layers::Layer;
use crate::code::{Code, Unpacked};
use crate::function::attached::{Attached, EventInvoke};
use crate::function::definition::{Alias, Deployment, Function, FunctionUrl};
use crate::function::event_config::EventConfig;
use crate::function::queue_source::Mappings;
use crate::function::settings::Settings;
use crate::state::state_file::{StateFile, Table};

/// By name: a [`StoredFunction`] in JSON.
const FUNCTIONS: Table = Table::new("functions");
/// By name: a [`StoredLayer`] in JSON.
const LAYERS: Table = Table::new("layers");
/// All [`Mappings`] of callers, in JSON, by one name.
const MAPPINGS: Table = Table::new("mappings");
/// That name.
const ALL: &str = "all";
/// The folder beside it with unpacked code.
const CODE: &str = "code";

/// All versions of a layer.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredLayer {
    /// The number of the latest, which may be deleted.
    pub latest: u64,
    pub versions: Vec<Layer>,
}

/// $LATEST or a published version of a function.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredDeployment {
    pub version: String,
    pub settings: Settings,
    pub code: Code,
    /// The layers as they were, also deleted ones.
    pub layers: Vec<Layer>,
    pub revision: String,
    pub modified: SystemTime,
}

/// A function with its versions.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredFunction {
    pub deployment: StoredDeployment,
    pub versions: BTreeMap<u64, StoredDeployment>,
    pub latest_version: u64,
    pub reserved: Option<u32>,
    pub url: Option<FunctionUrl>,
    pub tags: BTreeMap<String, String>,
    pub aliases: BTreeMap<String, Alias>,
    #[serde(default)]
    pub attached: Attached,
    /// As workers wrote it before versions and aliases had their own.
    #[serde(default, skip_serializing)]
    events: Option<EventConfig>,
}

impl StoredDeployment {
    fn of(deployment: &Deployment) -> StoredDeployment {
        StoredDeployment {
            version: deployment.version.clone(),
            settings: deployment.settings.clone(),
            code: deployment.code.clone(),
            layers: deployment.opt.layers.iter().map(|layer| (**layer).clone()).collect(),
            revision: deployment.revision.clone(),
            modified: deployment.modified,
        }
    }

    fn codes(&mut self) -> impl Iterator<Item = &mut Code> {
        std::iter::once(&mut self.code).chain(self.layers.iter_mut().map(|layer| &mut layer.code))
    }
}

impl StoredFunction {
    /// A function as it is now.
    pub fn of(function: &Function) -> StoredFunction {
        let published = function.versions.iter();
        StoredFunction {
            deployment: StoredDeployment::of(&function.deployment),
            versions: published.map(|(number, version)| (*number, StoredDeployment::of(version))).collect(),
            latest_version: function.latest_version,
            reserved: function.reserved,
            url: function.url.clone(),
            tags: function.tags.clone(),
            aliases: function.aliases.clone(),
            attached: function.attached.clone(),
            events: None,
        }
    }

    /// What was attached to it.
    pub fn attached(&mut self) -> Attached {
        let mut attached = std::mem::take(&mut self.attached);
        if let Some(config) = self.events.take() {
            let modified = self.deployment.modified;
            attached.events.entry(name::LATEST.into()).or_insert(EventInvoke { config, modified });
        }
        attached
    }

    fn codes(&mut self) -> impl Iterator<Item = &mut Code> {
        std::iter::once(&mut self.deployment)
            .chain(self.versions.values_mut())
            .flat_map(StoredDeployment::codes)
    }
}

/// All that an earlier worker has stored.
#[derive(Default)]
pub(crate) struct StoredState {
    pub layers: BTreeMap<String, StoredLayer>,
    pub functions: BTreeMap<String, StoredFunction>,
}

/// The file, and the folder with code. One worker has them at a time.
pub(crate) struct FunctionStore {
    file: StateFile,
    code: PathBuf,
    /// Whether code is removed with its last user: not while the worker starts or ends.
    may_go: Arc<AtomicBool>,
}

impl FunctionStore {
    /// Opens the file in this folder, or makes it.
    ///
    /// # Errors
    /// Another worker has it, or it cannot be read or written.
    pub fn open(folder: &Path) -> Result<FunctionStore> {
        let file = StateFile::open(folder, "functions.redb", &[FUNCTIONS, LAYERS, MAPPINGS])?;
        // An absolute path, which instances find from any folder.
        let code = folder.canonicalize()?.join(CODE);
        std::fs::create_dir_all(&code).with_context(|| format!("cannot make {}", code.display()))?;
        Ok(FunctionStore { file, code, may_go: Arc::default() })
    }

    /// Closes the file for another worker, or opens it again. Code stays.
    ///
    /// # Errors
    /// Another worker has it, or it cannot be read or written.
    pub fn set_in_use(&self, in_use: bool) -> Result<()> {
        self.file.set_in_use(in_use)
    }

    /// The folder for unpacked code that outlives the worker.
    pub fn code_folder(&self) -> &Path {
        &self.code
    }

    /// Whether code is removed with its last user; set while the worker serves.
    pub fn may_go(&self) -> &Arc<AtomicBool> {
        &self.may_go
    }

    /// Stores a function as it is, or that there is none. The last change wins: `now` is called while
    /// no other is written.
    ///
    /// # Errors
    /// It could not be written.
    pub fn put_function(&self, name: &str, now: impl FnOnce() -> Option<StoredFunction>) -> Result<()> {
        self.put(FUNCTIONS, name, now)
    }

    /// Stores a layer as it is, or that there is none.
    ///
    /// # Errors
    /// It could not be written.
    pub fn put_layer(&self, name: &str, now: impl FnOnce() -> Option<StoredLayer>) -> Result<()> {
        self.put(LAYERS, name, now)
    }

    /// Stores the queues that callers have functions called from.
    ///
    /// # Errors
    /// It could not be written.
    pub fn put_mappings(&self, now: impl FnOnce() -> Mappings) -> Result<()> {
        self.put(MAPPINGS, ALL, || Some(now()))
    }

    /// The queues that callers have functions called from.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn mappings(&self) -> Result<Mappings> {
        let mut read: BTreeMap<String, Mappings> = self.read(MAPPINGS, &mut 0)?;
        Ok(read.remove(ALL).unwrap_or_default())
    }

    fn put<T: Serialize>(&self, table: Table, name: &str, now: impl FnOnce() -> Option<T>) -> Result<()> {
        self.file.change(|begun| {
            match now() {
                Some(now) => drop(begun.open_table(table)?.insert(name, &*serde_json::to_vec(&now)?)?),
                None => drop(begun.open_table(table)?.remove(name)?),
            }
            Ok(())
        })
    }

    /// All records that can be read. Code that no record names is removed: its worker was killed before it
    /// stored the record.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn all(&self) -> Result<StoredState> {
        let (mut broken, mut stored) = (0, StoredState::default());
        stored.layers = self.read(LAYERS, &mut broken)?;
        stored.functions = self.read(FUNCTIONS, &mut broken)?;
        let mut unpacked: BTreeMap<PathBuf, Arc<Unpacked>> = BTreeMap::new();
        let of_layers = stored.layers.values_mut().flat_map(|layer| layer.versions.iter_mut());
        let of_layers = of_layers.map(|version| &mut version.code);
        for code in of_layers.chain(stored.functions.values_mut().flat_map(StoredFunction::codes)) {
            if code.folder.starts_with(&self.code) {
                let folder = code.folder.clone();
                let again = || Unpacked::again(code.folder.clone(), self.may_go.clone());
                let shared = unpacked.entry(folder).or_insert_with(again).clone();
                code.again(shared);
            }
        }
        let used: BTreeSet<&PathBuf> = unpacked.keys().collect();
        for entry in std::fs::read_dir(&self.code)?.flatten().map(|entry| entry.path()) {
            // The folders of records that could not be read are unknown.
            if broken == 0
                && !used.contains(&entry)
                && let Err(error) = std::fs::remove_dir_all(&entry)
            {
                tracing::warn!("cannot remove {}: {error}", entry.display());
            }
        }
        Ok(stored)
    }

    fn read<T: DeserializeOwned>(&self, table: Table, broken: &mut usize) -> Result<BTreeMap<String, T>> {
        let table = self.file.read(|database| Ok(database.begin_read()?.open_table(table)?))?;
        let mut found = BTreeMap::new();
        for entry in table.iter()? {
            let (name, text) = entry?;
            let name = name.value().to_string();
            match serde_json::from_slice(text.value()) {
                Ok(read) => drop(found.insert(name, read)),
                Err(error) => {
                    *broken += 1;
                    tracing::error!("{name} is kept by --state, but cannot be served: {error}");
                }
            }
        }
        Ok(found)
    }
}
