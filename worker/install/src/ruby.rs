//! Ruby of Debian's suites, with the part of AWS' SDK that they have.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use crate::debian::{self, System};

/// Versions, as [`version`] counts them, and the suites that have them.
static VERSIONS: [(u32, System); 1] =
    [(303, System { suite: "trixie", packages: &["ruby3.3", "ruby-aws-sdk-s3"] })];

/// Whether a program of the host has AWS' SDK, as functions on Lambda do, in the folders that instances have.
pub fn has_sdk(program: &Path) -> bool {
    static KNOWN: Mutex<BTreeMap<PathBuf, bool>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry(program.into()).or_insert_with(|| {
        let mut command = Command::new(program);
        command.args(["-e", "gem 'aws-sdk-core'"]).env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    })
}

/// One number for two: 303 for Ruby 3.3.
pub fn version(major: u32, minor: u32) -> u32 {
    major * 100 + minor
}

/// The two numbers of a version, as its programs have them in their names.
pub fn number(version: u32) -> String {
    format!("{}.{}", version / 100, version % 100)
}

/// The versions that can be installed on this processor.
pub fn versions() -> impl Iterator<Item = u32> {
    debian::installable(&VERSIONS)
}

/// The root with a version of Ruby, below `cache`; its program is `bin/ruby` of /var/lang. It is installed if
/// it is not there.
///
/// # Errors
/// It cannot be installed, and what to do.
pub fn provide(wanted: u32, cache: &Path) -> Result<PathBuf> {
    let number = number(wanted);
    let label = format!("Ruby {number}");
    debian::of_version(&VERSIONS, wanted, &label)?.provide(&label, cache, |root| {
        debian::link_programs(root, &[("ruby", &format!("/usr/bin/ruby{number}"))])
    })
}
