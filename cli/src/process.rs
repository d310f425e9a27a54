//! Reads processes from /proc: their descent, and whether one has Mayfly's heap and can be attached to.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;

use anyhow::{Result, bail, ensure};

use crate::program;

/// Whether a process runs; a zombie does not.
pub fn is_running(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// A process' state, and its parent.
fn stat(pid: u32) -> Option<(char, u32)> {
    let line = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let line = String::from_utf8_lossy(&line);
    // The name, in parentheses, may hold anything.
    let mut fields = line.rsplit(')').next()?.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// All processes.
pub fn all() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut numbers: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// These processes and all that descend from them, themselves first.
pub fn trees(roots: &[u32]) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for process in all() {
        if let Some((_, parent)) = stat(process) {
            children.entry(parent).or_default().push(process);
        }
    }
    let mut found = roots.to_vec();
    let mut at = 0;
    while at < found.len() {
        let new = children.remove(&found[at]).unwrap_or_default();
        found.extend(new.into_iter().filter(|child| !roots.contains(child)));
        at += 1;
    }
    found
}

/// The processes of this name, or that run a program of this file name, without those that descend from
/// another of them.
pub fn named(wanted: &str) -> Vec<u32> {
    let is_called = |pid: &u32| {
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let file = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name(*pid).is_some_and(|name| name == wanted) || file.trim_end_matches(" (deleted)") == wanted
    };
    let own = std::process::id();
    let all: Vec<u32> =
        all().into_iter().filter(|&pid| pid != own && is_running(pid)).filter(is_called).collect();
    let descends = |pid: &u32| stat(*pid).is_some_and(|(_, parent)| all.contains(&parent));
    all.iter().copied().filter(|pid| !descends(pid)).collect()
}

/// The name of a process, as `ps` shows it.
pub fn name(pid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().replace('/', "_"))
}

/// The PID of a process in its own namespace.
pub fn own_number(pid: u32) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().next_back().map(str::to_owned)
}

/// Checks whether attaching to a process is possible, as far as can be seen from outside.
///
/// # Errors
/// The reason why not, and the cure.
pub fn check(pid: u32) -> Result<()> {
    ensure!(is_running(pid), "there is no process {pid}");
    let user = rustix::process::geteuid().as_raw();
    let Ok(maps) = std::fs::read(format!("/proc/{pid}/maps")) else {
        // Root may be denied the file, too; the heap, if there is one, accepts root all the same.
        ensure!(user == 0, "process {pid} is another user's: attach as root, or as that user");
        return Ok(());
    };
    let owner = std::fs::metadata(format!("/proc/{pid}")).map_or(user, |folder| folder.uid());
    ensure!(user == 0 || user == owner, "process {pid} is another user's: attach as root, or as that user");
    if !contains(&maps, b"libmayfly_heap") {
        let program = std::path::PathBuf::from(format!("/proc/{pid}/exe"));
        if let Some(why) = program::no_profile(&program) {
            bail!("process {pid} {}", why.trim_start_matches(&*program.to_string_lossy()).trim_start());
        }
        bail!("process {pid} does not run on Mayfly's heap: start it with mayfly run");
    }
    let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    match control(&variables) {
        Some(false) => {
            bail!("process {pid} cannot be attached to: start it with mayfly run, or MAYFLY_HEAP_CONTROL=on")
        }
        _ => Ok(()),
    }
}

/// Whether these variables permit attaching; `None` where they are lost: a program that shows its state as
/// its name (as setproctitle does) overwrites them, and then only the heap knows.
fn control(variables: &[u8]) -> Option<bool> {
    let value = |name: &[u8]| variables.split(|&byte| byte == 0).find_map(|line| line.strip_prefix(name));
    match value(b"MAYFLY_HEAP_CONTROL=") {
        Some(value) => Some(value == b"on" || value.starts_with(b"/")),
        // The variables are intact: the heap was preloaded by one of them.
        None => value(b"LD_PRELOAD=").filter(|value| contains(value, b"libmayfly_heap")).map(|_| false),
    }
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overwritten_variables_decide_nothing() {
        assert_eq!(control(b"A=1\0MAYFLY_HEAP_CONTROL=on\0"), Some(true));
        assert_eq!(control(b"MAYFLY_HEAP_CONTROL=/run/x\0"), Some(true));
        assert_eq!(control(b"MAYFLY_HEAP_CONTROL=off\0"), Some(false));
        assert_eq!(control(b"LD_PRELOAD=/opt/libmayfly_heap.so\0HOME=/\0"), Some(false));
        assert_eq!(control(b"postgres: writer process\0\0\0"), None);
        assert_eq!(control(b""), None);
    }

    #[test]
    fn a_tree_has_children_and_their_children_and_no_others() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let descends = || trees(&[child.id()]);
        while descends().len() < 2 {
            std::thread::yield_now();
        }
        let found = descends();
        assert_eq!(found[0], child.id());
        assert!(!found.contains(&std::process::id()));
        assert!(trees(&[std::process::id()]).contains(&found[1]));
        // SAFETY: the numbers are of processes of this test, which run.
        found.iter().for_each(|&pid| unsafe { assert_eq!(libc::kill(pid as i32, libc::SIGKILL), 0) });
        child.wait().unwrap();
        assert!(!is_running(child.id()));
    }
}
