//! The folder that each process has for itself, /tmp: what the taken one has written there comes along.
//!
//! Its tree is read while the process is stopped, without following a link, and copied behind the pages of
//! the snapshot's file. A restored process has the same files, as its own user's, before it begins.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Timespec, Timestamps};
use serde::{Deserialize, Serialize};

use crate::{Error, While};

/// More files and folders than this are not taken.
const MOST_ENTRIES: usize = 1000;
/// Folders within folders.
const MOST_DEPTH: usize = 32;
/// Copied at once.
const PIECE: usize = 1 << 20;

/// A file, folder or link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Below the folder.
    path: PathBuf,
    mode: u32,
    /// Of the last change: seconds and nanoseconds.
    modified: (i64, u64),
    content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Content {
    Folder,
    /// Where it is in the snapshot's file, and how long.
    File(u64, u64),
    Link(PathBuf),
}

struct Gatherer<'a> {
    pages: &'a File,
    at: u64,
    end: u64,
    entries: Vec<Entry>,
}

/// Copies a folder of a stopped process to the end of the snapshot's file, which has `at` bytes and may have
/// `end`. Returns what it holds.
///
/// # Errors
/// It holds something else than files, folders and links, or too much.
pub fn gather(
    process: libc::pid_t,
    folder: &Path,
    pages: &OwnedFd,
    at: u64,
    end: u64,
) -> Result<Vec<Entry>, Error> {
    let inside = folder.strip_prefix("/").unwrap_or(folder);
    let outside = Path::new("/proc").join(process.to_string()).join("root").join(inside);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::openat(CWD, &outside, flags, Mode::empty()).during("its folder cannot be read")?;
    let pages = File::from(pages.try_clone().during("no descriptor is left")?);
    let mut gatherer = Gatherer { pages: &pages, at, end, entries: Vec::new() };
    gatherer.folder(&top, Path::new(""), 0)?;
    Ok(gatherer.entries)
}

impl Gatherer<'_> {
    fn folder(&mut self, folder: &OwnedFd, path: &Path, depth: usize) -> Result<(), Error> {
        if depth > MOST_DEPTH {
            return Err(Error::Unsupported("a folder that deep".into()));
        }
        for entry in Dir::read_from(folder).during("its folder cannot be read")? {
            let entry = entry.during("its folder cannot be read")?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let path = path.join(OsString::from_vec(name.to_bytes().to_vec()));
            if self.entries.len() == MOST_ENTRIES {
                return Err(Error::Unsupported(format!("a folder of more than {MOST_ENTRIES} files")));
            }
            let about =
                rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).during("its file has gone")?;
            let open = |more: OFlags| {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | more;
                rustix::fs::openat(folder, name, flags, Mode::empty()).during("its file cannot be read")
            };
            let kind = FileType::from_raw_mode(about.st_mode);
            let content = match kind {
                FileType::Directory => Content::Folder,
                FileType::RegularFile if about.st_nlink == 1 => {
                    let (at, bytes) = (self.at, about.st_size as u64);
                    self.copy(&open(OFlags::empty())?.into(), bytes)?;
                    Content::File(at, bytes)
                }
                FileType::Symlink => {
                    let to =
                        rustix::fs::readlinkat(folder, name, Vec::new()).during("its link cannot be read")?;
                    Content::Link(OsString::from_vec(to.into_bytes()).into())
                }
                _ => return Err(Error::Unsupported(format!("{} ({kind:?}) in its folder", path.display()))),
            };
            let modified = (about.st_mtime, about.st_mtime_nsec);
            let mode = about.st_mode & 0o777;
            let is_folder = content == Content::Folder;
            self.entries.push(Entry { path: path.clone(), mode, modified, content });
            if is_folder {
                self.folder(&open(OFlags::DIRECTORY)?, &path, depth + 1)?;
            }
        }
        Ok(())
    }

    fn copy(&mut self, file: &File, bytes: u64) -> Result<(), Error> {
        if bytes > self.end.saturating_sub(self.at) {
            return Err(Error::Unsupported(format!("memory and files of more than {} MiB", self.end >> 20)));
        }
        let mut buffer = vec![0; PIECE.min(bytes as usize)];
        let mut done = 0;
        while done < bytes {
            let part = &mut buffer[..((bytes - done) as usize).min(PIECE)];
            file.read_exact_at(part, done).during("its file cannot be read")?;
            self.pages.write_all_at(part, self.at + done).during("the snapshot cannot be written")?;
            done += part.len() as u64;
        }
        self.at += bytes;
        Ok(())
    }
}

/// Puts the files into this process's folder, which is empty. `pages` is the snapshot's file.
///
/// # Errors
/// A file cannot be made.
pub fn lay_out(folder: &Path, entries: &[Entry], pages: BorrowedFd<'_>) -> std::io::Result<()> {
    let pages = File::from(pages.try_clone_to_owned()?);
    for entry in entries {
        let path = folder.join(&entry.path);
        match &entry.content {
            // Its rights come last: it may not be writable.
            Content::Folder => std::fs::create_dir(&path)?,
            Content::Link(to) => symlink(to, &path)?,
            Content::File(at, bytes) => {
                let mut file =
                    File::options().write(true).create_new(true).mode(entry.mode | 0o200).open(&path)?;
                let mut buffer = vec![0; PIECE.min(*bytes as usize)];
                let mut done = 0;
                while done < *bytes {
                    let part = &mut buffer[..((bytes - done) as usize).min(PIECE)];
                    pages.read_exact_at(part, at + done)?;
                    file.write_all(part)?;
                    done += part.len() as u64;
                }
            }
        }
    }
    for entry in entries.iter().rev().filter(|entry| !matches!(entry.content, Content::Link(_))) {
        let path = folder.join(&entry.path);
        let time = Timespec { tv_sec: entry.modified.0, tv_nsec: entry.modified.1 as _ };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        rustix::fs::chmod(&path, Mode::from_raw_mode(entry.mode))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::program;

    fn own_id() -> libc::pid_t {
        std::process::id() as libc::pid_t
    }

    #[test]
    fn files_come_along_with_rights_and_times() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = |name: &str| from.path().join(name);
        std::fs::create_dir_all(path("a/b")).unwrap();
        std::fs::write(path("a/b/long"), vec![7; 3 << 20]).unwrap();
        std::fs::write(path("a/program"), "x").unwrap();
        std::fs::set_permissions(path("a/program"), PermissionsExt::from_mode(0o500)).unwrap();
        symlink("/etc/passwd", path("link")).unwrap();
        let pages = program::memory_file().unwrap();
        let entries = gather(own_id(), from.path(), &pages, 4096, 4 << 20).unwrap();
        lay_out(to.path(), &entries, pages.as_fd()).unwrap();
        assert_eq!(std::fs::read(to.path().join("a/b/long")).unwrap(), vec![7; 3 << 20]);
        assert_eq!(std::fs::read_link(to.path().join("link")).unwrap(), Path::new("/etc/passwd"));
        let about = |path: PathBuf| {
            std::fs::metadata(path).map(|it| (it.permissions().mode(), it.modified().unwrap()))
        };
        assert_eq!(about(path("a/program")).unwrap(), about(to.path().join("a/program")).unwrap());
    }

    #[test]
    fn pipes_hard_links_and_too_much_are_refused() {
        let pages = program::memory_file().unwrap();
        let refusal = |make: fn(&Path)| {
            let folder = tempfile::tempdir().unwrap();
            make(folder.path());
            gather(own_id(), folder.path(), &pages, 0, 1 << 20).unwrap_err().to_string()
        };
        let link = |folder: &Path| {
            std::fs::write(folder.join("a"), "x").unwrap();
            std::fs::hard_link(folder.join("a"), folder.join("b")).unwrap();
        };
        assert!(refusal(link).contains("RegularFile"));
        let pipe = |folder: &Path| {
            rustix::fs::mknodat(CWD, folder.join("p"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        };
        assert!(refusal(pipe).contains("Fifo"));
        let large = |folder: &Path| File::create(folder.join("l")).unwrap().set_len(2 << 20).unwrap();
        assert!(refusal(large).contains("more than 1 MiB"));
        let many = |folder: &Path| {
            (0..=MOST_ENTRIES)
                .for_each(|number| drop(File::create(folder.join(number.to_string())).unwrap()));
        };
        assert!(refusal(many).contains("more than 1000 files"));
        let deep = |folder: &Path| {
            let path = (0..40).fold(folder.to_path_buf(), |path, _| path.join("d"));
            std::fs::create_dir_all(path).unwrap();
        };
        assert!(refusal(deep).contains("deep"));
    }
}
