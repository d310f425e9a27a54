//! The root folder of a program's files: this machine's, or its container's.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The folder that a program sees as `/`. It stays open after the program has ended.
pub enum Root {
    /// This process's own.
    Own,
    /// Another one, by descriptor.
    Other(OwnedFd),
}

impl Root {
    /// The root of a process, which this one must be allowed to inspect.
    ///
    /// # Errors
    /// There is no such process, or it belongs to another user.
    pub fn of_process(pid: u32) -> io::Result<Root> {
        let path = PathBuf::from(format!("/proc/{pid}/root"));
        let (its, own) = (fs::metadata(&path)?, fs::metadata("/")?);
        if (its.dev(), its.ino()) == (own.dev(), own.ino()) {
            return Ok(Root::Own);
        }
        let folder = fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
        Ok(Root::Other(folder.into()))
    }

    /// Opens a regular file below it. No symbolic link leads out of it: the program's files are untrusted.
    ///
    /// # Errors
    /// The kernel's error; or the file is not regular.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK; // opening a pipe would block
        let file = match self {
            Root::Own => fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?,
            Root::Other(folder) => {
                let name = std::ffi::CString::new(path.as_os_str().as_bytes())?;
                // SAFETY: plain numbers, for which zero is a value.
                let mut how: libc::open_how = unsafe { std::mem::zeroed() };
                how.flags = u64::from((libc::O_RDONLY | flags).cast_unsigned());
                how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
                // SAFETY: the name ends in NUL, `how` is of the size given, and the descriptor is new and
                // owned here alone.
                unsafe {
                    let fd = libc::syscall(
                        libc::SYS_openat2,
                        folder.as_raw_fd(),
                        name.as_ptr(),
                        &raw const how,
                        size_of::<libc::open_how>(),
                    );
                    if fd < 0 {
                        return Err(io::Error::last_os_error());
                    }
                    File::from_raw_fd(fd as i32)
                }
            }
        };
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_stay_below_another_root_and_pipes_do_not_block() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "inside").unwrap();
        symlink("/file", folder.path().join("absolute")).unwrap();
        symlink("../../../../etc/passwd", folder.path().join("out")).unwrap();
        let pipe = std::ffi::CString::new(folder.path().join("pipe").as_os_str().as_bytes()).unwrap();
        // SAFETY: a name that ends in NUL.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        let root = Root::Other(File::open(folder.path()).unwrap().into());
        for name in ["/file", "/absolute"] {
            let mut text = String::new();
            root.open(Path::new(name)).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "inside", "{name}");
        }
        for name in ["/out", "/pipe", "/none", "/"] {
            assert!(root.open(Path::new(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn a_process_of_this_machine_has_its_root() {
        assert!(matches!(Root::of_process(std::process::id()).unwrap(), Root::Own));
        assert!(Root::of_process(u32::MAX).is_err());
    }
}
