//! A part of Debian as a root of its own: some packages of one suite with all that they need, the C library
//! too, so that they run on any host. Nothing of the host is in it, and no script of a package runs.
//!
//! ```text
//!   apt      reads a suite's index and downloads packages, in a folder of its own; apt checks the signatures
//!   deb      unpacks one package
//!   trusted  the certificates that programs trust, which a package's script would write
//! ```

mod apt;
mod deb;
mod trusted;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::once::once;
use apt::Apt;

/// Debian's name for this processor, and for its libraries' folder.
#[cfg(target_arch = "x86_64")]
const PROCESSOR: (&str, &str) = ("amd64", "x86_64-linux-gnu");
#[cfg(target_arch = "aarch64")]
const PROCESSOR: (&str, &str) = ("arm64", "aarch64-linux-gnu");
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const PROCESSOR: (&str, &str) = ("", "");

/// What functions and their wrappers may call, and what native packages are linked against, as on Lambda.
const COMMON: [&str; 8] =
    ["bash", "ca-certificates", "coreutils", "dash", "grep", "libc-bin", "libstdc++6", "sed"];
/// A root that is made in another way is another one.
const RECIPE: &str = "1";
/// The folder that instances see as /var/lang.
pub const LANGUAGE: &str = "lang";

/// Packages of a suite.
pub struct System {
    /// Its name, or that of the release.
    pub suite: &'static str,
    /// The first is the one that counts.
    pub packages: &'static [&'static str],
}

/// The versions of a language that suites have, each with its packages.
pub type Versions = [(u32, System)];

/// Those that can be installed on this processor.
pub fn installable(versions: &'static Versions) -> impl Iterator<Item = u32> {
    versions.iter().map(|(version, _)| *version).filter(|_| !PROCESSOR.0.is_empty())
}

/// The packages of one version.
///
/// # Errors
/// No suite has it.
pub fn of_version(versions: &'static Versions, wanted: u32, label: &str) -> Result<&'static System> {
    let found = versions.iter().find(|(version, _)| *version == wanted);
    found.map(|(_, system)| system).with_context(|| format!("there is no {label} to install"))
}

impl System {
    fn name(&self) -> String {
        let mut digest = Sha256::new().chain_update(RECIPE);
        for package in COMMON.iter().chain(self.packages) {
            digest = digest.chain_update([0]).chain_update(package);
        }
        let key: String = digest.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        format!("debian-{}-{}-{key}", self.suite, self.packages[0])
    }

    /// The root below `cache`. If it is not there, it is installed, and `finish` completes it.
    ///
    /// # Errors
    /// It cannot be installed, and what to do.
    pub fn provide(
        &self,
        label: &str,
        cache: &Path,
        finish: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let System { suite, packages } = self;
        let installed = once(&cache.join("runtimes"), &self.name(), |root| {
            let begun = Instant::now();
            let apt = Apt::of_suite(suite, &cache.join("apt"))?;
            tracing::info!(
                "installing {label} of Debian {suite} from {}, once, into {}",
                apt.mirror,
                cache.display()
            );
            let wanted: Vec<&str> = packages.iter().chain(&COMMON).copied().collect();
            let archives = apt.download(&wanted)?;
            for archive in &archives {
                deb::unpack(archive, root).with_context(|| archive.display().to_string())?;
            }
            link_top_folders(root)?;
            trusted::write(root)?;
            finish(root)?;
            apt.clean();
            let seconds = begun.elapsed().as_secs_f64();
            tracing::info!("installed {label}: {} packages in {seconds:.1} s", archives.len());
            Ok(())
        });
        installed.with_context(|| format!("cannot install {label} of Debian {suite}"))
    }
}

/// The dynamic loader of a root, which runs its programs on any host, and the folder of its libraries.
///
/// # Errors
/// The root has none.
pub fn loader(root: &Path) -> Result<(PathBuf, PathBuf)> {
    let libraries = root.join("usr/lib").join(PROCESSOR.1);
    let mut names = fs::read_dir(&libraries)?.flatten().map(|entry| entry.file_name());
    let name = names.find(|name| name.to_string_lossy().starts_with("ld-linux-"));
    let name = name.with_context(|| format!("{} has no loader", libraries.display()))?;
    Ok((libraries.join(name), libraries))
}

/// Makes programs of the root those of /var/lang/bin: a name there, and what it stands for in instances.
///
/// # Errors
/// The root lacks one.
pub fn link_programs(root: &Path, programs: &[(&str, &str)]) -> Result<()> {
    let folder = root.join(LANGUAGE).join("bin");
    fs::create_dir_all(&folder)?;
    for made in [root.join(LANGUAGE), folder.clone()] {
        fs::set_permissions(made, fs::Permissions::from_mode(0o755))?;
    }
    for (name, target) in programs {
        let there = root.join(target.trim_start_matches('/'));
        ensure!(there.is_file(), "the packages have no {target}");
        symlink(target, folder.join(name))?;
    }
    Ok(())
}

/// `/bin` and the like are links into /usr, whatever a package says.
fn link_top_folders(root: &Path) -> Result<()> {
    for name in deb::MERGED {
        if root.join("usr").join(name).is_dir() {
            symlink(Path::new("usr").join(name), root.join(name))?;
        }
    }
    fs::create_dir_all(root.join("etc"))?;
    for folder in ["", "usr", "etc"] {
        fs::set_permissions(root.join(folder), fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_named_after_its_packages() {
        let of = |packages| System { suite: "trixie", packages }.name();
        let name = of(&["python3.13"]);
        assert!(name.starts_with("debian-trixie-python3.13-"), "{name}");
        assert_ne!(name, of(&["python3.13", "other"]));
    }
}
