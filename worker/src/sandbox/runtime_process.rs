//! Which process of an instance a snapshot is taken of.

use std::fs;

use anyhow::{Context, Result};
use worker_snapshot::Error;

/// The one process of an instance that is neither its monitor, nor process 1, nor an extension's.
pub(super) fn runtime_of(processes: &[i32]) -> Result<i32> {
    let own = ids("self", "NSpid").context("no /proc")?.len();
    let mut found = None;
    for process in processes {
        let name = process.to_string();
        let Some(inside) = ids(&name, "NSpid").filter(|ids| ids.len() > own) else { continue };
        if inside.last() == Some(&1) || is_of_extensions(&name) {
            continue;
        }
        if found.is_some() {
            return Err(Error::Unsupported("more than one process".into()).into());
        }
        found = Some(*process);
    }
    found.context("the process has ended")
}

/// Process 1 is in a session of outside, and so are its extensions. The runtime has begun one of its own, and
/// no process can join another.
fn is_of_extensions(process: &str) -> bool {
    ids(process, "NSsid").is_some_and(|sessions| sessions.last() == Some(&0))
}

/// A process's ids, or its session's, in its PID namespaces, from the outermost.
fn ids(process: &str, kind: &str) -> Option<Vec<i32>> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(':'))?;
    Some(line.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    #[test]
    fn processes_of_this_namespace_are_no_runtime() {
        assert!(ids("self", "NSpid").is_some());
        let error = runtime_of(&[std::process::id() as i32, i32::MAX]).unwrap_err();
        assert_eq!(error.to_string(), "the process has ended");
    }

    #[test]
    fn processes_that_began_a_session_are_not_of_extensions() {
        // This process itself may be in a session of outside, if a container's engine has started it.
        let mut child = Command::new("setsid").args(["sleep", "60"]).spawn().unwrap();
        let name = child.id().to_string();
        let begun = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            ids(&name, "NSsid").and_then(|ids| ids.last().copied()) == Some(child.id() as i32)
        });
        let is_of_extensions = is_of_extensions(&name);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(begun && !is_of_extensions);
    }
}
