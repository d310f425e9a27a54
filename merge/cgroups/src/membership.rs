//! The groups that a process is in, as the kernel names them.

use std::fmt::Display;
use std::{fs, io};

/// The groups of a process: their hierarchies' controllers, and paths from the roots (cgroups(7)).
#[derive(Clone, Debug)]
pub struct Membership(Vec<(String, String)>);

impl Membership {
    /// Of a process that lives, or of `self`.
    ///
    /// # Errors
    /// The process has ended, or no descriptor is left.
    pub fn of(process: impl Display) -> io::Result<Membership> {
        Ok(Membership::parse(&fs::read_to_string(format!("/proc/{process}/cgroup"))?))
    }

    pub(crate) fn parse(text: &str) -> Membership {
        let line = |line: &str| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            Some((controllers.to_owned(), path.to_owned()))
        };
        Membership(text.lines().filter_map(line).collect())
    }

    /// The group of version 2.
    pub fn unified(&self) -> Option<&str> {
        self.0.iter().find(|(controllers, _)| controllers.is_empty()).map(|(_, path)| &path[..])
    }

    /// The group of version 1 in a controller's hierarchy.
    pub fn of_controller(&self, controller: &str) -> Option<&str> {
        let has = |controllers: &str| controllers.split(',').any(|name| name == controller);
        self.0.iter().find(|(controllers, _)| has(controllers)).map(|(_, path)| &path[..])
    }

    /// The memory's group: the one of version 2, unless the memory controller has a hierarchy of its own.
    pub fn memory(&self) -> Option<&str> {
        self.of_controller("memory").or_else(|| self.unified())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_group_is_the_memory_controllers() {
        let memory = |text| Membership::parse(text).memory().map(str::to_owned);
        assert_eq!(memory("0::/user.slice/a:b\n").as_deref(), Some("/user.slice/a:b"));
        assert_eq!(memory("9:name=systemd:/\n4:memory:/box\n0::/\n").as_deref(), Some("/box"));
        assert_eq!(memory("9:name=systemd:/\n"), None);
        assert_eq!(memory("no line\n\n1:\n"), None);
    }

    #[test]
    fn own_groups_can_be_read_and_those_of_no_process_cannot() {
        assert!(Membership::of("self").is_ok());
        assert_eq!(Membership::of(u32::MAX).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
