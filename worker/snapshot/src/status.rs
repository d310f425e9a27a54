//! What /proc tells of a process that the restorer does not set: it must be as its parent's, in whose
//! sandbox restored processes begin.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::{Error, WAITS, While};

/// The begin of a program, where its notes lie.
const NOTES: u64 = 64 << 10;
/// The lines of /proc/PID/status that must be alike.
const ALIKE: [&str; 9] =
    ["Uid", "Gid", "Groups", "CapEff", "CapPrm", "CapInh", "CapAmb", "NoNewPrivs", "Seccomp_filters"];

/// A file of /proc about a process, as text. What the process chose of it, such as its name, may be no
/// UTF-8.
///
/// # Errors
/// It has ended.
pub fn text(process: libc::pid_t, file: &str) -> Result<String, Error> {
    let bytes = fs::read(format!("/proc/{process}/{file}")).during("it has ended")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The value of a line `NAME: value`.
pub fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// The root folder of a process, as this process sees it. In a chroot the kernel names what a sandbox has
/// mapped and open from the root of all, and not from the sandbox's own root.
///
/// # Errors
/// It has ended.
pub fn root(process: libc::pid_t) -> Result<PathBuf, Error> {
    fs::read_link(format!("/proc/{process}/root")).during("it has ended")
}

/// A path of a process as the process itself has it.
pub fn inside(root: &Path, path: PathBuf) -> PathBuf {
    match path.strip_prefix(root) {
        Ok(rest) => Path::new("/").join(rest),
        Err(_) => path,
    }
}

/// Whether it is a program that Go has linked, by the note with its build's name. Go's runtime clears memory
/// that it has used before, whether it has given it back or not, and never calls `mremap`.
pub fn is_go(process: libc::pid_t) -> bool {
    let mut begin = Vec::new();
    let Ok(program) = fs::File::open(format!("/proc/{process}/exe")) else { return false };
    let note = |words: &[u8]| words[..4] == [4, 0, 0, 0] && words[8..] == *b"\x04\0\0\0Go\0\0";
    program.take(NOTES).read_to_end(&mut begin).is_ok() && begin.windows(16).step_by(4).any(note)
}

/// Whether the main thread waits in `read` at [`WAITS`].
///
/// # Errors
/// It does not, or has ended.
pub fn waits_at_line(process: libc::pid_t) -> Result<(), Error> {
    let call = text(process, "syscall")?;
    let mut words = call.split_ascii_whitespace();
    if (words.next(), words.next()) == (Some("0"), Some(&format!("{WAITS:#x}"))) {
        return Ok(());
    }
    Err(Error::Unsupported("a main thread that does not wait".into()))
}

/// Compares the process with its parent.
///
/// # Errors
/// What differs: it cannot be restored.
pub fn check(process: libc::pid_t) -> Result<(), Error> {
    let own = text(process, "status")?;
    let parent = value(&own, "PPid").and_then(|id| id.parse().ok()).unwrap_or(0);
    let others = text(parent, "status")?;
    for name in ALIKE {
        if value(&own, name) != value(&others, name) {
            return Err(Error::Unsupported(format!("a process that has changed its {name}")));
        }
    }
    if text(process, "limits")? != text(parent, "limits")? {
        return Err(Error::Unsupported("a process that has changed its limits".into()));
    }
    for task in fs::read_dir(format!("/proc/{process}/task")).during("it has ended")? {
        let task = task.during("it has ended")?.path().join("children");
        // Without the kernel's CONFIG_PROC_CHILDREN the file is missing: the caller counts processes, too.
        if fs::read(task).is_ok_and(|children| !children.is_empty()) {
            return Err(Error::Unsupported("a child process".into()));
        }
    }
    if fs::read(format!("/proc/{process}/timers")).is_ok_and(|timers| !timers.is_empty()) {
        return Err(Error::Unsupported("a timer".into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_inside() {
        let inside = |root: &str, path: &str| super::inside(root.as_ref(), path.into());
        assert_eq!(inside("/", "/usr/bin/x"), Path::new("/usr/bin/x"));
        assert_eq!(inside("/a/root", "/a/root/usr/x (deleted)"), Path::new("/usr/x (deleted)"));
        assert_eq!(inside("/a/root", "/a/root"), Path::new("/"));
        assert_eq!(inside("/a/root", "/a/rootless/x"), Path::new("/a/rootless/x"));
        assert_eq!(inside("/a/root", "pipe:[1]"), Path::new("pipe:[1]"));
    }

    #[test]
    fn values_are_found_by_whole_names() {
        let text = "Name:\tx\nUidless:\t1\nUid:\t7 7\n";
        assert_eq!(super::value(text, "Uid"), Some("7 7"));
        assert_eq!(super::value(text, "Gid"), None);
    }
}
