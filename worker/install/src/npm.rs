//! Packages of npm's registry. npm itself is not needed; its configuration names the registry.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use ureq::Agent;

use crate::download::{self, Wanted, fetch};

/// npm's own registry.
const PUBLIC: &str = "https://registry.npmjs.org/";

/// Where packages come from.
#[derive(Debug, PartialEq, Eq)]
pub struct Registry {
    /// Ends in a slash.
    url: String,
    authorization: Option<String>,
}

impl Registry {
    /// The registry of npm's configuration: `npm_config_registry` in the environment, else `registry` in
    /// `~/.npmrc` or `/etc/npmrc`, else the public one.
    pub fn configured() -> Registry {
        let variables = env::vars().map(|(name, value)| (name.to_lowercase(), value)).collect();
        let read = |path: PathBuf| fs::read_to_string(path).ok();
        Registry::of(&variables, read)
    }

    fn of(variables: &BTreeMap<String, String>, read: impl Fn(PathBuf) -> Option<String>) -> Registry {
        let variable = |name: &str| variables.get(name).filter(|value| !value.is_empty()).cloned();
        let of_user = variable("npm_config_userconfig").map(PathBuf::from);
        let of_user = of_user.or_else(|| variable("home").map(|home| Path::new(&home).join(".npmrc")));
        let files =
            [of_user, variable("npm_config_globalconfig").map(PathBuf::from), Some("/etc/npmrc".into())];
        let lines: Vec<(String, String)> = files
            .into_iter()
            .flatten()
            .filter_map(read)
            .flat_map(|text| settings(&text, variables))
            .collect();
        let setting = |name: &str| lines.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let url = variable("npm_config_registry").or_else(|| setting("registry"));
        let mut url = url.unwrap_or_else(|| PUBLIC.into());
        if !url.ends_with('/') {
            url.push('/');
        }
        // npm names the registry that a token is for without its scheme.
        let bare = url.split_once(':').map_or("", |(_, bare)| bare);
        let authorization = setting(&format!("{bare}:_authToken")).map(|token| format!("Bearer {token}"));
        Registry { url, authorization }
    }

    /// Its address, for people.
    pub fn shown(&self) -> String {
        download::shown(&self.url)
    }
}

/// `KEY = VALUE` lines of an .npmrc, whose values may name variables as `${NAME}`.
fn settings(text: &str, variables: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let line = |line: &str| {
        let (key, value) = line.split_once('=')?;
        let mut value = value.trim().trim_matches(['"', '\'']).to_string();
        for (name, given) in variables {
            if value.contains("${") {
                value = value.replace(&format!("${{{}}}", name.to_uppercase()), given);
            }
        }
        Some((key.trim().to_string(), value))
    };
    text.lines().filter(|line| !line.trim_start().starts_with(['#', ';'])).filter_map(line).collect()
}

/// One version of a package.
pub struct Package<'a> {
    /// `NAME` or `@SCOPE/NAME`.
    pub name: &'a str,
    /// Exactly this one.
    pub version: &'a str,
    /// Of its archive, as npm's lock files have it.
    pub integrity: &'a str,
}

/// Downloads a package, and unpacks those of its files that are `wanted` into a folder.
///
/// # Errors
/// It cannot be had, or is not what it should be.
pub fn install(
    agent: &Agent,
    registry: &Registry,
    package: &Package,
    label: Option<&str>,
    folder: &Path,
    wanted: impl Fn(&Path) -> bool,
) -> Result<()> {
    let Package { name, version, integrity } = package;
    let file = name.rsplit('/').next().unwrap_or(name);
    let url = format!("{}{name}/-/{file}-{version}.tgz", registry.url);
    let authorization = registry.authorization.as_deref();
    fs::create_dir_all(folder)?;
    let archive = folder.join(".archive.tgz");
    fetch(agent, &Wanted { url: &url, authorization, integrity, label }, &archive)?;
    unpack(&archive, folder, wanted).with_context(|| format!("{name}@{version}"))?;
    Ok(fs::remove_file(archive)?)
}

/// Unpacks files. The first part of their names is left out, whatever it is. All may read them: instances run
/// as other users.
fn unpack(archive: &Path, folder: &Path, wanted: impl Fn(&Path) -> bool) -> Result<()> {
    let mut archive = tar::Archive::new(GzDecoder::new(File::open(archive)?));
    for entry in archive.entries()? {
        let mut entry = entry?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path()?.into_owned();
        let below: PathBuf = path.components().skip(1).collect();
        let stays = below.components().all(|part| matches!(part, Component::Normal(_)));
        ensure!(stays && !below.as_os_str().is_empty(), "{} leads out of the archive", path.display());
        if !wanted(&below) {
            continue;
        }
        let target = folder.join(&below);
        let parent = target.parent().unwrap_or(folder);
        fs::create_dir_all(parent)?;
        for above in parent.ancestors().take_while(|above| above.starts_with(folder)) {
            fs::set_permissions(above, fs::Permissions::from_mode(0o755))?;
        }
        let mut file = File::create(&target).with_context(|| format!("cannot write {}", target.display()))?;
        std::io::copy(&mut entry, &mut file).with_context(|| format!("cannot write {}", target.display()))?;
        let mode = if entry.header().mode()? & 0o100 == 0 { 0o644 } else { 0o755 };
        file.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_is_that_of_npms_configuration() {
        let of = |variables: &[(&str, &str)], user: &str| {
            let variables = variables
                .iter()
                .chain(&[("home", "/h")])
                .map(|(k, v)| (k.to_string(), v.to_string()))
                .collect();
            Registry::of(&variables, |path| (path == Path::new("/h/.npmrc")).then(|| user.to_string()))
        };
        assert_eq!(of(&[], "").url, PUBLIC);
        let file = "# registry=https://no/\nregistry = \"https://own/npm\"\n//own/npm/:_authToken=${KEY}";
        let own = of(&[("key", "k")], file);
        assert_eq!((own.url.as_str(), own.authorization.as_deref()), ("https://own/npm/", Some("Bearer k")));
        let other = of(&[("npm_config_registry", "http://a:b@c/")], file);
        assert_eq!((other.shown().as_str(), other.authorization), ("http://c/", None));
    }
}
