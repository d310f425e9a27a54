//! The guest: a folder with a kernel, an initial RAM file system, a root disk, and `vm.json` that names them.
//!
//! `mayfly vm image` builds one (`vm/image/build`) and keeps it under `~/.cache/mayfly/image`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The file that names the others.
const DESCRIPTION: &str = "vm.json";

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
    /// What the image wants on the kernel's command line.
    #[serde(default)]
    pub append: String,
    /// Whether the kernel has HotMem's partitions.
    #[serde(default)]
    pub hotmem: bool,
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
