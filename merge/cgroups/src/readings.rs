//! What is in a group, and what it uses.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::group::PROCS;
use crate::{Group, Version};

impl Group {
    /// The processes in it.
    pub fn processes(&self) -> Vec<i32> {
        self.read(PROCS).unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// The processes in it and in those below it.
    pub fn all_processes(&self) -> Vec<i32> {
        let below = self.children().into_iter().flat_map(|child| child.all_processes());
        self.processes().into_iter().chain(below).collect()
    }

    /// Bytes of memory that it uses now.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.number(self.named("memory.usage_in_bytes", "memory.current"))
    }

    /// The limit of its memory, if it has one: without one version 1 reports a number beyond any memory.
    pub fn memory_limit(&self) -> Option<u64> {
        self.number(self.named("memory.limit_in_bytes", "memory.max"))
    }

    /// Bytes of anonymous memory that it uses now.
    pub fn anonymous_bytes(&self) -> Option<u64> {
        self.entry("memory.stat", self.named("rss", "anon"))
    }

    /// The most memory that it has used, if the kernel counts that: version 2 since Linux 5.19.
    pub fn peak(&self) -> Option<Peak> {
        let file = self.named("memory.max_usage_in_bytes", "memory.peak");
        File::open(self.folder().join(file)).ok().map(Peak)
    }

    /// How often the kernel killed one of its processes because its memory ran out.
    pub fn memory_kills(&self) -> u64 {
        self.entry(self.named("memory.oom_control", "memory.events"), "oom_kill").unwrap_or(0)
    }

    /// Reclaims the page cache that is charged to it: version 2, since Linux 5.19. It must have no processes.
    pub fn reclaim(&self) {
        // Pages that other processes have just used need more than one pass.
        for _ in 0..8 {
            if self.entry("memory.stat", "file").is_none_or(|bytes| bytes == 0) {
                return;
            }
            // More than the group has, which the kernel reports as an error: reclaim everything.
            let _ = self.write("memory.reclaim", "1G");
        }
    }

    fn named(&self, one: &'static str, two: &'static str) -> &'static str {
        if self.version() == Version::One { one } else { two }
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.folder().join(file)).ok()
    }

    fn number(&self, file: &str) -> Option<u64> {
        self.read(file)?.trim().parse().ok()
    }

    /// The number behind `key` in a file of lines `key number`.
    fn entry(&self, file: &str, key: &str) -> Option<u64> {
        let text = self.read(file)?;
        text.lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(name, _)| *name == key)?
            .1
            .trim()
            .parse()
            .ok()
    }
}

/// The most memory that a group has used: its file, open, as it may be read at every request.
#[derive(Debug)]
pub struct Peak(File);

impl Peak {
    /// The bytes.
    pub fn bytes(&self) -> Option<u64> {
        let mut digits = [0; 24];
        let read = self.0.read_at(&mut digits, 0).ok()?;
        std::str::from_utf8(&digits[..read]).ok()?.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn with_files(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        files.iter().for_each(|(file, text)| fs::write(folder.join(file), text).unwrap());
    }

    #[test]
    fn each_version_has_files_of_its_own() {
        let base = tempfile::tempdir().unwrap();
        let (one, two) = (Group::one(vec![base.path().join("1")], None), Group::two(base.path().join("2")));
        for group in [&one, &two] {
            assert_eq!(
                (group.memory_bytes(), group.memory_limit(), group.anonymous_bytes()),
                (None, None, None)
            );
            assert!(group.peak().is_none() && group.memory_kills() == 0 && group.processes().is_empty());
        }
        let files = [
            ("memory.usage_in_bytes", "4096\n"),
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.max_usage_in_bytes", "8192\n"),
            ("memory.stat", "cache 3\nrss_huge 1\nrss 2\ntotal_rss 9\n"),
            ("memory.oom_control", "oom_kill_disable 7\nunder_oom 0\noom_kill 3\n"),
        ];
        with_files(one.folder(), &files);
        let files = [
            ("memory.current", "4097\n"),
            ("memory.max", "max\n"),
            ("memory.peak", "8193\n"),
            ("memory.stat", "anon_thp 1\nanon 5\nfile 0\n"),
            ("memory.events", "oom 8\noom_kill 4\noom_group_kill 9\n"),
        ];
        with_files(two.folder(), &files);
        assert_eq!((one.memory_bytes(), two.memory_bytes()), (Some(4096), Some(4097)));
        assert_eq!((one.memory_limit(), two.memory_limit()), (Some(9_223_372_036_854_771_712), None));
        assert_eq!((one.anonymous_bytes(), two.anonymous_bytes()), (Some(2), Some(5)));
        assert_eq!((one.peak().unwrap().bytes(), two.peak().unwrap().bytes()), (Some(8192), Some(8193)));
        assert_eq!((one.memory_kills(), two.memory_kills()), (3, 4));
    }

    #[test]
    fn processes_are_those_of_a_group_and_of_all_below_it() {
        let base = tempfile::tempdir().unwrap();
        for (folder, text) in [("", "1\n2\n"), ("a", ""), ("a/b", "3\nno number\n"), ("c", "4\n")] {
            with_files(&base.path().join(folder), &[(PROCS, text)]);
        }
        let group = Group::two(base.path());
        let mut all = group.all_processes();
        all.sort_unstable();
        assert_eq!((group.processes(), all), (vec![1, 2], vec![1, 2, 3, 4]));
        assert_eq!(group.children().len(), 2);
    }

    #[test]
    fn page_cache_is_reclaimed_while_there_is_some() {
        let base = tempfile::tempdir().unwrap();
        let group = Group::two(base.path());
        with_files(base.path(), &[("memory.stat", "anon 5\nfile 0\n")]);
        group.reclaim();
        assert!(!base.path().join("memory.reclaim").exists());
        with_files(base.path(), &[("memory.stat", "anon 5\nfile 4096\n")]);
        group.reclaim();
        assert_eq!(fs::read_to_string(base.path().join("memory.reclaim")).unwrap(), "1G");
    }
}
