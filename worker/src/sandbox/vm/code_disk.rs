//! The code disk: what instances in the VM see under /var and /opt, or as their root, read-only, of all
//! functions. The agent shows each instance its own part. As files of one disk they are in the guest's
//! memory once (HotMem §4, "shared HotMem partition").

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A folder or file of the host's, and its name on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// On the host.
    pub source: PathBuf,
    /// On the disk.
    pub name: String,
    /// Distinguishes its content from earlier ones, if that may change.
    pub content: String,
    /// Whether it is the root of an image: its links lead into that root, so they are copied as links.
    pub is_root: bool,
}

/// A disk that was made.
#[derive(Debug)]
pub struct Disk {
    /// The image.
    pub file: PathBuf,
    parts: Vec<Part>,
}

impl Disk {
    /// Makes a disk with these parts.
    ///
    /// # Errors
    /// A part cannot be read, or `mke2fs` fails.
    pub fn make(folder: &Path, mut parts: Vec<Part>) -> Result<Disk> {
        parts.dedup();
        let tree = folder.join("code");
        std::fs::create_dir(&tree).with_context(|| format!("cannot make {}", tree.display()))?;
        for part in &parts {
            let target = tree.join(&part.name);
            if target.exists() {
                continue;
            }
            if let Some(parent) = target.parent() {
                std::fs::create_dir_all(parent)
                    .with_context(|| format!("cannot make {}", parent.display()))?;
            }
            let links = if part.is_root { "-dR" } else { "-LR" };
            let modes = "--preserve=mode,links";
            run(Command::new("cp")
                .args([links, modes, "--reflink=auto", "--"])
                .arg(&part.source)
                .arg(&target))
            .with_context(|| format!("cannot copy {}", part.source.display()))?;
        }
        let file = super::disk_file(folder);
        let (bytes, files) = size(&tree)?;
        // Each file ends in a block of its own and has an inode; folders and tables take some more.
        let blocks = (bytes + files * 4096) / 1024 * 11 / 10 + 8192;
        let inodes = (files + 256).to_string();
        run(Command::new(mke2fs())
            .args([
                "-q",
                "-t",
                "ext4",
                "-O",
                "^has_journal",
                "-m",
                "0",
                "-N",
                &inodes,
                "-E",
                "root_owner=0:0",
            ])
            .args([Path::new("-d"), &tree, &file])
            .arg(format!("{blocks}k")))
        .context("cannot make the code disk")?;
        // QEMU runs as a user of its own, which reads it whatever this process's umask is.
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644))
            .with_context(|| format!("cannot let QEMU read {}", file.display()))?;
        std::fs::remove_dir_all(&tree).with_context(|| format!("cannot remove {}", tree.display()))?;
        Ok(Disk { file, parts })
    }

    /// Whether the disk has all of these parts, with their present contents.
    pub fn has(&self, parts: &[Part]) -> bool {
        let same = |part: &Part, own: &Part| (&own.source, &own.content) == (&part.source, &part.content);
        parts.iter().all(|part| self.parts.iter().any(|own| same(part, own)))
    }

    /// The name on the disk of this path of the host.
    pub fn name_of(&self, source: &Path) -> Option<&str> {
        self.parts.iter().find(|part| part.source == source).map(|part| part.name.as_str())
    }
}

fn mke2fs() -> &'static str {
    if Path::new("/sbin/mke2fs").exists() { "/sbin/mke2fs" } else { "mke2fs" }
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {program}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {}", text.lines().last().unwrap_or("failed").trim());
    Ok(())
}

/// Bytes and number of the files and folders below.
fn size(folder: &Path) -> Result<(u64, u64)> {
    let (mut bytes, mut files) = (0, 0);
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        files += 1;
        bytes += metadata.len();
        if metadata.is_dir() {
            let below = size(&entry.path())?;
            (bytes, files) = (bytes + below.0, files + below.1);
        }
    }
    Ok((bytes, files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_holds_its_parts() {
        let place = tempfile::tempdir().unwrap();
        let code = place.path().join("f");
        std::fs::create_dir_all(code.join("inner")).unwrap();
        std::fs::write(code.join("inner/app.py"), "x".repeat(10_000)).unwrap();
        let part = |source: &Path, name: &str, content: &str| Part {
            source: source.into(),
            name: name.into(),
            content: content.into(),
            is_root: false,
        };
        let (code_again, part) = (part(&code, "task/f", "changed"), part(&code, "task/f", "as it was"));
        let disk = Disk::make(place.path(), vec![part.clone(), part.clone()]).unwrap();
        assert_eq!(disk.name_of(&code), Some("task/f"));
        let listed =
            Command::new("/sbin/debugfs").args(["-R", "ls -p /task/f/inner"]).arg(&disk.file).output();
        let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
        assert!(listed.contains("/app.py/10000/"), "{listed}");
        assert!(
            disk.has(std::slice::from_ref(&part)) && !disk.has(&[part.clone(), code_again]),
            "by content"
        );
        let gone = Part { source: "/nowhere".into(), ..part };
        let other = tempfile::tempdir().unwrap();
        assert!(format!("{:#}", Disk::make(other.path(), vec![gone]).unwrap_err()).contains("/nowhere"));
    }
}
