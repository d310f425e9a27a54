//! The guest: a folder with a kernel, an initial RAM file system, a root disk, and `vm.json` that names them.
//!
//! `mayfly vm image` builds one (`vm/image/build`) and keeps it under `~/.cache/mayfly/image`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::base::cache::{key_after, prune};
use crate::base::error::Error;
use crate::base::scripts;

/// The file that names the image's other files.
const DESCRIPTION: &str = "vm.json";

/// How many images, image parts and kernels of each kind are kept: for two checkouts, each before and after a
/// change.
const KEPT: usize = 4;
/// How many kernel build trees are kept, of gigabytes each: one for the kernel, one for the debug kernel.
const KEPT_TREES: usize = 2;

/// What to boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// bzImage or vmlinuz.
    pub kernel: PathBuf,
    /// The initial RAM file system.
    pub initrd: PathBuf,
    /// The root file system: a raw disk, never written to.
    #[serde(default)]
    pub disk: Option<PathBuf>,
    /// Added to the kernel's command line.
    #[serde(default)]
    pub append: String,
    /// Whether the kernel has HotMem's partitions.
    #[serde(default)]
    pub hotmem: bool,
    /// The version of Linux, such as 6.12.
    #[serde(default)]
    pub linux: Option<String>,
}

impl Image {
    /// Reads the image in a folder.
    ///
    /// # Errors
    /// The folder holds none, or a file of it is missing.
    pub fn open(folder: &Path) -> Result<Image, Error> {
        let path = folder.join(DESCRIPTION);
        let text = std::fs::read(&path).map_err(|_| {
            Error::Missing(format!("no VM image in {}: build one with: mayfly vm image", folder.display()))
        })?;
        let mut image: Image = serde_json::from_slice(&text)
            .map_err(|error| Error::Missing(format!("{}: {error}", path.display())))?;
        for file in [&mut image.kernel, &mut image.initrd].into_iter().chain(image.disk.as_mut()) {
            *file = folder.join(&*file);
            if !file.is_file() {
                let (file, folder) = (file.display(), folder.display());
                return Err(Error::Missing(format!(
                    "the VM image in {folder} lacks {file}: build it again with: mayfly vm image"
                )));
            }
        }
        Ok(image)
    }
}

/// The kernels that there are images for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Debian's.
    Stock,
    /// Mayfly's, with HotMem's partitions.
    Hotmem,
    /// Mayfly's, with the kernel's own checks (KASAN, lockdep): slow.
    HotmemDebug,
}

impl Kernel {
    /// Its name, as in `--kernel`.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Stock => "stock",
            Kernel::Hotmem => "hotmem",
            Kernel::HotmemDebug => "hotmem-debug",
        }
    }
}

/// The image that was built last with this kernel.
///
/// # Errors
/// None was built; the message has the command that builds one.
pub fn latest(kernel: Kernel) -> Result<Image, Error> {
    let link = link(kernel)?;
    if !link.exists() {
        let how = match kernel {
            Kernel::Stock => String::new(),
            other => format!(" --kernel {}", other.name()),
        };
        return Err(Error::Missing(format!(
            "no VM image is built: build it once with: mayfly vm image{how}"
        )));
    }
    Image::open(&link)
}

/// The image that was built last with this kernel of this version of Linux; it is built if there is none.
///
/// # Errors
/// The builder is not found or fails.
pub fn of_linux(kernel: Kernel, linux: &str) -> Result<Image, Error> {
    let link = link(kernel)?.with_file_name(format!("latest-{}-{linux}", kernel.name()));
    if !link.exists() {
        point_at(&link, &run_builder(kernel, Some(linux))?)?;
    }
    Image::open(&link)
}

/// Builds the image with this kernel, of this version of Linux or the builder's default, unless it is cached,
/// and makes it the [`latest`]. The builder prints its progress on stderr.
///
/// # Errors
/// The builder is not found or fails.
pub fn build(kernel: Kernel, linux: Option<&str>) -> Result<PathBuf, Error> {
    let folder = run_builder(kernel, linux)?;
    let link = link(kernel)?;
    if let Some(version) = Image::open(&folder)?.linux {
        point_at(&link.with_file_name(format!("latest-{}-{version}", kernel.name())), &folder)?;
    }
    point_at(&link, &folder)?;
    drop(crate::base::cache::hold(&folder));
    prune_unused();
    Ok(folder)
}

/// Returns the folder that the builder prints.
fn run_builder(kernel: Kernel, linux: Option<&str>) -> Result<PathBuf, Error> {
    let builder = builder()?;
    let failed = |error: std::io::Error| Error::Failed(format!("cannot run {}: {error}", builder.display()));
    let output = Command::new(&builder)
        .args(["--kernel", kernel.name()])
        .args(linux.into_iter().flat_map(|version| ["--linux", version]))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(failed)?;
    if !output.status.success() {
        return Err(Error::Failed(format!("{} failed ({}); see above", builder.display(), output.status)));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

/// Makes a link to a folder, in place of an earlier one.
fn point_at(link: &Path, folder: &Path) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::Failed(format!("cannot write {}: {error}", link.display()));
    let mut new = link.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    std::fs::create_dir_all(link.parent().expect("it lies in a folder")).map_err(failed)?;
    std::os::unix::fs::symlink(folder, &new).map_err(failed)?;
    std::fs::rename(&new, link).map_err(failed)
}

/// Removes images and kernels that were not used for a day.
fn prune_unused() {
    let Some(cache) = cache_folder() else { return };
    for kind in ["stock-", "hotmem-", "hotmem-debug-", "root-", "linux-"] {
        prune(&cache.join("image"), key_after(kind), KEPT);
    }
    let kernels = cache.join("kernel");
    prune(&kernels, key_after(""), KEPT);
    let is_tree =
        |name: &str| name.starts_with("tree-") && !name.ends_with(".lock") && !name.ends_with(".log");
    prune(&kernels, is_tree, KEPT_TREES);
    prune(&kernels, |name| name.starts_with("selftests-"), 1);
    prune(&cache.join("kvm"), key_after(""), KEPT);
}

fn link(kernel: Kernel) -> Result<PathBuf, Error> {
    let cache =
        cache_folder().ok_or_else(|| Error::Missing("neither XDG_CACHE_HOME nor HOME is set".to_string()))?;
    Ok(cache.join(format!("image/latest-{}", kernel.name())))
}

/// `~/.cache/mayfly`.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("mayfly"))
}

/// `vm/image/build`, or what `MAYFLY_VM_IMAGE_BUILDER` names.
fn builder() -> Result<PathBuf, Error> {
    match std::env::var_os("MAYFLY_VM_IMAGE_BUILDER") {
        Some(path) => Ok(PathBuf::from(path)),
        None => scripts::find("vm/image/build"),
    }
}
