//! Packages of Maven Central, each of a pinned version.

use std::env;
use std::path::Path;

use anyhow::Result;
use ureq::Agent;

use crate::download::{self, Wanted, fetch};

const PUBLIC: &str = "https://repo1.maven.org/maven2";
/// Names a mirror.
pub const VARIABLE: &str = "MAYFLY_MAVEN_REPOSITORY";

/// One version of a package.
pub struct Jar {
    /// With slashes in place of dots.
    pub group: &'static str,
    /// The package's name.
    pub artifact: &'static str,
    /// Exactly this one.
    pub version: &'static str,
    /// Of its archive: `sha512-` and base64.
    pub integrity: &'static str,
}

/// Where packages come from.
pub fn repository() -> String {
    let named = env::var(VARIABLE).ok().filter(|named| !named.is_empty());
    named.unwrap_or_else(|| PUBLIC.into()).trim_end_matches('/').into()
}

/// Its address, for people.
pub fn shown() -> String {
    download::shown(&repository())
}

/// Downloads a package into a folder.
///
/// # Errors
/// It cannot be had, or is not what it should be.
pub fn install(agent: &Agent, jar: &Jar, folder: &Path) -> Result<()> {
    let Jar { group, artifact, version, integrity } = jar;
    let file = format!("{artifact}-{version}.jar");
    let url = format!("{}/{group}/{artifact}/{version}/{file}", repository());
    fetch(agent, &Wanted { url: &url, authorization: None, integrity, label: None }, &folder.join(file))
}
