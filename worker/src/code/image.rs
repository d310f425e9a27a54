//! Code that is a container image: the operator's stay in the cache, named after their digests; callers'
//! are removed with the last function that uses them.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};

use anyhow::{Context, Result, anyhow};

use super::{Code, Unpacked, engine, new_folder};
use crate::base::error::ApiError;
use crate::http::client;
use worker_image::{Allowed, Error, Opened};
use worker_system::lock::lock;

/// Callers' images that are unpacked now, by digest.
#[derive(Debug, Default)]
pub(crate) struct Images(Mutex<BTreeMap<String, Weak<Unpacked>>>);

impl Images {
    fn known(&self, digest: &str) -> Option<Arc<Unpacked>> {
        let mut known = lock(&self.0);
        known.retain(|_, unpacked| unpacked.strong_count() > 0);
        known.get(digest)?.upgrade()
    }

    fn add(&self, digest: &str, unpacked: &Arc<Unpacked>) {
        let mut known = lock(&self.0);
        known.insert(digest.into(), Arc::downgrade(unpacked));
    }
}

impl Code {
    /// An image that the operator has named, relative to `base` or in a container engine's store. It is
    /// unpacked below `cache`, once and for good; `place` is on the same file system.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn of_operators_image(uri: &str, base: &Path, cache: &Path, place: &Path) -> Result<Code> {
        let saved = match engine::is_name(uri, base) {
            true => Some(engine::find(uri)?.save(uri, place)?),
            false => None,
        };
        let named = saved.as_ref().map_or(uri, |(_, named)| named);
        let mut opened = worker_image::open(named, None, Some(base), place, client::fetch)?;
        opened.image.uri = uri.into();
        let images = cache.join("images");
        fs::create_dir_all(&images).with_context(|| format!("cannot make {}", images.display()))?;
        let root = images.join(opened.digest());
        if !root.is_dir() {
            let begun = new_folder(place).map_err(|error| anyhow!("{}", error.message))?;
            opened.unpack(begun.path())?;
            match fs::rename(begun.path(), &root) {
                Ok(()) => drop(begun.keep()),
                // Another worker was first.
                Err(error)
                    if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {}
                Err(error) => return Err(error).with_context(|| format!("cannot make {}", root.display())),
            }
        }
        Ok(Code { folder: root.canonicalize()?, ..Code::of(opened, None) })
    }

    /// Looks up an image that the operator has named, and unpacks nothing.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn finds_image(uri: &str, base: &Path, place: &Path) -> Result<()> {
        if engine::is_name(uri, base) {
            return engine::find(uri).map(drop);
        }
        Ok(worker_image::open(uri, None, Some(base), place, client::fetch).map(drop)?)
    }

    /// An image that a caller has named. Where a function has the same one, it is not unpacked again. It
    /// is removed with its last user, if `may_go` is absent or set.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn of_callers_image(
        uri: &str,
        allowed: &Allowed,
        images: &Images,
        place: &Path,
        may_go: Option<&Arc<AtomicBool>>,
    ) -> Result<Code, ApiError> {
        let opened = worker_image::open(uri, Some(allowed), None, place, client::fetch).map_err(refused)?;
        if let Some(known) = images.known(opened.digest()) {
            return Ok(Code::of(opened, Some(known)));
        }
        let folder = new_folder(place)?;
        opened.unpack(folder.path()).map_err(refused)?;
        let unpacked = Unpacked::new(folder, may_go);
        images.add(opened.digest(), &unpacked);
        Ok(Code::of(opened, Some(unpacked)))
    }

    fn of(opened: Opened, unpacked: Option<Arc<Unpacked>>) -> Code {
        let folder = unpacked.as_ref().map(|unpacked| unpacked.folder.clone()).unwrap_or_default();
        // Lambda reports no size of an image either.
        Code { folder, sha256: opened.digest().into(), size_bytes: 0, image: Some(opened.image), unpacked }
    }
}

/// The API's error for a caller's image that cannot be used: Lambda blames each of these on the parameter.
fn refused(error: Error) -> ApiError {
    match error {
        Error::BadReference(_) | Error::NotUsable(_) | Error::BadLayers(_) => {
            ApiError::invalid_parameter(error.to_string())
        }
    }
}
