//! The end of a group: of its processes, then of its folders.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::{Error, Group, Version, cannot};

impl Group {
    /// Sends SIGKILL to its processes; in version 2, since Linux 5.14, also to those that are just being
    /// forked. In version 1 frozen ones do not even take that.
    ///
    /// # Errors
    /// It is gone.
    pub fn kill(&self) -> Result<(), Error> {
        if self.version() == Version::Two && self.folder().join("cgroup.kill").exists() {
            return self.write("cgroup.kill", "1");
        }
        // Had one ended since, its number could be another's only after the kernel has used up all numbers.
        for process in self.processes().into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(process, Signal::KILL);
        }
        Ok(())
    }

    /// Waits until no process is left in it or below it: version 2 only.
    ///
    /// # Errors
    /// One is left after that time, or the group is gone.
    pub fn wait_empty(&self, patience: Duration) -> Result<(), Error> {
        let (begin, file) = (Instant::now(), self.folder().join("cgroup.events"));
        loop {
            // Opened before it is read: a change in between is then reported by poll.
            let events = File::open(&file).map_err(cannot("open", &file))?;
            let text = io::read_to_string(&events).map_err(cannot("read", &file))?;
            if text.lines().any(|line| line == "populated 0") {
                return Ok(());
            }
            if begin.elapsed() > patience {
                return Err(Error::Populated(self.folder().into()));
            }
            let tenth = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let _ = poll(&mut [PollFd::from_borrowed_fd(events.as_fd(), PollFlags::PRI)], Some(&tenth));
        }
    }

    /// Removes it. It may be gone already.
    ///
    /// # Errors
    /// A process or group is left in it.
    pub fn remove(&self) -> Result<(), Error> {
        let mut outcome = Ok(());
        for folder in self.all_folders() {
            if let Err(error) = fs::remove_dir(folder)
                && error.kind() != io::ErrorKind::NotFound
            {
                outcome = Err(cannot("remove the cgroup", folder)(error));
            }
        }
        outcome
    }

    /// Removes it once what was killed in it has ended, and the kernel has finished the teardown.
    ///
    /// # Errors
    /// A process is left in it after that time.
    pub fn remove_within(&self, patience: Duration) -> Result<(), Error> {
        let begin = Instant::now();
        loop {
            match self.remove() {
                Err(error) if error.is(io::ErrorKind::ResourceBusy) && begin.elapsed() < patience => {
                    sleep(Duration::from_millis(1));
                }
                outcome => return outcome,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;
    use crate::plain_folders::{text, two};
    use crate::{Limits, THREADS};

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn kill_reaches_all_processes_by_the_kernel_or_one_by_one() {
        let base = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let group = two(base.path(), &[("cgroup.procs", &format!("{}\n", child.id()))]);
        group.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        fs::write(base.path().join("cgroup.kill"), "").unwrap();
        group.kill().unwrap();
        assert_eq!(text(&group, "cgroup.kill"), "1");
    }

    #[test]
    fn waits_until_the_kernel_reports_no_process() {
        let base = tempfile::tempdir().unwrap();
        let group = two(base.path(), &[("cgroup.events", "populated 1\nfrozen 0\n")]);
        let error = group.wait_empty(Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), format!("{}: still has processes", base.path().display()));
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
        fs::write(base.path().join("cgroup.events"), "populated 0\nfrozen 0\n").unwrap();
        group.wait_empty(Duration::ZERO).unwrap();
        fs::remove_file(base.path().join("cgroup.events")).unwrap();
        assert!(group.wait_empty(Duration::ZERO).unwrap_err().is(io::ErrorKind::NotFound));
    }

    #[test]
    fn kernel_freezes_thaws_and_ends_the_processes_of_a_group() {
        let skip = |why: &str| {
            let line = format!("skipped: kernel_freezes_thaws_and_ends_the_processes_of_a_group: {why}\n");
            io::Write::write_all(&mut io::stderr(), line.as_bytes()).unwrap();
        };
        let Some(own) = Group::own().unwrap().filter(|own| own.version() == Version::One) else {
            return skip("no cgroup of version 1; in one of version 2 the test would have to leave its own");
        };
        let group = own.child(&format!("mayfly-cgroups-test-{}", std::process::id()));
        if let Err(error) = group.create() {
            return skip(&error.to_string());
        }
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let outcome = (|| {
            group.limit(&Limits { memory_bytes: Some(64 << 20), processes: Some(9), ..Limits::default() })?;
            group.add(child.id())?;
            assert_eq!(group.processes(), [child.id() as i32]);
            assert_eq!(group.memory_limit(), Some(64 << 20));
            assert!(group.memory_bytes().is_some() && group.anonymous_bytes().is_some());
            assert_eq!((group.memory_kills(), group.peak().unwrap().bytes().is_some()), (0, true));
            if let Some(folder) = group.freezer_folder() {
                fs::write(folder.join(THREADS), child.id().to_string()).unwrap();
                group.freeze()?;
                let thawing = crate::Thawing::open(folder)?;
                group.kill()?;
                assert!(group.remove_within(Duration::ZERO).is_err(), "it has a process");
                thawing.thaw().unwrap();
            }
            group.kill()
        })();
        child.kill().unwrap();
        child.wait().unwrap();
        let removed = group.remove_within(PATIENCE);
        outcome.unwrap();
        removed.unwrap();
        assert!(!group.folder().exists() && group.memory_bytes().is_none() && group.processes().is_empty());
    }
}
