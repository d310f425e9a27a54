//! Snapshots that outlive the worker, with `--state`: saved once one has been restored well, and loaded when
//! an instance of the same function starts first. `worker_snapshot::saved` writes and reads them.
//!
//! A saved snapshot is of use for all that was there when it was taken: the function's code, layers, settings
//! and variables, this program, the system's packages ([`purpose`]), the machine and its kernel, and the
//! files that it has mapped. Else it is removed with a line, and the function starts as ever.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::json;
use worker_container::Bind;
use worker_snapshot::saved::{self, digest};
use worker_snapshot::{MappedFile, Snapshot};

use crate::function::definition::Deployment;
use crate::function::worker_options::Options;
use crate::sandbox::environment::{self, Sharing};
use crate::sandbox::interface::Order;
use crate::sandbox::snapshots::disk_folder;

/// Their folder in that of `--state`.
const FOLDER: &str = "snapshots";
/// Variables that each instance is given anew.
const OF_INSTANCES: [&str; 4] = [
    "AWS_LAMBDA_INITIALIZATION_TYPE",
    "AWS_LAMBDA_LOG_STREAM_NAME",
    "AWS_LAMBDA_METADATA_TOKEN",
    "PYTHONHASHSEED",
];
/// What package managers write with every change: of dpkg, rpm, apk and pacman.
const PACKAGES: [&str; 5] = [
    "/var/lib/dpkg/status",
    "/usr/lib/sysimage/rpm/rpmdb.sqlite",
    "/var/lib/rpm/rpmdb.sqlite",
    "/lib/apk/db/installed",
    "/var/lib/pacman/local",
];

/// The folder with saved snapshots.
pub(super) struct SavedSnapshots {
    folder: Arc<OwnedFd>,
    path: PathBuf,
    most_bytes: u64,
}

/// What a snapshot is saved for.
struct Wanted {
    /// Of its files.
    name: String,
    purpose: String,
    /// What may be laid down anew between two workers.
    binds: Vec<Bind>,
}

impl Wanted {
    fn new(order: &Order, options: &Options, folder: &Path) -> Result<Wanted> {
        let deployment = &order.deployment;
        let name = file_name(&deployment.name, &deployment.version);
        let spec = environment::program_spec(order, options, folder, Sharing::No);
        let purpose = purpose(deployment, &spec.command, &spec.environment)?;
        Ok(Wanted { name, purpose, binds: spec.binds })
    }

    /// Opens a mapped file that may be laid down anew.
    fn open(&self, file: &MappedFile) -> Option<(PathBuf, File)> {
        let below =
            |bind: &Bind| Some((bind.source.clone(), file.path.strip_prefix(&bind.target).ok()?.to_owned()));
        // Of binds within one another the later one is seen.
        let (source, rest) = self.binds.iter().rev().find_map(below)?;
        let outside = if rest.as_os_str().is_empty() { source } else { source.join(rest) };
        let opened = File::open(&outside).ok()?;
        Some((outside, opened))
    }
}

impl SavedSnapshots {
    /// Those in the folder of `--state`; none where it is memory, forbids programs, or the worker may not
    /// mount: there no snapshot lies on the disk.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(state: &Path, most_bytes: u64) -> Result<Option<SavedSnapshots>> {
        let path = state.join(FOLDER);
        let made = fs::DirBuilder::new().mode(0o700).recursive(true).create(&path);
        made.with_context(|| format!("cannot make {}", path.display()))?;
        let folder = disk_folder(&path).filter(|folder| saved::can_save(folder.as_fd()));
        if folder.is_none() {
            tracing::info!(
                "{}: snapshots are not saved: it is in memory, forbids programs, or this worker may not mount",
                path.display()
            );
        }
        Ok(folder.map(|folder| SavedSnapshots { folder: Arc::new(folder), path, most_bytes }))
    }

    /// Saves a function's snapshot for the next worker. One that waits in a request and shares pages is not
    /// saved: it would look for the page store of this worker.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub async fn save(
        &self,
        order: &Order,
        options: &Options,
        own: &Path,
        snapshot: Arc<Snapshot>,
    ) -> Result<()> {
        if !snapshot.reads_its_line() && environment::may_share(order) || snapshot.size() > self.most_bytes {
            return Ok(());
        }
        let wanted = Wanted::new(order, options, own)?;
        let (folder, path, most) =
            (self.folder.clone(), self.path.clone(), self.most_bytes - snapshot.size());
        let work = tokio::task::spawn_blocking(move || -> Result<()> {
            make_room(&path, most)?;
            let outside = |file: &MappedFile| wanted.open(file).map(|(_, opened)| opened);
            Ok(saved::save(&snapshot, folder.as_fd(), &wanted.name, &wanted.purpose, outside)?)
        });
        work.await.context("saving was cut short")?
    }

    /// The snapshot that an earlier worker has saved for the same. One that is of no use is removed.
    ///
    /// # Errors
    /// It is of no use.
    pub async fn load(&self, order: &Order, options: &Options, own: &Path) -> Result<Option<Snapshot>> {
        let wanted = Wanted::new(order, options, own)?;
        let folder = self.folder.clone();
        let work = tokio::task::spawn_blocking(move || {
            let now = |file: &MappedFile| {
                let (outside, opened) = wanted.open(file)?;
                Some((MappedFile { path: file.path.clone(), ..MappedFile::now(outside)? }, opened))
            };
            let loaded = saved::load(folder.as_fd(), &wanted.name, &wanted.purpose, now);
            loaded.inspect_err(|_| saved::remove(folder.as_fd(), &wanted.name))
        });
        Ok(work.await.context("loading was cut short")??)
    }

    /// Removes a function's, which is deleted or cannot be restored.
    pub fn remove(&self, name: &str, version: &str) {
        saved::remove(self.folder.as_fd(), &file_name(name, version));
    }
}

/// The name of the files of a function's, or of a version's.
fn file_name(name: &str, version: &str) -> String {
    digest(format!("{name}\0{version}").as_bytes())[..32].into()
}

/// All that a snapshot is taken for, as a digest.
fn purpose(deployment: &Deployment, command: &[String], variables: &[(String, String)]) -> Result<String> {
    let variables: Vec<_> =
        variables.iter().filter(|(name, _)| !OF_INSTANCES.contains(&name.as_str())).collect();
    let layers: Vec<_> = deployment.opt.layers.iter().map(|layer| &layer.code.sha256).collect();
    let packages: Vec<_> = PACKAGES.iter().map(|path| numbers(Path::new(path))).collect();
    let all = json!({
        "settings": deployment.settings,
        "code": deployment.code.sha256,
        "layers": layers,
        "command": command,
        "variables": variables,
        "worker": numbers(Path::new("/proc/self/exe")),
        "packages": packages,
    });
    Ok(digest(&serde_json::to_vec(&all)?))
}

/// What is another with every change of a file.
fn numbers(path: &Path) -> Option<[i64; 5]> {
    let about = fs::metadata(path).ok()?;
    Some([about.dev() as i64, about.ino() as i64, about.len() as i64, about.ctime(), about.ctime_nsec()])
}

/// Removes what was saved longest ago, until the rest has so many bytes.
fn make_room(folder: &Path, most_bytes: u64) -> Result<()> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        if entry.path().extension().is_some_and(|ending| ending == "pages") {
            all.push((about.modified()?, about.len(), entry.path()));
        }
    }
    all.sort();
    let mut bytes: u64 = all.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, size, pages) in all {
        if bytes <= most_bytes {
            break;
        }
        bytes -= size;
        for ending in ["about", "pages", "program"] {
            let _ = fs::remove_file(pages.with_extension(ending)); // another worker may have done so
        }
    }
    Ok(())
}
