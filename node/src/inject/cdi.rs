//! The Container Device Interface: files by which an engine looks up, by a device's name, what to inject.
//!
//! `podman run --device mayfly.dev/heap=online --device mayfly.dev/share=web …`; Docker, containerd and CRI-O
//! accept the same names. The files and all that they name stay when the agent ends: a container starts
//! without it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::base::request::Name;
use crate::domains::trust_domain::TrustDomain;
use crate::inject::artifacts::{Artifacts, STUB_ROOT};
use crate::inject::injection::{Injection, MARK};

/// The oldest version of the format that has all fields used here.
const VERSION: &str = "0.5.0";

/// Writes the specifications into `folder`, each atomically.
///
/// # Errors
/// The folder or file cannot be written; the error names it.
pub fn write(
    folder: &Path,
    artifacts: &Artifacts,
    domains: &[Name],
    store_of: impl Fn(&TrustDomain) -> Result<std::path::PathBuf>,
) -> Result<()> {
    let stub_root = artifacts.part(STUB_ROOT);
    let mut heaps = vec![("online".to_owned(), heap(artifacts, &stub_root, None))];
    for name in artifacts.models() {
        match artifacts.model(&name) {
            Ok(model) => heaps.push((format!("model.{name}"), heap(artifacts, &stub_root, Some(&model)))),
            Err(why) => tracing::warn!("no CDI device for the model {name}: {why:#}"),
        }
    }
    let mut shares = Vec::new();
    for name in domains {
        let mut injection = Injection::default();
        injection.stub_root(&stub_root);
        injection.share(&artifacts.part("share"), &store_of(&TrustDomain::Device(name.clone()))?);
        shares.push((name.to_string(), injection));
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (class, devices) in [("heap", heaps), ("share", shares)] {
        let path = folder.join(file_name(class));
        if devices.is_empty() {
            let _ = fs::remove_file(&path);
            continue;
        }
        let text = format!("{:#}\n", specification(class, &devices));
        if fs::read_to_string(&path).is_ok_and(|now| now == text) {
            continue;
        }
        // Not named *.json, for engines read every such file there.
        let fresh = folder.join(format!(".mayfly-{class}.{}", std::process::id()));
        fs::write(&fresh, text)
            .and_then(|()| fs::rename(&fresh, &path))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Removes the specifications.
///
/// # Errors
/// A file cannot be removed; the error names it.
pub fn remove(folder: &Path) -> Result<()> {
    for class in ["heap", "share"] {
        let path = folder.join(file_name(class));
        if path.exists() {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

fn file_name(class: &str) -> String {
    format!("mayfly.dev-{class}.json")
}

fn heap(artifacts: &Artifacts, stub_root: &Path, model: Option<&Path>) -> Injection {
    let mut injection = Injection::default();
    injection.stub_root(stub_root);
    injection.heap(&artifacts.part("heap"), model, None);
    injection
}

/// The specification of a class of devices, each with its name and what it injects.
pub fn specification(class: &str, devices: &[(String, Injection)]) -> Value {
    let devices: Vec<Value> = devices
        .iter()
        .map(|(name, injection)| json!({"name": name, "containerEdits": edits(class, name, injection)}))
        .collect();
    json!({"cdiVersion": VERSION, "kind": format!("mayfly.dev/{class}"), "devices": devices})
}

fn edits(class: &str, name: &str, injection: &Injection) -> Value {
    let mut env: Vec<String> =
        injection.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    env.extend(injection.ld_preload(None).map(|value| format!("LD_PRELOAD={value}")));
    env.push(format!("{MARK}_{}={name}", class.to_uppercase()));
    let mounts: Vec<Value> = injection
        .mounts
        .iter()
        .map(|mount| {
            json!({
                "hostPath": mount.source,
                "containerPath": mount.destination,
                "options": ["ro", "nosuid", "nodev", "rbind"],
            })
        })
        .collect();
    let mut edits = json!({"env": env, "mounts": mounts});
    if !injection.devices.is_empty() {
        let nodes: Vec<Value> = injection
            .devices
            .iter()
            .map(|path| json!({"path": path, "hostPath": path, "permissions": "rw", "fileMode": 0o666}))
            .collect();
        edits["deviceNodes"] = Value::Array(nodes);
    }
    edits
}
