//! How many files the process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files to the most allowed: a thousand silent clients use up a shell's default.
pub fn open_many_files() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_may_be_open_that_the_host_allows() {
        let limit = getrlimit(Resource::Nofile);
        let fewer = limit.maximum.map_or(Some(1024), |most| Some(most - 1));
        setrlimit(Resource::Nofile, Rlimit { current: fewer, ..limit }).unwrap();
        open_many_files();
        assert_eq!(getrlimit(Resource::Nofile).current, limit.maximum);
    }
}
