//! The scripts that build what a VM or a simulation boots: in the source tree that this program was built
//! in, or below `../lib/mayfly` once Debian's package `mayfly-guest` is installed.

use std::path::{Path, PathBuf};

use crate::base::error::Error;

/// The script of this name, such as `vm/image/build`.
///
/// # Errors
/// It is not there; the message has what to install.
pub fn find(name: &str) -> Result<PathBuf, Error> {
    let program =
        std::env::current_exe().map_err(|error| Error::Failed(format!("cannot find myself: {error}")))?;
    let here = std::env::current_dir().unwrap_or_default();
    find_near(name, &program, &here).ok_or_else(|| {
        Error::Missing(format!(
            "{name} is missing: install Debian's package mayfly-guest of this release, or run this in Mayfly's \
             source tree"
        ))
    })
}

/// Looks in the folders above the program, where it is installed, and then in those above `here`.
fn find_near(name: &str, program: &Path, here: &Path) -> Option<PathBuf> {
    let installed = program.parent().and_then(Path::parent).map(|prefix| prefix.join("lib/mayfly"));
    let folders = program.ancestors().chain(installed.as_deref()).chain(here.ancestors());
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_program_finds_the_scripts_of_the_package() {
        let root = tempfile::tempdir().unwrap();
        let [program, installed, tree] =
            ["usr/bin/mayfly", "usr/lib/mayfly/vm/image/build", "tree/vm/image/build"].map(|name| {
                let path = root.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(&path, "").unwrap();
                path
            });
        let here = root.path().join("tree/docs");
        let find = |program: &Path| find_near("vm/image/build", program, &here);
        assert_eq!(find(&program), Some(installed.clone()));
        assert_eq!(find(&root.path().join("tree/target/release/mayfly")), Some(tree.clone()));
        std::fs::remove_file(installed).unwrap();
        assert_eq!(find(&program), Some(tree), "without the package, the tree that the user is in");
        assert_eq!(find_near("sim/qemu", &program, &here), None);
    }
}
