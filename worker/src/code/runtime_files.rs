//! Files of the worker's own that instances see: the bootstraps of functions in Python, Node.js and
//! Ruby, and the package `mayfly`. This program contains them, and the worker writes them out when it
//! starts; the bootstrap in Python is compiled beside Lambda's client ([`crate::code::python_packages`]).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::code::python_packages;

/// The bootstrap of functions in Node.js, below `/var/mayfly` in an instance.
pub const BOOTSTRAP_NODE: &str = "bootstrap.mjs";
/// The same of functions in Ruby.
pub const BOOTSTRAP_RUBY: &str = "bootstrap.rb";
/// On `PYTHONPATH`.
pub const PACKAGES: &str = "python";
/// On that of images, for whose interpreters the worker cannot compile.
pub const OF_IMAGES: &str = "image";

const FILES: &[(&str, &str)] = &[
    (BOOTSTRAP_NODE, include_str!("../../runtime/bootstrap.mjs")),
    (BOOTSTRAP_RUBY, include_str!("../../runtime/bootstrap.rb")),
    ("python/mayfly/__init__.py", include_str!("../../../python/mayfly/__init__.py")),
    ("python/mayfly/__main__.py", include_str!("../../../python/mayfly/__main__.py")),
    ("python/mayfly/advice.py", include_str!("../../../python/mayfly/advice.py")),
    ("python/mayfly/arena.py", include_str!("../../../python/mayfly/arena.py")),
    ("python/mayfly/copying.py", include_str!("../../../python/mayfly/copying.py")),
    ("python/mayfly/frames.py", include_str!("../../../python/mayfly/frames.py")),
    ("python/mayfly/growth.py", include_str!("../../../python/mayfly/growth.py")),
    ("python/mayfly/library.py", include_str!("../../../python/mayfly/library.py")),
    ("python/mayfly/naming.py", include_str!("../../../python/mayfly/naming.py")),
    ("python/mayfly/packing.py", include_str!("../../../python/mayfly/packing.py")),
    ("python/mayfly/regions.py", include_str!("../../../python/mayfly/regions.py")),
    ("python/mayfly/turns.py", include_str!("../../../python/mayfly/turns.py")),
];

/// Writes them into a folder, for all to read.
///
/// # Errors
/// A file that cannot be written.
pub fn write(folder: &Path) -> Result<()> {
    let bootstrap = Path::new(OF_IMAGES).join(python_packages::BOOTSTRAP);
    let bootstrap = python_packages::BOOTSTRAP_FILES.iter().map(|(name, text)| (bootstrap.join(name), text));
    for (name, text) in FILES.iter().map(|(name, text)| (PathBuf::from(name), text)).chain(bootstrap) {
        let path = folder.join(name);
        let failed = || format!("cannot write {}", path.display());
        let parent = path.parent().unwrap_or(folder);
        fs::create_dir_all(parent).with_context(failed)?;
        fs::write(&path, text).with_context(failed)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).with_context(failed)?;
        for above in parent.ancestors().take_while(|above| above.starts_with(folder)) {
            fs::set_permissions(above, fs::Permissions::from_mode(0o755)).with_context(failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_of_the_package_is_here() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/mayfly");
        for entry in fs::read_dir(package).expect("the package's folder") {
            let name = entry.expect("a file of it").file_name().into_string().expect("a name in UTF-8");
            let inside = format!("python/mayfly/{name}");
            assert!(
                !name.ends_with(".py") || FILES.iter().any(|(path, _)| *path == inside),
                "{inside} is not in FILES"
            );
        }
    }
}
