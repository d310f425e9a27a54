//! Container images as functions (`PackageType: Image`): found, checked, and unpacked into a folder that
//! becomes the root of instances.
//!
//! ```text
//!   ImageUri ─► reference ─► files (folder, archive, registry) ─► manifest: which image, which layers
//!                                                                   │
//!                      root of instances ◄── tree ◄── layer by layer ┘   each checked by its digest first
//! ```
//! The digest of its description identifies an image: that names the digests of all layers' contents.

mod compression;
mod files;
mod layer;
mod manifest;
mod reference;
mod registry;
mod tree;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use files::Files;
use manifest::Found;
use reference::{Digest, Reference};
use tree::{Attributes, Tree};
use worker_system::text::shown;

/// Files, folders and links in all layers of an image together.
const ENTRIES: usize = 1_000_000;

/// The most bytes of an image: of a file that is fetched, and of all layers unpacked.
pub const IMAGE_BYTES: u64 = 10 << 30;
/// Folders in one another in code and images, so that a walk through them needs a bounded stack and few
/// open files.
pub const FOLDER_DEPTH: usize = 200;

/// Fetches a file from a registry: its address, the path, what is accepted, the most bytes, and where they
/// go.
pub type Fetch = fn(SocketAddr, &str, &str, u64, &mut (dyn Write + Send)) -> Result<()>;

/// What callers may name, other than the operator.
pub struct Allowed<'a> {
    /// Folders, and what is below.
    pub folders: &'a [PathBuf],
    /// Registries.
    pub registries: &'a [SocketAddr],
}

/// How an image's programs are started, by its own configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// `ImageUri`.
    pub uri: String,
    /// `Entrypoint`.
    pub entry_point: Vec<String>,
    /// `Cmd`.
    pub command: Vec<String>,
    /// `Env`.
    pub environment: Vec<(String, String)>,
    /// `WorkingDir`.
    pub folder: Option<String>,
}

/// `ImageConfig`: what is absent or empty is as the image has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ImageConfig {
    /// In place of `Entrypoint`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entry_point: Vec<String>,
    /// In place of `Cmd`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// In place of `WorkingDir`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_directory: Option<String>,
}

/// An image that was found, and is not unpacked yet.
pub struct Opened {
    /// Its own configuration.
    pub image: Image,
    files: Files,
    id: Digest,
    layers: Vec<manifest::Layer>,
}

/// Why an image cannot be used; each holds the line for people.
#[derive(Debug)]
pub enum Error {
    /// `ImageUri` names nothing that can be an image.
    BadReference(anyhow::Error),
    /// The image is missing, not allowed, or its description is wrong.
    NotUsable(anyhow::Error),
    /// Its layers are not what its description promises, or cannot be unpacked.
    BadLayers(anyhow::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Error::BadReference(error) | Error::NotUsable(error) | Error::BadLayers(error)) = self;
        write!(f, "{error:#}")
    }
}

impl std::error::Error for Error {}

/// Whether this names a file or an image of a registry, there or not.
pub fn is_reference(uri: &str, base: &Path) -> bool {
    Reference::parse(uri, Some(base)).is_ok()
}

/// Finds an image. `place` is for what comes from a registry, by `fetch`.
///
/// # Errors
/// It is not there, not allowed, or not as it should be.
pub fn open(
    uri: &str,
    allowed: Option<&Allowed>,
    base: Option<&Path>,
    place: &Path,
    fetch: Fetch,
) -> Result<Opened, Error> {
    let reference = Reference::parse(uri, base).map_err(Error::BadReference)?;
    let found = || -> Result<Opened> {
        let files = Files::open(&reference, allowed, place, fetch)?;
        let Found { id, description, layers } = files.find(&reference)?;
        let image = started(uri, description.config.as_ref())?;
        Ok(Opened { image, files, id, layers })
    };
    found().with_context(|| format!("ImageUri: {}", shown(uri))).map_err(Error::NotUsable)
}

impl Opened {
    /// Its digest, 64 digits: the same wherever it comes from.
    pub fn digest(&self) -> &str {
        self.id.hex()
    }

    /// Unpacks it into an empty folder, which is the root of instances then.
    ///
    /// # Errors
    /// What is wrong with it, and in which layer.
    pub fn unpack(&self, folder: &Path) -> Result<(), Error> {
        let unpacked = unpack(&self.files, &self.layers, folder, IMAGE_BYTES);
        unpacked.with_context(|| format!("ImageUri: {}", shown(&self.image.uri))).map_err(Error::BadLayers)
    }
}

fn started(uri: &str, config: Option<&manifest::Config>) -> Result<Image> {
    let variable = |text: &String| {
        let (name, value) = text.split_once('=')?;
        Some((name.to_string(), value.to_string()))
    };
    let Some(config) = config else { return Ok(Image { uri: uri.into(), ..Image::default() }) };
    let environment: Vec<_> = config.env.iter().flatten().filter_map(variable).collect();
    let words = config.entrypoint.iter().chain(&config.cmd).flatten().chain(config.env.iter().flatten());
    ensure!(
        !words.chain(&config.working_dir).any(|text| text.contains('\0')),
        "what it says of itself holds a zero byte"
    );
    Ok(Image {
        uri: uri.into(),
        entry_point: config.entrypoint.clone().unwrap_or_default(),
        command: config.cmd.clone().unwrap_or_default(),
        environment,
        folder: config.working_dir.clone().filter(|folder| !folder.is_empty()),
    })
}

/// Puts an image's layers over one another in an empty folder, with at most so many bytes.
fn unpack(files: &Files, layers: &[manifest::Layer], folder: &Path, bytes: u64) -> Result<()> {
    let tree = Tree::new(folder, ENTRIES)?;
    let mut left = layer::Left { bytes, entries: ENTRIES };
    for (number, manifest::Layer { file, digest, content }) in layers.iter().enumerate() {
        let place = || format!("layer {} of {}", number + 1, layers.len());
        let open = || files.file(file)?.with_context(|| format!("{} is missing", shown(file)));
        let bounds = left;
        layer::check(&open, digest.as_ref(), content, &tree, &mut left).with_context(place)?;
        layer::put(&open, content, &tree, bounds).with_context(place)?;
    }
    // Each instance mounts its own files over these, and could not make them in a read-only folder.
    let plain = Attributes { mode: 0o755, modified_s: 0 };
    if !folder.join("etc").is_symlink() {
        tree.put_folder(Path::new("etc"), plain)?;
        for name in ["etc/hosts", "etc/resolv.conf"] {
            tree.put_file(Path::new(name), Attributes { mode: 0o644, ..plain }, &mut io::empty())?;
        }
    }
    Ok(tree.sync()?)
}

fn hash(text: &[u8]) -> Sha256 {
    Sha256::new_with_prefix(text)
}

/// Hashes and counts what is read.
struct Hashing<R> {
    inner: R,
    hash: Sha256,
    bytes: u64,
}

impl<R> Hashing<R> {
    fn new(inner: R) -> Hashing<R> {
        Hashing { inner, hash: Sha256::new(), bytes: 0 }
    }

    /// Of what has been read.
    fn digest(self) -> Digest {
        Digest::of(self.hash)
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(&buffer[..read]);
        self.bytes += read as u64;
        Ok(read)
    }
}
