//! Finds the named image, its description and its layers (OCI image format; `docker save`).

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::reference::Digest;
use worker_system::text::shown;

/// Layers of an image.
const LAYERS: usize = 256;
const BLOBS: &str = "blobs/sha256/";
/// Name and tag, as containerd and docker write them.
const NAMES: [&str; 2] = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];

/// The source of manifests and descriptions.
pub trait Documents {
    /// A file of the image, if there is one of this name.
    ///
    /// # Errors
    /// It cannot be read, or is too long for a document.
    fn document(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// The manifest with this digest; it is checked.
    ///
    /// # Errors
    /// It is not there, or is another.
    fn manifest(&self, digest: &Digest) -> Result<Vec<u8>>;
}

/// An image that was found.
#[derive(Debug)]
pub struct Found {
    /// The digest of its description, which names the digests of what its layers hold: the same for the
    /// same image, wherever it comes from.
    pub id: Digest,
    pub description: Description,
    pub layers: Vec<Layer>,
}

/// A layer of an image.
#[derive(Debug)]
pub struct Layer {
    /// The name of its file.
    pub file: String,
    /// The digest of that file. Archives of `docker save` do not have it.
    pub digest: Option<Digest>,
    /// The digest of the archive in it, uncompressed.
    pub content: Digest,
}

/// An image's description of itself (its config).
#[derive(Debug, Deserialize)]
pub struct Description {
    architecture: String,
    os: String,
    #[serde(default)]
    pub config: Option<Config>,
    rootfs: RootFs,
}

/// How its programs are to be started.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Config {
    pub entrypoint: Option<Vec<String>>,
    pub cmd: Option<Vec<String>>,
    pub env: Option<Vec<String>>,
    pub working_dir: Option<String>,
}

#[derive(Debug, Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

/// One image of `docker save`'s manifest.json.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Finds an image of Linux on x86-64; of several in an index or archive, the one with this tag.
///
/// # Errors
/// There is none, or more than one, or its description is wrong.
pub fn find(documents: &impl Documents, tag: Option<&str>) -> Result<Found> {
    if let Some(text) = documents.document("index.json")? {
        let digest = choose(parse::<Index>("index.json", &text)?.manifests, tag)?;
        return of_manifest(documents, &documents.manifest(&digest)?);
    }
    match documents.document("manifest.json")? {
        Some(text) => of_saved(documents, parse("manifest.json", &text)?, tag),
        None => bail!("is no image: there is neither index.json (OCI) nor manifest.json (docker save)"),
    }
}

/// The image that a manifest describes, or an index of manifests for several machines.
///
/// # Errors
/// As [`find`].
pub fn of_manifest(documents: &impl Documents, text: &[u8]) -> Result<Found> {
    let manifest: Manifest = match parse::<Index>("the index", text) {
        Ok(index) => {
            let digest = choose(index.manifests, None)?;
            parse("the manifest", &documents.manifest(&digest)?)?
        }
        Err(_) => parse("the manifest", text)?,
    };
    let file = |descriptor: &Descriptor| -> Result<(String, Digest)> {
        let digest = Digest::parse(&descriptor.digest)?;
        Ok((format!("{BLOBS}{}", digest.hex()), digest))
    };
    let (name, expected) = file(&manifest.config)?;
    let layers = manifest.layers.iter().map(|layer| file(layer).map(|(name, digest)| (name, Some(digest))));
    let layers = layers.collect::<Result<Vec<_>>>()?;
    let found = described(documents, &name, layers)?;
    ensure!(found.id == expected, "{name} has the digest {}, not its own", found.id);
    Ok(found)
}

fn of_saved(documents: &impl Documents, images: Vec<Saved>, tag: Option<&str>) -> Result<Found> {
    let has = |image: &Saved, tag: &str| image.repo_tags.iter().flatten().any(|name| is_called(name, tag));
    let mut images: Vec<Saved> =
        images.into_iter().filter(|image| tag.is_none_or(|tag| has(image, tag))).collect();
    ensure!(images.len() <= 1, "has {} images: say which (:TAG)", images.len());
    let image = images.pop().with_context(|| no_such(tag))?;
    described(documents, &image.config, image.layers.into_iter().map(|file| (file, None)).collect())
}

fn described(documents: &impl Documents, name: &str, layers: Vec<(String, Option<Digest>)>) -> Result<Found> {
    let text = documents.document(name)?.with_context(|| format!("{} is missing", shown(name)))?;
    let description: Description = parse(name, &text)?;
    let (os, architecture) = (&description.os, &description.architecture);
    ensure!(
        os == "linux" && architecture == "amd64",
        "is for {} on {}, and not for linux on amd64",
        shown(os),
        shown(architecture)
    );
    let contents = &description.rootfs.diff_ids;
    ensure!(
        contents.len() == layers.len() && layers.len() <= LAYERS,
        "has {} layers and names {} (at most {LAYERS})",
        layers.len(),
        contents.len()
    );
    let both = layers.into_iter().zip(contents);
    let layers = both
        .map(|((file, digest), content)| Ok(Layer { file, digest, content: Digest::parse(content)? }))
        .collect::<Result<_>>()?;
    let id = Digest::of(super::hash(&text));
    Ok(Found { id, description, layers })
}

/// The only one for this kind of machine that has the tag.
fn choose(manifests: Vec<Descriptor>, tag: Option<&str>) -> Result<Digest> {
    let names = |manifest: &Descriptor, tag: &str| {
        NAMES.iter().filter_map(|name| manifest.annotations.get(*name)).any(|name| is_called(name, tag))
    };
    let fits = |manifest: &Descriptor| {
        let platform = manifest.platform.as_ref();
        platform.is_none_or(|platform| (&*platform.os, &*platform.architecture) == ("linux", "amd64"))
            && tag.is_none_or(|tag| names(manifest, tag))
    };
    let fitting: Vec<Descriptor> = manifests.into_iter().filter(fits).collect();
    match &fitting[..] {
        [] => bail!(no_such(tag)),
        [one] => Digest::parse(&one.digest),
        several => bail!("has {} images: say which (:TAG)", several.len()),
    }
}

/// Whether an image with this name is meant: by all of it, or by its tag alone.
fn is_called(name: &str, tag: &str) -> bool {
    name == tag || name.strip_suffix(tag).is_some_and(|rest| rest.ends_with([':', '/']))
}

fn no_such(tag: Option<&str>) -> String {
    match tag {
        Some(tag) => format!("has no image for linux on amd64 called '{}'", shown(tag)),
        None => "has no image for linux on amd64".into(),
    }
}

fn parse<T: DeserializeOwned>(name: &str, text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).with_context(|| format!("{} is not as it should be", shown(name)))
}
