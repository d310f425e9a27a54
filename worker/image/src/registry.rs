//! A registry on this machine, by OCI's distribution API. Plain HTTP, no other address than the one that
//! was named, and no redirects, so that a registry cannot lead elsewhere.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::reference::{Digest, Remote};
use crate::{Fetch, IMAGE_BYTES};

const MANIFEST_BYTES: u64 = 4 << 20;
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// The registry, and a folder for its files.
pub struct Registry {
    remote: Remote,
    folder: tempfile::TempDir,
    fetch: Fetch,
}

impl Registry {
    /// Sends no request yet.
    ///
    /// # Errors
    /// No folder can be made.
    pub fn new(remote: Remote, place: &Path, fetch: Fetch) -> Result<Registry> {
        Ok(Registry { remote, folder: tempfile::tempdir_in(place)?, fetch })
    }

    /// The manifest of the image, or an index of several.
    ///
    /// # Errors
    /// There is none, or it is not the one whose digest was given.
    pub fn manifest(&self) -> Result<Vec<u8>> {
        let text = self.manifest_of(&self.remote.tag)?;
        if let Ok(digest) = Digest::parse(&self.remote.tag) {
            let found = Digest::of(super::hash(&text));
            ensure!(found == digest, "the manifest has the digest {found} and should have {digest}");
        }
        Ok(text)
    }

    /// The manifest with this tag or digest, which is not checked.
    ///
    /// # Errors
    /// There is none.
    pub fn manifest_of(&self, tag: &str) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        self.fetch(&format!("manifests/{tag}"), MANIFEST_BYTES, &mut text)?;
        Ok(text)
    }

    /// A file, fetched when it is first asked for. Its digest is not checked here.
    ///
    /// # Errors
    /// There is none, or fetching it fails.
    pub fn blob(&self, digest: &Digest) -> Result<File> {
        let path = self.folder.path().join(digest.hex());
        if let Ok(known) = File::open(&path) {
            return Ok(known);
        }
        let mut file = tempfile::NamedTempFile::new_in(self.folder.path())?;
        self.fetch(&format!("blobs/{digest}"), IMAGE_BYTES, file.as_file_mut())?;
        let mut file = file.persist(path)?;
        file.rewind()?;
        Ok(File::open(self.folder.path().join(digest.hex()))?)
    }

    fn fetch(&self, what: &str, limit: u64, into: &mut (dyn Write + Send)) -> Result<()> {
        let path = format!("/v2/{}/{what}", self.remote.name);
        let fetched = (self.fetch)(self.remote.address, &path, &format!("{MANIFESTS}, */*"), limit, into);
        fetched.with_context(|| format!("http://{}{path}", self.remote.address))
    }
}
