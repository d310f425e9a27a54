//! AWS' SDK for JavaScript, version 3: the clients that functions use most, with all that these need.
//!
//! Lambda's runtimes have some 400 clients. Those of `sdk/package.json` need 124 packages, 65 MiB without the
//! types, of a lock file that npm has made (`npm install --package-lock-only`). One folder for all functions:
//! what a function imports cannot be known from its text in every case.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::download::agent;
use crate::npm::{self, Package, Registry};
use crate::once::once;

const LOCK: &str = include_str!("../sdk/package-lock.json");
/// So many packages at once.
const THREADS: usize = 8;
/// The beginning of the names of a package's folders.
const FOLDER: &str = "node_modules/";
/// Files that programs do not read.
const ENDS: [&str; 5] = [".d.ts", ".d.mts", ".d.cts", ".map", ".md"];

#[derive(Deserialize)]
struct Lock {
    packages: BTreeMap<String, Locked>,
}

#[derive(Deserialize)]
struct Locked {
    #[serde(default)]
    version: String,
    #[serde(default)]
    integrity: String,
}

fn locked() -> Vec<(String, Locked)> {
    let lock: Lock = serde_json::from_str(LOCK).expect("npm has written it");
    lock.packages.into_iter().filter(|(folder, _)| !folder.is_empty()).collect()
}

/// Whether it has this package.
pub fn has(name: &str) -> bool {
    let folder = format!("{FOLDER}{name}");
    locked().iter().any(|(known, _)| *known == folder)
}

/// The folder with `node_modules`, below `cache`. It is installed if it is not there.
///
/// # Errors
/// It cannot be installed, and what to do.
pub fn provide(cache: &Path) -> Result<PathBuf> {
    let registry = Registry::configured();
    let digest = Sha256::digest(LOCK);
    let key: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let installed = once(&cache.join("runtimes"), &format!("sdk-{key}"), |folder| {
        let begun = Instant::now();
        tracing::info!("installing AWS' SDK for JavaScript from {}, once", registry.shown());
        let packages = locked();
        install(&packages, &registry, folder)?;
        let seconds = begun.elapsed().as_secs_f64();
        tracing::info!("installed AWS' SDK for JavaScript: {} packages in {seconds:.1} s", packages.len());
        Ok(())
    });
    installed.with_context(|| {
        format!(
            "cannot install AWS' SDK for JavaScript (where {} cannot be reached, set npm_config_registry to a \
             mirror, or put the SDK into the function's own packages)",
            registry.shown()
        )
    })
}

fn install(packages: &[(String, Locked)], registry: &Registry, folder: &Path) -> Result<()> {
    let (agent, next, failed) = (agent(), AtomicUsize::new(0), Mutex::new(None));
    let fault = || failed.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        while let Some((place, locked)) = packages.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = place.rsplit_once(FOLDER).map_or(place.as_str(), |(_, name)| name);
            let package = Package { name, version: &locked.version, integrity: &locked.integrity };
            let is_wanted = |path: &Path| {
                let path = path.to_string_lossy();
                !ENDS.iter().any(|end| path.ends_with(end))
            };
            if fault().is_some() {
                return;
            }
            let done = npm::install(&agent, registry, &package, None, &folder.join(place), is_wanted);
            if let Err(error) = done {
                fault().get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    fault().take().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_is_pinned_and_hashed() {
        let packages = locked();
        assert!(packages.len() > 100);
        for (folder, locked) in &packages {
            assert!(folder.starts_with(FOLDER), "{folder}");
            assert!(locked.integrity.starts_with("sha512-") && !locked.version.is_empty(), "{folder}");
        }
        assert!(has("@aws-sdk/client-s3") && has("@aws-sdk/lib-dynamodb") && !has("@aws-sdk/client-none"));
    }
}
