//! Images as `sam build` leaves them: by NAME:TAG in the store of a container engine of this host.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use worker_system::text::shown;

/// Commands that have a store, and the arguments with which they save an image of it.
const ENGINES: [(&str, &[&str], &str); 2] = [
    ("podman", &["save", "--quiet", "--format", "oci-archive"], "oci-archive"),
    ("docker", &["save"], "docker-archive"),
];

/// An engine that has an image.
pub(super) struct Found {
    engine: &'static str,
    save: &'static [&'static str],
    transport: &'static str,
}

/// Whether this is a name as engines have it, and neither a path nor an image of a registry.
pub(super) fn is_name(uri: &str, base: &Path) -> bool {
    let (name, tag) = uri.rsplit_once(':').unwrap_or((uri, "latest"));
    let letters = |text: &str, more: &[u8]| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
            && text.starts_with(|first: char| first.is_ascii_alphanumeric())
    };
    letters(name, b"._-/") && letters(tag, b"._-") && !worker_image::is_reference(uri, base)
}

/// Looks for an image in the stores of the engines that are installed.
///
/// # Errors
/// None has it.
pub(super) fn find(name: &str) -> Result<Found> {
    let mut asked = Vec::new();
    for (engine, save, transport) in ENGINES {
        let mut inspect = Command::new(engine);
        inspect.args(["image", "inspect", "--format", "{{.Id}}", name]);
        match inspect.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status() {
            Ok(status) if status.success() => return Ok(Found { engine, save, transport }),
            Ok(_) => asked.push(engine),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot run {engine}")),
        }
    }
    let name = shown(name);
    match asked[..] {
        [] => bail!("ImageUri: {name}: neither podman nor docker is installed, whose images have such names"),
        _ => bail!(
            "ImageUri: {name}: no such image in the store of {}, as this user has it: run `sam build`, or name an \
             archive (podman save --format oci-archive -o image.tar NAME, then ImageUri: image.tar)",
            asked.join(" or ")
        ),
    }
}

impl Found {
    /// Copies the image into an archive in `place`; returns its folder, and how it is named as an `ImageUri`.
    ///
    /// # Errors
    /// The engine fails.
    pub(super) fn save(&self, name: &str, place: &Path) -> Result<(TempDir, String)> {
        let folder =
            TempDir::new_in(place).with_context(|| format!("cannot write in {}", place.display()))?;
        let archive = folder.path().join("image.tar");
        let output = Command::new(self.engine)
            .args(self.save)
            .arg("-o")
            .arg(&archive)
            .arg(name)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}", self.engine))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("ImageUri: {}: {} cannot save it: {}", shown(name), self.engine, shown(said.trim()));
        }
        let uri = format!("{}:{}", self.transport, archive.display());
        Ok((folder, uri))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_engines_are_neither_paths_nor_registries() {
        let base = tempfile::tempdir().unwrap();
        std::fs::write(base.path().join("image.tar"), "").unwrap();
        for name in
            ["hello", "hellofunction:python3.12-v1", "localhost/me/it:v1", "docker.io/library/busybox"]
        {
            assert!(is_name(name, base.path()), "{name}");
        }
        let others = [
            "",
            "image.tar",
            "/image",
            "./image",
            "127.0.0.1:5000/a:b",
            "oci:/a",
            "a b",
            "-o",
            "a:-b",
            "a:b:c",
        ];
        for other in others {
            assert!(!is_name(other, base.path()), "{other}");
        }
    }
}
