//! Which process of an instance a snapshot is taken of.

use std::fs;

use anyhow::{Context, Result};
use worker_snapshot::Error;

/// The one process of an instance that is neither its monitor nor process 1.
pub(super) fn runtime_of(processes: &[i32]) -> Result<i32> {
    let own = ids("self").context("no /proc")?.len();
    let mut found = None;
    for process in processes {
        let Some(inside) = ids(&process.to_string()).filter(|ids| ids.len() > own) else { continue };
        if inside.last() == Some(&1) {
            continue;
        }
        if found.is_some() {
            return Err(Error::Unsupported("more than one process".into()).into());
        }
        found = Some(*process);
    }
    found.context("the process has ended")
}

/// A process's ids in its PID namespaces, from the outermost.
fn ids(process: &str) -> Option<Vec<i32>> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    Some(line.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_this_namespace_are_no_runtime() {
        assert!(ids("self").is_some());
        let error = runtime_of(&[std::process::id() as i32, i32::MAX]).unwrap_err();
        assert_eq!(error.to_string(), "the process has ended");
    }
}
