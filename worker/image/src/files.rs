//! The files of an image: in a folder, in an archive, or in a registry, from which they are fetched.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use cap_std::fs::Dir;

use super::compression::Compression;
use super::manifest::{self, Documents, Found};
use super::reference::{Digest, Reference, quoted};
use super::registry::Registry;
use super::tree::inside;
use super::{Allowed, Fetch, hash};
use worker_system::open_below;
use worker_system::text::shown;

/// The most bytes of a manifest or of an image's description.
const DOCUMENT_BYTES: u64 = 4 << 20;
/// Files in an archive of images.
const MEMBERS: usize = 10_000;

/// Where the files are.
pub enum Files {
    /// A folder, and whether only files that every user may read are read.
    Folder(Dir, bool),
    Archive(Archive),
    Registry(Registry),
}

impl Files {
    /// Opens what `reference` names. What a caller names must be `allowed`.
    ///
    /// # Errors
    /// It is not there, or not allowed.
    pub fn open(
        reference: &Reference,
        allowed: Option<&Allowed>,
        place: &Path,
        fetch: Fetch,
    ) -> Result<Files> {
        let path = match reference {
            Reference::Registry(remote) => {
                let may = allowed.is_none_or(|allowed| allowed.registries.contains(&remote.address));
                ensure!(
                    may,
                    "{} is no registry that images may come from (mayfly up --image-registry)",
                    remote.address
                );
                return Ok(Files::Registry(Registry::new(remote.clone(), place, fetch)?));
            }
            Reference::Files { path, .. } => path,
        };
        let opened = match allowed {
            None => operators(path),
            Some(allowed) => callers(path, allowed.folders),
        };
        match opened? {
            Opened::Folder(folder) => Ok(Files::Folder(folder, allowed.is_some())),
            Opened::File(file) => Ok(Files::Archive(Archive::new(file, place)?)),
        }
    }

    /// Which image is meant.
    ///
    /// # Errors
    /// None, or more than one.
    pub fn find(&self, reference: &Reference) -> Result<Found> {
        match (self, reference) {
            (Files::Registry(registry), _) => manifest::of_manifest(self, &registry.manifest()?),
            (_, Reference::Files { tag, .. }) => manifest::find(self, tag.as_deref()),
            (_, Reference::Registry(_)) => unreachable!("a registry's files are in it"),
        }
    }

    /// A file, if there is one of this name.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn file(&self, name: &str) -> Result<Option<Box<dyn Read + '_>>> {
        let path = inner_name(name)?;
        match self {
            Files::Archive(archive) => {
                Ok(archive.file(&path).map(|file| Box::new(file) as Box<dyn Read + '_>))
            }
            Files::Folder(folder, strict) => {
                let file = if *strict { of_everybody(folder, &path)? } else { present(folder.open(&path))? };
                let Some(file) = file else { return Ok(None) };
                ensure!(file.metadata()?.is_file(), "{} is no file", shown(name));
                Ok(Some(Box::new(file)))
            }
            Files::Registry(registry) => {
                let digest =
                    name.strip_prefix("blobs/sha256/").map(|hex| Digest::parse(&format!("sha256:{hex}")));
                match digest {
                    Some(digest) => Ok(Some(Box::new(registry.blob(&digest?)?))),
                    None => Ok(None),
                }
            }
        }
    }
}

impl Documents for Files {
    fn document(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.file(name)? else { return Ok(None) };
        let mut text = Vec::new();
        file.take(DOCUMENT_BYTES + 1).read_to_end(&mut text)?;
        ensure!(text.len() as u64 <= DOCUMENT_BYTES, "{} has more than {DOCUMENT_BYTES} bytes", shown(name));
        Ok(Some(text))
    }

    fn manifest(&self, digest: &Digest) -> Result<Vec<u8>> {
        let text = match self {
            Files::Registry(registry) => registry.manifest_of(&digest.to_string())?,
            _ => self
                .document(&format!("blobs/sha256/{}", digest.hex()))?
                .with_context(|| format!("{digest} is missing"))?,
        };
        let found = Digest::of(hash(&text));
        ensure!(found == *digest, "a manifest has the digest {found} and should have {digest}");
        Ok(text)
    }
}

/// The name of a file as a path that stays inside.
fn inner_name(name: &str) -> Result<PathBuf> {
    inside(Path::new(name)).with_context(|| format!("{}: the name leads out of the image", shown(name)))
}

enum Opened {
    Folder(Dir),
    File(File),
}

/// Opens a path that the operator has named, with the worker's rights.
fn operators(path: &Path) -> Result<Opened> {
    let metadata = path.metadata()?;
    if metadata.is_dir() {
        return Ok(Opened::Folder(Dir::open_ambient_dir(path, cap_std::ambient_authority())?));
    }
    ensure!(metadata.is_file(), "is neither a folder nor a file");
    Ok(Opened::File(File::open(path)?))
}

/// Opens a path that a caller has named: it must lie below a folder of the operator's, and every user may
/// read it.
fn callers(path: &Path, folders: &[PathBuf]) -> Result<Opened> {
    let below = folders.iter().find_map(|root| Some((root, path.strip_prefix(root).ok()?)));
    let (root, below) =
        below.context("is not below a folder that images may come from (mayfly up --code-from FOLDER)")?;
    let parent = below.parent().unwrap_or(Path::new(""));
    let folder = open_below::open(root, parent).map_err(|reason| anyhow!("{reason}"))?;
    let Some(name) = below.file_name() else { return Ok(Opened::Folder(folder)) };
    let last = Path::new(name);
    if folder.metadata(last)?.is_dir() {
        return open_below::enter(folder, last).map(Opened::Folder).map_err(|reason| anyhow!("{reason}"));
    }
    let file = open_below::file(&folder, last).map_err(|reason| anyhow!("{reason}"))?;
    Ok(Opened::File(file.into_std()))
}

fn of_everybody(folder: &Dir, path: &Path) -> Result<Option<cap_std::fs::File>> {
    if !folder.try_exists(path)? {
        return Ok(None);
    }
    let parent = path.parent().unwrap_or(Path::new(""));
    let opened = open_below::enter(folder.try_clone()?, parent)
        .and_then(|parent| open_below::file(&parent, Path::new(path.file_name().unwrap_or_default())));
    opened.map(Some).map_err(|reason| anyhow!("{}: {reason}", path.display()))
}

fn present<T>(opened: io::Result<T>) -> io::Result<Option<T>> {
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// An archive with the files of images; where in it each one is.
pub struct Archive {
    file: File,
    members: BTreeMap<PathBuf, Member>,
}

enum Member {
    Data {
        at: u64,
        bytes: u64,
    },
    /// Another name for a file: `docker save` names a layer twice so.
    Link(PathBuf),
}

impl Archive {
    fn new(file: File, place: &Path) -> Result<Archive> {
        let file = unpacked(file, place)?;
        let mut members = BTreeMap::new();
        for entry in tar::Archive::new(&file).entries_with_seek()?.raw(true) {
            let entry = entry.map_err(quoted).context("is no archive, or damaged")?;
            ensure!(members.len() < MEMBERS, "has more than {MEMBERS} files");
            let Some(path) = inside(&entry.header().path()?) else { continue };
            match entry.header().entry_type() {
                tar::EntryType::Regular => {
                    members.insert(path, Member::Data { at: entry.raw_file_position(), bytes: entry.size() });
                }
                tar::EntryType::Symlink => {
                    let link = entry.header().link_name()?.unwrap_or_default();
                    if let Some(target) = beside(&path, &link) {
                        members.insert(path, Member::Link(target));
                    }
                }
                _ => {}
            }
        }
        Ok(Archive { file, members })
    }

    fn file(&self, path: &Path) -> Option<Part<'_>> {
        let member = match self.members.get(path)? {
            Member::Link(target) => self.members.get(target)?,
            data => data,
        };
        match member {
            Member::Data { at, bytes } => Some(Part { file: &self.file, at: *at, left: *bytes }),
            Member::Link(_) => None,
        }
    }
}

/// The target of a link in an archive, if it does not lead out.
fn beside(path: &Path, link: &Path) -> Option<PathBuf> {
    let mut target = path.parent()?.to_path_buf();
    for part in link.components() {
        match part {
            Component::Normal(part) => target.push(part),
            Component::ParentDir if target.pop() => {}
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(target)
}

/// An archive that was compressed as a whole, unpacked into a file without a name.
fn unpacked(file: File, place: &Path) -> Result<File> {
    let mut start = [0; 4];
    let read = file.read_at(&mut start, 0)?;
    let compression = Compression::of(&start[..read]);
    if compression == Compression::None {
        return Ok(file);
    }
    let mut whole = tempfile::tempfile_in(place)?;
    let limit = crate::IMAGE_BYTES;
    let reader = compression.reader(io::BufReader::new(file));
    let bytes = io::copy(&mut reader.take(limit + 1), &mut whole).context("is damaged")?;
    ensure!(bytes <= limit, "has more than the {limit} bytes that are allowed");
    io::Seek::rewind(&mut whole)?;
    Ok(whole)
}

/// A part of a file.
struct Part<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}
