//! The image that a simulated guest boots.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use serde_json::{Map, Value};
use vm::image::{self, Kernel};

use crate::sim::qemu;
use crate::sim::script::script;

/// The version of Linux whose functions the plugin knows.
const LINUX: &str = "6.12";

/// A guest's image.
pub struct Image {
    /// Its kernel.
    pub kernel: PathBuf,
    /// The root; `None`: the program alone.
    pub initrd: Option<PathBuf>,
    /// The content of image.json.
    pub description: Map<String, Value>,
    /// The root as a folder.
    pub tree: Option<PathBuf>,
}

impl Image {
    /// The image in this folder.
    ///
    /// # Errors
    /// There is no image in it.
    pub fn open(folder: &Path) -> Result<Image> {
        let file = folder.join("image.json");
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("no simulator image in {}: {}", folder.display(), file.display()))?;
        let description: Map<String, Value> =
            serde_json::from_str(&text).with_context(|| format!("{}", file.display()))?;
        let name = |key: &str| description.get(key).and_then(Value::as_str).map(|name| folder.join(name));
        let kernel = name("kernel").ok_or_else(|| anyhow!("{} names no kernel", file.display()))?;
        let tree = Some(folder.join("tree")).filter(|tree| tree.is_dir());
        Ok(Image { kernel, initrd: name("initrd"), description, tree })
    }

    /// The versions that results depend on besides the machine: QEMU, the kernel, the image and its
    /// compilers.
    pub fn made_with(&self) -> Map<String, Value> {
        let mut all = Map::new();
        let listed = self.description.get("made_with").and_then(Value::as_object);
        for (name, value) in listed.into_iter().flatten() {
            all.insert(format!("made_with.{name}"), value.clone());
        }
        if all.is_empty()
            && let Some(folder) = self.kernel.parent().and_then(Path::file_name)
        {
            all.insert("made_with.kernel".into(), folder.to_string_lossy().into_owned().into());
        }
        if let Ok(folder) = qemu::folder() {
            let name = Path::new(&folder).file_name().unwrap_or_default().to_string_lossy().into_owned();
            all.insert("made_with.qemu".into(), name.into());
        }
        all
    }

    /// The image that `sim/image/build` makes; the script shows its progress on stderr.
    ///
    /// # Errors
    /// The script fails.
    pub fn build() -> Result<Image> {
        Image::open(Path::new(&script("sim/image/build")?))
    }

    /// A kernel without a root: for static programs.
    ///
    /// # Errors
    /// There is no kernel, and none can be built.
    pub fn bare() -> Result<Image> {
        let image = image::of_linux(Kernel::Stock, LINUX)?;
        Ok(Image { kernel: image.kernel, initrd: None, description: Map::new(), tree: None })
    }
}
