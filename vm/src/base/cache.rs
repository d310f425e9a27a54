//! The cache under `~/.cache/mayfly`, and when its entries are removed. An entry is named by a hash of all
//! its inputs, so a change of an input makes another entry. Its modification time is that of its last use,
//! and a process that uses it for long holds a lock on it.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tracing::info;

/// Entries used within this time stay, however many: a process may be between finding an entry and locking
/// it.
const RECENT: Duration = Duration::from_secs(24 * 3600);

/// A shared lock on an entry: no process removes the entry while this lives.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "owns the lock")] File);

/// Marks an entry as used now, and locks it against removal.
///
/// # Errors
/// It does not exist, or belongs to another user.
pub fn hold(entry: &Path) -> io::Result<Held> {
    let file = File::open(entry)?;
    file.lock_shared()?;
    file.set_modified(SystemTime::now())?;
    Ok(Held(file))
}

/// Removes entries of one kind that no process holds and that were not used of late, except for the last
/// `keep`. Entries that cannot be removed stay: a cache that is too large is no reason to fail.
pub fn prune(folder: &Path, of_kind: impl Fn(&str) -> bool, keep: usize) {
    let mut entries: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(&of_kind))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry)))
        .collect();
    entries.sort_by_key(|(used, _)| std::cmp::Reverse(*used));
    let is_old = |used: SystemTime| used.elapsed().is_ok_and(|age| age > RECENT);
    for (_, entry) in entries.into_iter().skip(keep).filter(|(used, _)| is_old(*used)) {
        let path = entry.path();
        if File::open(&path).is_ok_and(|held| held.try_lock().is_ok() && remove(&path).is_ok()) {
            info!("not used any more, removed: {}", path.display());
        }
    }
}

/// A folder is renamed first, so that no process finds half an entry.
fn remove(path: &Path) -> io::Result<()> {
    if !path.is_dir() {
        return fs::remove_file(path);
    }
    let removed = path.with_file_name(".gone");
    // Left by a process that was killed.
    let _ = fs::remove_dir_all(&removed);
    fs::rename(path, &removed)?;
    fs::remove_dir_all(&removed)
}

/// Names that are `prefix` and a key of 16 hexadecimal digits.
pub fn key_after(prefix: &str) -> impl Fn(&str) -> bool {
    move |name| {
        let key = name.strip_prefix(prefix).unwrap_or("");
        key.len() == 16 && key.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_old_entries_but_not_last_recent_held_or_other_kinds() {
        let folder = tempfile::tempdir().unwrap();
        let hours = |hours: u64| SystemTime::now() - Duration::from_secs(hours * 3600);
        let make = |name: &str, used: SystemTime| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("kernel"), "much").unwrap();
            File::open(&path).unwrap().set_modified(used).unwrap();
            path
        };
        let key = |number: u64| format!("a-{number:016x}");
        let held = make(&key(1), hours(200));
        let used = hold(&held).unwrap();
        File::open(&held).unwrap().set_modified(hours(200)).unwrap();
        for (number, age) in [(2, 100), (3, 50), (4, 30), (5, 23), (6, 2), (7, 1)] {
            make(&key(number), hours(age));
        }
        make("a-b-0000000000000002", hours(300));
        make("a-12ab", hours(300));
        fs::write(folder.path().join(key(8)), "a file").unwrap();
        File::open(folder.path().join(key(8))).unwrap().set_modified(hours(60)).unwrap();

        let left = || {
            let mut names: Vec<_> =
                fs::read_dir(&folder).unwrap().map(|one| one.unwrap().file_name()).collect();
            names.sort();
            names.into_iter().map(|name| name.into_string().unwrap()).collect::<Vec<_>>()
        };
        let others = ["a-12ab".to_string(), "a-b-0000000000000002".to_string()];
        // 7, 6, 5 and 4 are the last; of the others 1 is held.
        prune(folder.path(), key_after("a-"), 4);
        assert_eq!(left(), [&[1, 4, 5, 6, 7].map(key)[..], &others[..]].concat());
        // Using one makes it recent, and those stay, however many.
        drop(hold(&folder.path().join(key(4))).unwrap());
        prune(folder.path(), key_after("a-"), 1);
        assert_eq!(left(), [&[1, 4, 5, 6, 7].map(key)[..], &others[..]].concat());
        drop(used);
        prune(folder.path(), key_after("a-"), 1);
        assert_eq!(left(), [&[4, 5, 6, 7].map(key)[..], &others[..]].concat());
        prune(&folder.path().join("none"), key_after("a-"), 0);
    }
}
