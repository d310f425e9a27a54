//! What `ImageUri` may name: an OCI layout, an archive, or an image in a registry on this machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use worker_system::text::shown;

/// The words that podman and skopeo have for images in files (containers-transports(5)).
const TRANSPORTS: [&str; 3] = ["oci", "oci-archive", "docker-archive"];

/// Where an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// An OCI layout in a folder, or an archive as `podman save` and `docker save` make it, and which of
    /// its images.
    Files { path: PathBuf, tag: Option<String> },
    /// A registry on a loopback address.
    Registry(Remote),
}

/// An image in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The registry's.
    pub address: SocketAddr,
    /// The repository's name.
    pub name: String,
    /// A tag, or a digest.
    pub tag: String,
}

/// The SHA-256 of something, as OCI writes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest(String);

impl Digest {
    /// # Errors
    /// Another kind of digest, or none.
    pub fn parse(text: &str) -> Result<Digest> {
        let hex = text.strip_prefix("sha256:").unwrap_or_default();
        let fits = hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        ensure!(fits, "'{}' is no digest (sha256: and 64 digits)", shown(text));
        Ok(Digest(hex.into()))
    }

    /// Of a hash that is done.
    pub fn of(hash: sha2::Sha256) -> Digest {
        use sha2::Digest as _;
        Digest(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Its 64 digits.
    pub fn hex(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

/// A library's error about untrusted bytes, which it may quote unescaped.
pub fn quoted(error: std::io::Error) -> std::io::Error {
    std::io::Error::new(error.kind(), shown(&error.to_string()))
}

impl Reference {
    /// Reads an `ImageUri`. `base` is where relative paths begin: a template has one, a caller of the API
    /// has none.
    ///
    /// # Errors
    /// It is no reference; the error shows what one is.
    pub fn parse(uri: &str, base: Option<&Path>) -> Result<Reference> {
        let absolute = |path: &str| match base {
            Some(base) => Ok(base.join(path)),
            None if Path::new(path).is_absolute() => Ok(path.into()),
            None => bail!("ImageUri: {}: the path must be absolute", shown(path)),
        };
        if let Some((transport, rest)) = uri.split_once(':')
            && TRANSPORTS.contains(&transport)
        {
            let (path, tag) = rest.split_once(':').map_or((rest, None), |(path, tag)| (path, Some(tag)));
            ensure!(!path.is_empty(), "ImageUri: {transport}: needs a path");
            let tag = tag.filter(|tag| !tag.is_empty()).map(String::from);
            return Ok(Reference::Files { path: absolute(path)?, tag });
        }
        let is_path = uri.starts_with(['/', '.']) || base.is_some_and(|base| base.join(uri).exists());
        if is_path && !uri.is_empty() {
            return Ok(Reference::Files { path: absolute(uri)?, tag: None });
        }
        remote(uri).map(Reference::Registry).with_context(|| {
            format!(
                "ImageUri: '{}' is neither a path (oci:FOLDER, oci-archive:FILE, docker-archive:FILE, each with :TAG \
                 if it has several) nor an image of a registry on this machine (127.0.0.1:PORT/NAME:TAG)",
                shown(uri)
            )
        })
    }
}

fn remote(uri: &str) -> Result<Remote> {
    let (host, rest) = uri.split_once('/').context("it names no registry")?;
    let address = match host.strip_prefix("localhost:") {
        Some(port) => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port.parse().context("no port")?),
        None => host.parse().context("the registry has no address with a port")?,
    };
    ensure!(address.ip().is_loopback(), "{host} is not on this machine");
    let (name, tag) = match rest.split_once('@') {
        Some((name, digest)) => {
            let name = name.split_once(':').map_or(name, |(name, _)| name);
            (name, Digest::parse(digest)?.to_string())
        }
        None => rest.split_once(':').map_or((rest, "latest".into()), |(name, tag)| (name, tag.to_string())),
    };
    let part = |part: &str| {
        let edge =
            |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
        edge(part.bytes().next()) && edge(part.bytes().next_back()) && part.bytes().all(inner)
    };
    ensure!(name.len() <= 255 && name.split('/').all(part), "'{}' is no name of a repository", shown(name));
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
    let fits = (1..=128).contains(&tag.len()) && tag.bytes().all(letters) && !tag.starts_with(['.', '-']);
    ensure!(fits, "'{}' is no tag", shown(&tag));
    Ok(Remote { address, name: name.into(), tag })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_paths_from_registries() {
        let base = tempfile::tempdir().unwrap();
        std::fs::write(base.path().join("image.tar"), "").unwrap();
        let files = |uri: &str, base| match Reference::parse(uri, base) {
            Ok(Reference::Files { path, tag }) => (path.display().to_string(), tag),
            other => panic!("{uri}: {other:?}"),
        };
        assert_eq!(files("oci:/a/b:v1", None), ("/a/b".into(), Some("v1".into())));
        assert_eq!(files("docker-archive:/a.tar:me/it:v1", None), ("/a.tar".into(), Some("me/it:v1".into())));
        assert_eq!(files("/a.tar", None), ("/a.tar".into(), None));
        let own = base.path().join("image.tar").display().to_string();
        assert_eq!(files("image.tar", Some(base.path())), (own, None));
        let remote = |uri: &str| match Reference::parse(uri, None) {
            Ok(Reference::Registry(remote)) => (remote.address.to_string(), remote.name, remote.tag),
            other => panic!("{uri}: {other:?}"),
        };
        let it = |address: &str, tag: &str| (address.to_string(), "a/b".to_string(), tag.to_string());
        assert_eq!(remote("localhost:5000/a/b"), it("127.0.0.1:5000", "latest"));
        assert_eq!(remote("[::1]:5000/a/b:v1"), it("[::1]:5000", "v1"));
        let digest = format!("sha256:{}", "0a".repeat(32));
        assert_eq!(remote(&format!("127.0.0.1:1/a/b:v1@{digest}")), it("127.0.0.1:1", &digest));
    }

    #[test]
    fn refuses_names_that_are_neither() {
        for uri in [
            "",
            "hello:latest",
            "oci:",
            "oci:relative",
            "docker.io/library/busybox",
            "10.0.0.1:5000/a:b",
            "127.0.0.1:5000/../a",
            "127.0.0.1:5000/a//b",
            "127.0.0.1:5000/A",
            "127.0.0.1:5000/a:b c",
            "127.0.0.1:5000/a@sha256:00",
        ] {
            let error = Reference::parse(uri, None).expect_err(uri);
            assert!(format!("{error:#}").starts_with("ImageUri: "), "{uri}: {error:#}");
        }
    }
}
