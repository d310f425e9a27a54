//! What a node has to give: libraries and models, copied into folders of their own, that containers mount.
//!
//! A container's mount shows what was there when it started. So nothing in such a folder ever changes: other contents
//! are another folder, named by a hash. An upgrade is for what starts next.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::base::request::Name;
use crate::domains::trust_domain::short_name;

/// Does nothing, on every loader.
const NOTHING: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/nothing.so"));
const HEAP: &[&str] = &["libmayfly_heap.so"];
const SHARE: &[&str] = &["libmayfly_merge_auto.so", "libmayfly_merge.so"];
/// What glibc's `$LIB` stands for on Debian, on Fedora and SUSE, and elsewhere; the first holds the files.
const GLIBC: [&str; 3] = ["lib/x86_64-linux-gnu", "lib64", "lib"];
/// musl's loader takes `$LIB` as it stands.
const MUSL: &str = "$LIB";
const LARGEST_MODEL: u64 = 256 << 20;
const MODEL_SUFFIX: &str = ".mayfly-model";

/// Folders that containers mount.
#[derive(Clone, Debug)]
pub struct Offer {
    folder: PathBuf,
    data: PathBuf,
    models: Option<PathBuf>,
    /// Whether there are libraries for musl.
    pub has_musl: bool,
}

impl Offer {
    /// Copies the libraries below `data`. `glibc` and `musl` are folders that hold them; without the second, programs on musl
    /// run as they are.
    ///
    /// # Errors
    /// A library is not there, or `data` cannot be written.
    pub fn prepare(data: &Path, glibc: &Path, musl: Option<&Path>, models: Option<&Path>) -> Result<Offer> {
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
        open_to_all(data)?;
        open_to_all(&all)?;
        let folder = all.join(&name);
        if !folder.is_dir() {
            let fresh = all.join(format!(".{name}.{}", std::process::id()));
            let made = parts.iter().try_for_each(|(part, name, for_glibc, for_musl)| {
                lay(&fresh.join(part), name, for_glibc, for_musl.as_deref())?;
                lay(&fresh.join("ground").join(part), name, NOTHING, Some(NOTHING))
            });
            let made = made.and_then(|()| {
                ["store", "model"]
                    .iter()
                    .try_for_each(|part| fs::create_dir_all(fresh.join("ground").join(part)))
            });
            made.and_then(|()| fs::rename(&fresh, &folder))
                .with_context(|| format!("cannot lay out libraries in {}", fresh.display()))?;
        }
        remove_unused(&all, &name);
        Ok(Offer {
            folder,
            data: data.to_owned(),
            models: models.map(Path::to_owned),
            has_musl: musl.is_some(),
        })
    }

    /// The folder of one part: `heap`, `share` or `ground`.
    pub fn part(&self, part: &str) -> PathBuf {
        self.folder.join(part)
    }

    /// The heap's library with that file number, of this version or a former one that somebody has still mapped.
    pub fn heap_library(&self, inode: u64) -> Option<PathBuf> {
        let versions = fs::read_dir(self.folder.parent()?).ok()?.flatten();
        let mut files = versions.flat_map(|version| {
            [GLIBC[0], MUSL].map(|place| version.path().join("heap").join(place).join(HEAP[0]))
        });
        files.find(|file| fs::metadata(file).is_ok_and(|about| about.ino() == inode))
    }

    /// Whether a folder, by device and number, is what CDI devices of this version or a former one are laid upon.
    pub fn is_ground(&self, folder: (u64, u64)) -> bool {
        let versions =
            self.folder.parent().and_then(|all| fs::read_dir(all).ok()).into_iter().flatten().flatten();
        let mut grounds = versions.filter_map(|version| fs::metadata(version.path().join("ground")).ok());
        grounds.any(|ground| (ground.dev(), ground.ino()) == folder)
    }

    /// The folder that holds a model as it is now, as `model`.
    ///
    /// # Errors
    /// There is none of that name, or it cannot be copied.
    pub fn model(&self, name: &Name) -> Result<PathBuf> {
        let Some(models) = &self.models else { bail!("this node has no folder of models (--models)") };
        let path = models.join(format!("{name}{MODEL_SUFFIX}"));
        let file = fs::File::open(&path).with_context(|| format!("no model {name}: {}", path.display()))?;
        let about = file.metadata()?;
        ensure!(about.is_file() && about.len() <= LARGEST_MODEL, "{} is no model", path.display());
        let mut bytes = Vec::new();
        file.take(LARGEST_MODEL).read_to_end(&mut bytes)?;
        let all = self.data.join("models");
        let folder = all.join(short_name(&Sha256::digest(&bytes)));
        if !folder.is_dir() {
            fs::create_dir_all(&all)?;
            open_to_all(&all)?;
            let fresh = all.join(format!(".{name}.{}", std::process::id()));
            fs::create_dir_all(&fresh)?;
            fs::write(fresh.join("model"), bytes)?;
            open_to_all(&fresh)?;
            match fs::rename(&fresh, &folder) {
                Err(_) if folder.is_dir() => fs::remove_dir_all(&fresh)?, // somebody else was as quick
                other => other.with_context(|| format!("cannot make {}", folder.display()))?,
            }
        }
        Ok(folder)
    }

    /// The models that there are.
    pub fn models(&self) -> Vec<Name> {
        let Some(Ok(entries)) = self.models.as_ref().map(fs::read_dir) else { return Vec::new() };
        let names = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(MODEL_SUFFIX)?.parse::<Name>().ok());
        let mut names: Vec<Name> = names.collect();
        names.sort();
        names
    }
}

/// Removes all that the agent has made below `data`, and `data` if that was all.
///
/// # Errors
/// The folder that cannot be removed.
pub fn remove(data: &Path) -> Result<()> {
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

/// Containers' users are others than the agent's.
fn open_to_all(folder: &Path) -> Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot open {} to all", folder.display()))
}

fn lay(folder: &Path, name: &str, for_glibc: &[u8], for_musl: Option<&[u8]>) -> io::Result<()> {
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
        let offer = Offer::prepare(&data, &glibc, Some(&musl), None).unwrap();
        for part in ["heap", "ground/heap"] {
            for place in GLIBC.iter().chain([&MUSL]) {
                let path = offer.part(part).join(place).join(HEAP[0]);
                let wanted: &[u8] = match (part, *place) {
                    ("heap", MUSL) => b"musl",
                    ("heap", _) => b"glibc",
                    _ => NOTHING,
                };
                assert_eq!(fs::read(&path).unwrap(), wanted, "{}", path.display());
            }
        }
        assert!(offer.part("ground/store").is_dir() && offer.has_musl);
        let musl = offer.part("heap").join(MUSL).join(HEAP[0]);
        assert_eq!(offer.heap_library(fs::metadata(&musl).unwrap().ino()), Some(musl));
        assert_eq!(offer.heap_library(0), None);
        let number = |folder: PathBuf| fs::metadata(folder).map(|about| (about.dev(), about.ino())).unwrap();
        assert!(
            offer.is_ground(number(offer.part("ground"))) && !offer.is_ground(number(offer.part("heap")))
        );
    }

    #[test]
    fn other_contents_are_another_folder_and_the_old_one_goes_when_nobody_mounts_it() {
        let folder = tempfile::tempdir().unwrap();
        let (data, glibc) = (folder.path().join("data"), folder.path().join("g"));
        libraries(&glibc, "one");
        let one = Offer::prepare(&data, &glibc, Some(&folder.path().join("none")), None).unwrap();
        assert!(!one.has_musl && one.part("heap").is_dir());
        assert_eq!(one.part("heap"), Offer::prepare(&data, &glibc, None, None).unwrap().part("heap"));
        libraries(&glibc, "two");
        let two = Offer::prepare(&data, &glibc, None, None).unwrap();
        assert!(two.part("heap").is_dir() && !one.part("heap").exists());
        fs::remove_file(glibc.join(HEAP[0])).unwrap();
        let why = Offer::prepare(&data, &glibc, None, None).unwrap_err();
        assert!(format!("{why:#}").contains(HEAP[0]), "{why:#}");
    }

    #[test]
    fn a_model_is_what_the_file_was_when_it_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let (data, glibc, models) =
            (folder.path().join("d"), folder.path().join("g"), folder.path().join("models"));
        libraries(&glibc, "x");
        fs::create_dir_all(&models).unwrap();
        fs::write(models.join("web.mayfly-model"), "1").unwrap();
        let offer = Offer::prepare(&data, &glibc, None, Some(&models)).unwrap();
        let name: Name = "web".parse().unwrap();
        assert_eq!(offer.models(), std::slice::from_ref(&name));
        let one = offer.model(&name).unwrap();
        fs::write(models.join("web.mayfly-model"), "2").unwrap();
        let two = offer.model(&name).unwrap();
        assert_eq!(
            (fs::read(one.join("model")).unwrap(), fs::read(two.join("model")).unwrap()),
            (b"1".into(), b"2".into())
        );
        assert!(offer.model(&"other".parse().unwrap()).unwrap_err().to_string().contains("no model other"));
    }
}
