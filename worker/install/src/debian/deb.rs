//! Unpacks a package of Debian's: files, folders and links below /usr and /etc, for all users to read.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tar::EntryType;

/// Folders that are links into /usr.
pub const MERGED: [&str; 5] = ["bin", "sbin", "lib", "lib32", "lib64"];
/// What programs do not read.
const LEFT_OUT: [&str; 7] = [
    "usr/share/bug",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/lib/debug",
];

/// Unpacks `archive` below `root`, beside what others have left there.
///
/// # Errors
/// It is no package, or something in it leads out of the root.
pub fn unpack(archive: &Path, root: &Path) -> Result<()> {
    let mut child = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(archive)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run dpkg-deb")?;
    let contents = child.stdout.take().context("dpkg-deb has an output")?;
    let unpacked = write(tar::Archive::new(contents), root);
    // Where that failed, dpkg-deb ends by itself: its output is closed.
    let status = child.wait()?;
    unpacked?;
    ensure!(status.success(), "dpkg-deb: {status}");
    Ok(())
}

fn write(mut archive: tar::Archive<impl std::io::Read>, root: &Path) -> Result<()> {
    let root = root.canonicalize()?;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let Some(below) = place(&entry.path()?)? else { continue };
        let target = root.join(&below);
        let failed = || format!("cannot write {}", target.display());
        if entry.header().entry_type().is_dir() {
            make_folder(&root, &below)?;
            continue;
        }
        make_folder(&root, below.parent().unwrap_or(Path::new("")))?;
        match entry.header().entry_type() {
            EntryType::Regular => {
                let mut file = File::create_new(&target).with_context(failed)?;
                std::io::copy(&mut entry, &mut file).with_context(failed)?;
                let mode = if entry.header().mode()? & 0o100 == 0 { 0o644 } else { 0o755 };
                file.set_permissions(fs::Permissions::from_mode(mode))?;
            }
            EntryType::Symlink => {
                let link = entry.link_name()?.with_context(failed)?;
                symlink(link, &target).with_context(failed)?;
            }
            EntryType::Link => {
                let linked = entry.link_name()?.with_context(failed)?;
                let linked = place(&linked)?.with_context(failed)?;
                fs::hard_link(root.join(linked), &target).with_context(failed)?;
            }
            kind => bail!("{}: {kind:?} is neither file, folder nor link", below.display()),
        }
    }
    Ok(())
}

/// Where something lies below the root; nothing if it is left out.
fn place(path: &Path) -> Result<Option<PathBuf>> {
    let mut below = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name)
                if below.as_os_str().is_empty() && MERGED.iter().any(|it| name == *it) =>
            {
                below = Path::new("usr").join(name);
            }
            Component::Normal(name) => below.push(name),
            Component::CurDir | Component::RootDir => {}
            _ => bail!("{} leads out of the package", path.display()),
        }
    }
    let is_link_to_usr = MERGED.iter().any(|name| below == Path::new("usr").join(name));
    let is_wanted = (below.starts_with("usr") || below.starts_with("etc"))
        && !LEFT_OUT.iter().any(|folder| below.starts_with(folder));
    Ok((is_wanted && !is_link_to_usr).then_some(below))
}

/// Makes a folder and those above it. None of them may be a link: it would lead elsewhere.
fn make_folder(root: &Path, below: &Path) -> Result<()> {
    let mut folder = root.to_path_buf();
    for part in below.components() {
        folder.push(part);
        match fs::symlink_metadata(&folder) {
            Ok(there) => ensure!(there.is_dir(), "{} is no folder", folder.display()),
            Err(_) => {
                fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
                fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(archive: &mut tar::Builder<Vec<u8>>, kind: EntryType, name: &str, text: &str, mode: u32) {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
        header.set_size(if is_link { 0 } else { text.len() as u64 });
        // Names that `tar` itself would refuse are what is tested.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        if is_link {
            header.set_link_name_literal(text).unwrap();
        }
        header.set_cksum();
        archive.append(&header, if is_link { &b""[..] } else { text.as_bytes() }).unwrap();
    }

    fn unpacked(entries: &[(EntryType, &str, &str, u32)]) -> (tempfile::TempDir, Result<()>) {
        let mut archive = tar::Builder::new(Vec::new());
        for (kind, name, text, mode) in entries {
            entry(&mut archive, *kind, name, text, *mode);
        }
        let root = tempfile::tempdir().unwrap();
        let bytes = archive.into_inner().unwrap();
        let outcome = write(tar::Archive::new(&bytes[..]), root.path());
        (root, outcome)
    }

    #[test]
    fn files_lie_below_usr_and_may_be_read_by_all() {
        let (root, outcome) = unpacked(&[
            (EntryType::Directory, "./lib/", "", 0o755),
            (EntryType::Regular, "./lib/a", "1", 0o600),
            (EntryType::Regular, "./usr/bin/b", "2", 0o4755),
            (EntryType::Link, "./usr/bin/c", "./usr/bin/b", 0o755),
            (EntryType::Symlink, "./usr/lib64/l", "../lib/a", 0o777),
            (EntryType::Regular, "./usr/share/doc/b/d", "3", 0o644),
            (EntryType::Regular, "./var/lib/b/d", "3", 0o644),
        ]);
        outcome.unwrap();
        let of = |name: &str| fs::metadata(root.path().join(name)).map(|it| it.permissions().mode() & 0o7777);
        assert_eq!((of("usr/lib/a").unwrap(), of("usr/bin/b").unwrap()), (0o644, 0o755));
        assert_eq!(fs::read_to_string(root.path().join("usr/bin/c")).unwrap(), "2");
        assert_eq!(fs::read_to_string(root.path().join("usr/lib64/l")).unwrap(), "1");
        assert!(of("usr/share/doc").is_err() && of("var").is_err());
    }

    #[test]
    fn nothing_leads_out_of_the_root() {
        let outside = tempfile::tempdir().unwrap();
        let outside = outside.path().to_str().unwrap();
        for entries in [
            &[(EntryType::Regular, "./usr/../../x", "1", 0o644)][..],
            &[(EntryType::Symlink, "./usr/l", outside, 0o777), (EntryType::Regular, "./usr/l/x", "1", 0o644)],
            &[
                (EntryType::Symlink, "./usr/l", outside, 0o777),
                (EntryType::Directory, "./usr/l/x", "", 0o755),
            ],
            &[(EntryType::Link, "./usr/l", "../../etc/passwd", 0o644)],
            &[(EntryType::Fifo, "./usr/f", "", 0o644)],
        ] {
            assert!(unpacked(entries).1.is_err());
        }
        assert_eq!(fs::read_dir(outside).unwrap().count(), 0);
    }
}
