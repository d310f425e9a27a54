//! A folder that a hostile archive is unpacked into. The kernel resolves names as if the folder were the
//! root of a file system (openat2(2), `RESOLVE_IN_ROOT`), so no link of the archive's leads out.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, fchmod, futimens, linkat, mkdirat,
    open, openat, openat2, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::FOLDER_DEPTH;

/// Tries while another process moves folders, so that the kernel cannot know where `..` leads.
const TRIES: usize = 100;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The folder.
pub struct Tree {
    root: OwnedFd,
    path: PathBuf,
    /// Folders that may still be made because something lies in them: one name can have many, and they take
    /// room on the disk.
    unnamed: Cell<usize>,
}

/// A file's mode and age, from an archive.
#[derive(Clone, Copy)]
pub struct Attributes {
    pub mode: u32,
    pub modified_s: u64,
}

/// A name in an archive that stays below its root, without its `.` parts.
pub fn inside(name: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in name.components() {
        match part {
            Component::Normal(part) => plain.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(plain)
}

impl Tree {
    /// An empty folder, in which at most so many folders are made that have no entry of their own.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn new(path: &Path, unnamed: usize) -> io::Result<Tree> {
        let root = open(path, FOLDER, Mode::empty())?;
        Ok(Tree { root, path: path.canonicalize()?, unnamed: Cell::new(unnamed) })
    }

    fn folder(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        for _ in 0..TRIES {
            match openat2(&self.root, path, FOLDER, Mode::empty(), resolve) {
                Err(Errno::AGAIN) => {}
                outcome => return outcome,
            }
        }
        Err(Errno::AGAIN)
    }

    /// The same, with missing folders made.
    fn made(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.folder(path) {
            Err(Errno::NOENT) if !path.as_os_str().is_empty() => {
                let parent = self.made(path.parent().unwrap_or(Path::new("")))?;
                self.check_depth(&parent)?;
                let left = self.unnamed.get().checked_sub(1);
                self.unnamed.set(left.ok_or_else(|| io::Error::other("it has too many folders"))?);
                mkdirat(&parent, path.file_name().unwrap_or_default(), Mode::from_raw_mode(0o755))?;
                Ok(self.folder(path)?)
            }
            outcome => Ok(outcome?),
        }
    }

    /// Links can hide the depth of a folder, so the kernel is asked for its path.
    fn check_depth(&self, folder: &OwnedFd) -> io::Result<()> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", folder.as_raw_fd()))?;
        let depth = path.strip_prefix(&self.path).map_or(usize::MAX, |below| below.components().count());
        if depth >= FOLDER_DEPTH {
            Err(io::Error::other("folders lie too deep in one another"))
        } else {
            Ok(())
        }
    }

    /// The folder of a path, and its name there.
    fn place<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let name = path.file_name().ok_or_else(|| io::Error::other("it has no name"))?;
        Ok((self.made(path.parent().unwrap_or(Path::new("")))?, name))
    }

    /// Removes the entry of a name: of a link the link itself, not its target. A missing entry is no
    /// error.
    ///
    /// # Errors
    /// It cannot be.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        let parent = match self.folder(path.parent().unwrap_or(Path::new(""))) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            outcome => outcome?,
        };
        match path.file_name() {
            Some(name) => remove_at(&parent, name),
            None => Ok(()),
        }
    }

    /// Removes the contents of a folder, if it is one.
    ///
    /// # Errors
    /// It cannot be.
    pub fn empty(&self, path: &Path) -> io::Result<()> {
        let folder = match self.folder(path) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            outcome => outcome?,
        };
        for entry in cap_std::fs::Dir::from_std_file(File::from(folder.try_clone()?)).entries()? {
            remove_at(&folder, &entry?.file_name())?;
        }
        Ok(())
    }

    /// Makes a folder, or gives the one that is there these attributes.
    ///
    /// # Errors
    /// It cannot be.
    pub fn put_folder(&self, path: &Path, attributes: Attributes) -> io::Result<()> {
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        let (parent, name) = self.place(path)?;
        if kind_at(&parent, name)? != Some(FileType::Directory) {
            remove_at(&parent, name)?;
            self.check_depth(&parent)?;
            mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
        }
        let folder = openat(&parent, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
        // The owner keeps the right to write.
        Ok(fchmod(&folder, Mode::from_raw_mode(attributes.mode & 0o777 | 0o700))?)
    }

    /// Makes a file with the bytes of `content`, in place of an existing entry. The file has no
    /// set-user-id bit, which would give rights.
    ///
    /// # Errors
    /// It cannot be, or the content cannot be read.
    pub fn put_file(
        &self,
        path: &Path,
        attributes: Attributes,
        content: &mut impl io::Read,
    ) -> io::Result<u64> {
        let (parent, name) = self.place(path)?;
        remove_at(&parent, name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&parent, name, flags, Mode::from_raw_mode(0o600))?);
        let written = io::copy(content, &mut file)?;
        fchmod(&file, Mode::from_raw_mode(attributes.mode & 0o777))?;
        // Python uses a compiled module only if its source has the age that the module names.
        let age =
            Timespec { tv_sec: attributes.modified_s.min(u64::from(u32::MAX)).cast_signed(), tv_nsec: 0 };
        futimens(&file, &Timestamps { last_access: age, last_modification: age })?;
        Ok(written)
    }

    /// Makes a link, whose target is resolved in an instance only.
    ///
    /// # Errors
    /// It cannot be.
    pub fn put_link(&self, path: &Path, points_to: &Path) -> io::Result<()> {
        let (parent, name) = self.place(path)?;
        remove_at(&parent, name)?;
        Ok(symlinkat(points_to, &parent, name)?)
    }

    /// Makes a hard link to a file or a link.
    ///
    /// # Errors
    /// There is none.
    pub fn put_name(&self, path: &Path, first: &Path) -> io::Result<()> {
        let there = self.folder(first.parent().unwrap_or(Path::new("")))?;
        let name_there = first.file_name().ok_or(io::ErrorKind::NotFound)?;
        match kind_at(&there, name_there)? {
            Some(FileType::RegularFile | FileType::Symlink) => {}
            Some(_) => return Err(io::Error::other("a hard link to what is no file")),
            None => return Err(io::ErrorKind::NotFound.into()),
        }
        let (parent, name) = self.place(path)?;
        if is_same(&there, name_there, &parent, name)? {
            return Ok(());
        }
        remove_at(&parent, name)?;
        Ok(linkat(&there, name_there, &parent, name, AtFlags::empty())?)
    }

    /// Writes all of it to the disk.
    ///
    /// # Errors
    /// It cannot.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.root)?)
    }
}

fn kind_at(parent: &OwnedFd, name: &OsStr) -> io::Result<Option<FileType>> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_same(first: &OwnedFd, name: &OsStr, second: &OwnedFd, other: &OsStr) -> io::Result<bool> {
    let first = statat(first, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let second = statat(second, other, AtFlags::SYMLINK_NOFOLLOW);
    Ok(second.is_ok_and(|second| (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)))
}

fn remove_at(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match kind_at(parent, name)? {
        None => Ok(()),
        Some(FileType::Directory) => {
            cap_std::fs::Dir::from_std_file(File::from(parent.as_fd().try_clone_to_owned()?))
                .remove_dir_all(name)
        }
        Some(_) => Ok(unlinkat(parent, name, AtFlags::empty())?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_makes_a_bounded_number_of_folders() {
        let folder = tempfile::tempdir().unwrap();
        let tree = Tree::new(folder.path(), 5).unwrap();
        let attributes = Attributes { mode: 0o644, modified_s: 0 };
        let put = |name: &str| tree.put_file(Path::new(name), attributes, &mut io::empty());
        assert!(put("a/b/c/file").is_ok());
        assert!(put("a/b/c/other").is_ok(), "they are there already");
        assert_eq!(put("d/e/f/file").unwrap_err().to_string(), "it has too many folders");
        assert!(!folder.path().join("d/e/f").exists());
    }
}
