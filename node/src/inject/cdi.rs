//! The Container Device Interface: files that tell an engine, by a device's name, what a container gets.
//!
//! `podman run --device mayfly.dev/heap=online --device mayfly.dev/share=web …`; Docker, containerd and CRI-O take the same
//! names. The files and all that they name outlive the agent: a container starts without it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::base::request::Name;
use crate::domains::trust_domain::Domain;
use crate::inject::artifacts::Offer;
use crate::inject::injection::{Gift, MARK};

/// The oldest version of the format that has what is used.
const VERSION: &str = "0.5.0";

/// Writes the specifications into `folder`, each at one stroke.
///
/// # Errors
/// The folder cannot be written, named.
pub fn write(
    folder: &Path,
    offer: &Offer,
    domains: &[Name],
    store_of: impl Fn(&Domain) -> Result<std::path::PathBuf>,
) -> Result<()> {
    let ground = offer.part("ground");
    let mut heaps = vec![("online".to_owned(), heap(offer, &ground, None))];
    for name in offer.models() {
        match offer.model(&name) {
            Ok(model) => heaps.push((format!("model.{name}"), heap(offer, &ground, Some(&model)))),
            Err(why) => tracing::warn!("no CDI device for the model {name}: {why:#}"),
        }
    }
    let mut shares = Vec::new();
    for name in domains {
        let mut gift = Gift::default();
        gift.ground(&ground);
        gift.share(&offer.part("share"), &store_of(&Domain::Device(name.clone()))?);
        shares.push((name.to_string(), gift));
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
        // Engines read every *.json there.
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
/// The one that cannot be removed.
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

fn heap(offer: &Offer, ground: &Path, model: Option<&Path>) -> Gift {
    let mut gift = Gift::default();
    gift.ground(ground);
    gift.heap(&offer.part("heap"), model, None);
    gift
}

fn specification(class: &str, devices: &[(String, Gift)]) -> Value {
    let devices: Vec<Value> = devices
        .iter()
        .map(|(name, gift)| json!({"name": name, "containerEdits": edits(class, name, gift)}))
        .collect();
    json!({"cdiVersion": VERSION, "kind": format!("mayfly.dev/{class}"), "devices": devices})
}

fn edits(class: &str, name: &str, gift: &Gift) -> Value {
    let mut env: Vec<String> = gift.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    env.extend(gift.ld_preload(None).map(|value| format!("LD_PRELOAD={value}")));
    env.push(format!("{MARK}_{}={name}", class.to_uppercase()));
    let mounts: Vec<Value> = gift
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
    if !gift.devices.is_empty() {
        let nodes: Vec<Value> = gift
            .devices
            .iter()
            .map(|path| json!({"path": path, "hostPath": path, "permissions": "rw", "fileMode": 0o666}))
            .collect();
        edits["deviceNodes"] = Value::Array(nodes);
    }
    edits
}
