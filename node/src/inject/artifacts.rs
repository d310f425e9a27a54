//! Libraries and models, copied into folders that containers mount.
//!
//! Running containers mount these folders, so no file in one ever changes: other contents are in another
//! folder, named by a hash. Containers that start after an upgrade mount the new one.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::base::request::Name;
use crate::domains::trust_domain::short_name;

/// A library that does nothing, for every loader.
const STUB: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stub.so"));
/// The part with stub libraries and mount points; former versions' folders have it under the same name.
pub const STUB_ROOT: &str = "ground";
const HEAP: &[&str] = &["libmayfly_heap.so"];
const SHARE: &[&str] = &["libmayfly_merge_auto.so", "libmayfly_merge.so"];
/// glibc's `$LIB` on Debian, on Fedora and SUSE, and elsewhere; the first has the files, the others links to
/// them.
const GLIBC: [&str; 3] = ["lib/x86_64-linux-gnu", "lib64", "lib"];
/// musl's loader takes `$LIB` literally.
const MUSL: &str = "$LIB";
const MAX_MODEL_BYTES: u64 = 256 << 20;
const MODEL_SUFFIX: &str = ".mayfly-model";

/// The folders that containers mount.
#[derive(Clone, Debug)]
pub struct Artifacts {
    folder: PathBuf,
    data: PathBuf,
    models: Option<PathBuf>,
    /// Files among the models that a line of the log has told of.
    misnamed: Arc<Mutex<HashSet<String>>>,
    /// Whether there are libraries for musl.
    pub has_musl: bool,
}

impl Artifacts {
    /// Copies the libraries below `data`. `glibc` and `musl` are the folders to copy them from; without the
    /// second, programs on musl run unchanged.
    ///
    /// # Errors
    /// A library is missing, or `data` cannot be written.
    pub fn prepare(
        data: &Path,
        glibc: &Path,
        musl: Option<&Path>,
        models: Option<&Path>,
    ) -> Result<Artifacts> {
        let musl = musl.filter(|folder| HEAP.iter().chain(SHARE).all(|name| folder.join(name).is_file()));
        let read = |folder: &Path, name: &str| {
            let path = folder.join(name);
            fs::read(&path).with_context(|| format!("cannot read the library {}", path.display()))
        };
        let mut parts = Vec::new();
        let mut digest = Sha256::new();
        for (part, names) in [("heap", HEAP), ("share", SHARE)] {
            for name in names {
                let for_glibc = read(glibc, name)?;
                let for_musl = musl.map(|folder| read(folder, name)).transpose()?;
                digest.update(&for_glibc);
                digest.update(for_musl.as_deref().unwrap_or_default());
                parts.push((part, *name, for_glibc, for_musl));
            }
        }
        let name = short_name(&digest.finalize());
        let all = data.join("lib");
        fs::create_dir_all(&all).with_context(|| format!("cannot make {}", all.display()))?;
        make_world_readable(data)?;
        make_world_readable(&all)?;
        let folder = all.join(&name);
        if !folder.is_dir() {
            let fresh = all.join(format!(".{name}.{}", std::process::id()));
            let made = parts.iter().try_for_each(|(part, name, for_glibc, for_musl)| {
                write_library(&fresh.join(part), name, for_glibc, for_musl.as_deref())?;
                write_library(&fresh.join(STUB_ROOT).join(part), name, STUB, Some(STUB))
            });
            let made = made.and_then(|()| {
                ["store", "model"]
                    .iter()
                    .try_for_each(|part| fs::create_dir_all(fresh.join(STUB_ROOT).join(part)))
            });
            made.and_then(|()| fs::rename(&fresh, &folder))
                .with_context(|| format!("cannot lay out libraries in {}", fresh.display()))?;
        }
        remove_unused(&all, &name);
        Ok(Artifacts {
            folder,
            data: data.to_owned(),
            models: models.map(Path::to_owned),
            misnamed: Arc::default(),
            has_musl: musl.is_some(),
        })
    }

    /// The folder of one part: `heap`, `share`, or [`STUB_ROOT`].
    pub fn part(&self, part: &str) -> PathBuf {
        self.folder.join(part)
    }

    /// The heap's library with that inode, of this version or a former one that a process still maps.
    pub fn heap_library(&self, inode: u64) -> Option<PathBuf> {
        let versions = fs::read_dir(self.folder.parent()?).ok()?.flatten();
        let mut files = versions.flat_map(|version| {
            [GLIBC[0], MUSL].map(|place| version.path().join("heap").join(place).join(HEAP[0]))
        });
        files.find(|file| fs::metadata(file).is_ok_and(|about| about.ino() == inode))
    }

    /// Whether a folder, by device and inode, is the stub root of this version or a former one, which all CDI
    /// devices mount.
    pub fn is_stub_root(&self, folder: (u64, u64)) -> bool {
        let versions =
            self.folder.parent().and_then(|all| fs::read_dir(all).ok()).into_iter().flatten().flatten();
        let mut roots = versions.filter_map(|version| fs::metadata(version.path().join(STUB_ROOT)).ok());
        roots.any(|root| (root.dev(), root.ino()) == folder)
    }

    /// The folder with a copy of a model as its file is now, named `model`.
    ///
    /// # Errors
    /// There is no model of that name, or it cannot be copied.
    pub fn model(&self, name: &Name) -> Result<PathBuf> {
        let Some(models) = &self.models else { bail!("this node has no folder of models (--models)") };
        let path = models.join(format!("{name}{MODEL_SUFFIX}"));
        let file = fs::File::open(&path).with_context(|| format!("no model {name}: {}", path.display()))?;
        let about = file.metadata()?;
        ensure!(about.is_file() && about.len() <= MAX_MODEL_BYTES, "{} is no model", path.display());
        let mut bytes = Vec::new();
        file.take(MAX_MODEL_BYTES).read_to_end(&mut bytes)?;
        let all = self.data.join("models");
        let folder = all.join(short_name(&Sha256::digest(&bytes)));
        if !folder.is_dir() {
            fs::create_dir_all(&all)?;
            make_world_readable(&all)?;
            let fresh = all.join(format!(".{name}.{}", std::process::id()));
            fs::create_dir_all(&fresh)?;
            fs::write(fresh.join("model"), bytes)?;
            make_world_readable(&fresh)?;
            match fs::rename(&fresh, &folder) {
                Err(_) if folder.is_dir() => fs::remove_dir_all(&fresh)?, // another thread made it meanwhile
                other => other.with_context(|| format!("cannot make {}", folder.display()))?,
            }
        }
        Ok(folder)
    }

    /// The names of the node's models.
    pub fn models(&self) -> Vec<Name> {
        let Some(Ok(entries)) = self.models.as_ref().map(fs::read_dir) else { return Vec::new() };
        let name = |file: &str| {
            let name = file.strip_suffix(MODEL_SUFFIX)?.parse::<Name>();
            let warn = |why: &String| {
                if self.misnamed.lock().unwrap_or_else(PoisonError::into_inner).insert(file.to_owned()) {
                    tracing::warn!("the model {file} cannot be used: {why}");
                }
            };
            name.inspect_err(warn).ok()
        };
        let files = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<Name> = files.filter_map(|file| name(&file)).collect();
        names.sort();
        names
    }
}

/// Removes all that the agent made below `data`, and `data` if nothing else is in it.
///
/// # Errors
/// A folder cannot be removed; the error names it.
pub fn remove(data: &Path) -> Result<()> {
    // The last one has the upload queue.
    for part in ["lib", "models", "domains", "stores", "control", "work", "outbox"] {
        let folder = data.join(part);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", folder.display()));
            }
            _ => {}
        }
    }
    let _ = fs::remove_dir(data);
    Ok(())
}

/// Containers have other users than the agent.
fn make_world_readable(folder: &Path) -> Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} readable to all users", folder.display()))
}

fn write_library(folder: &Path, name: &str, for_glibc: &[u8], for_musl: Option<&[u8]>) -> io::Result<()> {
    let [holder, links @ ..] = GLIBC;
    for place in GLIBC {
        fs::create_dir_all(folder.join(place))?;
    }
    fs::write(folder.join(holder).join(name), for_glibc)?;
    for link in links {
        let target = PathBuf::from("..").join(holder).join(name);
        symlink(target, folder.join(link).join(name))?;
    }
    if let Some(bytes) = for_musl {
        fs::create_dir_all(folder.join(MUSL))?;
        fs::write(folder.join(MUSL).join(name), bytes)?;
    }
    Ok(())
}

/// Removes the libraries of former versions that no process has mounted.
fn remove_unused(all: &Path, current: &str) {
    let Ok(entries) = fs::read_dir(all) else { return };
    let names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let mut old: HashSet<String> = names.into_iter().filter(|name| name != current).collect();
    if old.is_empty() {
        return;
    }
    let mut seen = HashSet::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(namespace) = fs::read_link(process.path().join("ns/mnt")) else { continue };
        if seen.insert(namespace) {
            let mounts = fs::read_to_string(process.path().join("mountinfo")).unwrap_or_default();
            old.retain(|name| !mounts.contains(name.as_str()));
        }
    }
    for name in old {
        let _ = fs::remove_dir_all(all.join(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn libraries(folder: &Path, contents: &str) {
        fs::create_dir_all(folder).unwrap();
        for name in HEAP.iter().chain(SHARE) {
            fs::write(folder.join(name), contents).unwrap();
        }
    }

    #[test]
    fn each_loader_finds_its_own_library() {
        let folder = tempfile::tempdir().unwrap();
        let (data, glibc, musl) =
            (folder.path().join("data"), folder.path().join("g"), folder.path().join("m"));
        libraries(&glibc, "glibc");
        libraries(&musl, "musl");
        let artifacts = Artifacts::prepare(&data, &glibc, Some(&musl), None).unwrap();
        for part in ["heap", "ground/heap"] {
            for place in GLIBC.iter().chain([&MUSL]) {
                let path = artifacts.part(part).join(place).join(HEAP[0]);
                let wanted: &[u8] = match (part, *place) {
                    ("heap", MUSL) => b"musl",
                    ("heap", _) => b"glibc",
                    _ => STUB,
                };
                assert_eq!(fs::read(&path).unwrap(), wanted, "{}", path.display());
            }
        }
        assert!(artifacts.part(STUB_ROOT).join("store").is_dir() && artifacts.has_musl);
        let musl = artifacts.part("heap").join(MUSL).join(HEAP[0]);
        assert_eq!(artifacts.heap_library(fs::metadata(&musl).unwrap().ino()), Some(musl));
        assert_eq!(artifacts.heap_library(0), None);
        let number = |folder: PathBuf| fs::metadata(folder).map(|about| (about.dev(), about.ino())).unwrap();
        assert!(
            artifacts.is_stub_root(number(artifacts.part(STUB_ROOT)))
                && !artifacts.is_stub_root(number(artifacts.part("heap")))
        );
    }

    #[test]
    fn new_contents_get_a_new_folder_and_unused_ones_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (data, glibc) = (folder.path().join("data"), folder.path().join("g"));
        libraries(&glibc, "one");
        let one = Artifacts::prepare(&data, &glibc, Some(&folder.path().join("none")), None).unwrap();
        assert!(!one.has_musl && one.part("heap").is_dir());
        assert_eq!(one.part("heap"), Artifacts::prepare(&data, &glibc, None, None).unwrap().part("heap"));
        libraries(&glibc, "two");
        let two = Artifacts::prepare(&data, &glibc, None, None).unwrap();
        assert!(two.part("heap").is_dir() && !one.part("heap").exists());
        fs::remove_file(glibc.join(HEAP[0])).unwrap();
        let why = Artifacts::prepare(&data, &glibc, None, None).unwrap_err();
        assert!(format!("{why:#}").contains(HEAP[0]), "{why:#}");
    }

    #[test]
    fn model_is_a_copy_of_the_file_at_the_time_of_the_request() {
        let folder = tempfile::tempdir().unwrap();
        let (data, glibc, models) =
            (folder.path().join("d"), folder.path().join("g"), folder.path().join("models"));
        libraries(&glibc, "x");
        fs::create_dir_all(&models).unwrap();
        fs::write(models.join("web.mayfly-model"), "1").unwrap();
        let artifacts = Artifacts::prepare(&data, &glibc, None, Some(&models)).unwrap();
        let name: Name = "web".parse().unwrap();
        assert_eq!(artifacts.models(), std::slice::from_ref(&name));
        let one = artifacts.model(&name).unwrap();
        fs::write(models.join("web.mayfly-model"), "2").unwrap();
        let two = artifacts.model(&name).unwrap();
        assert_eq!(
            (fs::read(one.join("model")).unwrap(), fs::read(two.join("model")).unwrap()),
            (b"1".into(), b"2".into())
        );
        assert!(
            artifacts.model(&"other".parse().unwrap()).unwrap_err().to_string().contains("no model other")
        );
    }

    #[test]
    fn log_tells_once_of_each_misnamed_model() {
        let folder = tempfile::tempdir().unwrap();
        let (data, glibc) = (folder.path().join("d"), folder.path().join("g"));
        libraries(&glibc, "x");
        fs::write(glibc.join("web-.mayfly-model"), "1").unwrap();
        let artifacts = Artifacts::prepare(&data, &glibc, None, Some(&glibc)).unwrap();
        let log = folder.path().join("log");
        let to_log = tracing_subscriber::fmt().with_writer(Arc::new(fs::File::create(&log).unwrap()));
        tracing::subscriber::with_default(to_log.finish(), || {
            for models in [artifacts.models(), artifacts.clone().models()] {
                assert_eq!(models, []);
            }
        });
        let lines = fs::read_to_string(log).unwrap();
        assert_eq!(lines.matches("web-.mayfly-model cannot be used").count(), 1, "{lines}");
    }
}
