//! Open files. Standard streams and the descriptor that the process waits at are the launcher's to give.
//! Files that are open for reading are opened anew, by the paths that they have inside, and all files of the
//! folder that each process has for itself.

use std::fs;
use std::path::{Path, PathBuf};

use crate::plan::{Operation, Plan};
use crate::{Error, PAGES, WAITS, While, status};

/// Descriptors from here on are free for the restorer.
const FREE: u64 = 512;
/// Devices without state, which may be open for writing, too.
const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];
/// More files than this are not restored.
const MOST: usize = 64;

/// A file to be opened anew.
struct File {
    descriptor: u64,
    path: PathBuf,
    flags: i32,
    position: u64,
}

fn read(process: libc::pid_t, own: Option<&Path>) -> Result<Vec<File>, Error> {
    let mut files = Vec::new();
    let root = status::root(process)?;
    for entry in fs::read_dir(format!("/proc/{process}/fd")).during("its files cannot be listed")? {
        let entry = entry.during("its files cannot be listed")?;
        let Some(descriptor) = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok()) else {
            continue;
        };
        if descriptor <= 2 || descriptor == WAITS as u64 {
            continue;
        }
        let path = status::inside(&root, fs::read_link(entry.path()).during("its files cannot be listed")?);
        let about = status::text(process, &format!("fdinfo/{descriptor}"))?;
        let position = status::value(&about, "pos").and_then(|text| text.parse().ok());
        let flags = status::value(&about, "flags").and_then(|text| i32::from_str_radix(text, 8).ok());
        let is_device = DEVICES.iter().any(|device| path.as_os_str() == *device);
        let is_regular = fs::metadata(entry.path()).is_ok_and(|about| about.is_file());
        let shown = path.display();
        let (Some(position), Some(flags), true, true) =
            (position, flags, is_device || is_regular && path.is_absolute(), descriptor < FREE)
        else {
            return Err(Error::Unsupported(format!("the open file {descriptor} ({shown})")));
        };
        let is_own = own.is_some_and(|own| path.starts_with(own));
        let is_read = flags & libc::O_ACCMODE == libc::O_RDONLY && flags & libc::O_PATH == 0;
        if !is_device && !is_own && !is_read || path.to_string_lossy().ends_with(" (deleted)") {
            return Err(Error::Unsupported(format!(
                "the file {shown}, which is open for writing or deleted,"
            )));
        }
        if files.len() == MOST {
            return Err(Error::Unsupported(format!("more than {MOST} open files")));
        }
        files.push(File { descriptor, path, flags, position });
    }
    Ok(files)
}

/// Appends what opens the process's files again; closes what the restorer has opened. After it no slot of a
/// mapping's file is valid.
///
/// # Errors
/// It has a file that cannot be opened anew.
pub fn plan(process: libc::pid_t, plan: &mut Plan, own: Option<&Path>) -> Result<(), Error> {
    let waits = WAITS as u64;
    const { assert!(PAGES > WAITS) };
    plan.push(Operation::call(libc::SYS_close_range, &[3, waits - 1, 0]))?;
    plan.push(Operation::call(libc::SYS_close_range, &[waits + 1, u32::MAX.into(), 0]))?;
    for File { descriptor, path, flags, position } in read(process, own)? {
        let path = plan.text(path.as_os_str().as_encoded_bytes())?;
        let opening = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC) | libc::O_CLOEXEC;
        let opened = plan.push_kept(Operation::call(libc::SYS_open, &[path, opening as u64]))?;
        // Away from the numbers that are still to be given.
        let copy = Operation::call(libc::SYS_fcntl, &[0, libc::F_DUPFD_CLOEXEC as u64, FREE]).plus(0, opened);
        let copy = plan.push_kept(copy)?;
        plan.push(Operation::call(libc::SYS_close, &[0]).plus(0, opened))?;
        let closes = (flags & libc::O_CLOEXEC) as u64;
        plan.push(Operation::call(libc::SYS_dup3, &[0, descriptor, closes]).plus(0, copy))?;
        plan.push(Operation::call(libc::SYS_close, &[0]).plus(0, copy))?;
        if position != 0 {
            plan.push(Operation::call(libc::SYS_lseek, &[descriptor, position, libc::SEEK_SET as u64]))?;
        }
    }
    Ok(())
}
