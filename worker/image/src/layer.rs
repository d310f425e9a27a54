//! Puts one layer over earlier ones: first removes the files of its whiteouts, then adds its own (OCI
//! image format, "Image Layer Filesystem Changeset"). The claims of its headers are bounded before they
//! are trusted.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use tar::EntryType;

use super::Hashing;
use super::compression::Compression;
use super::reference::{Digest, quoted};
use super::tree::{Attributes, Tree, inside};
use worker_system::text::shown;

/// The prefix of a whiteout: a file that removes the one with the rest of its name.
const WHITEOUT: &[u8] = b".wh.";
/// An opaque whiteout: it removes all that earlier layers have in its folder.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// The most bytes of an extension before a file, such as its long name.
const EXTENSION_BYTES: u64 = 1 << 20;

/// The room that an image has left.
#[derive(Clone, Copy)]
pub struct Left {
    pub bytes: u64,
    pub entries: usize,
}

/// The header of an entry of an archive.
struct Member {
    path: PathBuf,
    kind: EntryType,
    /// Where a link leads.
    link: PathBuf,
    attributes: Attributes,
    bytes: u64,
}

/// Opens a layer's file, from its beginning.
type Open<'a, 'b> = &'b dyn Fn() -> Result<Box<dyn Read + 'a>>;

/// Checks all of a layer before any of it is trusted: its digests, and that it is within bounds. Removes
/// the files of its whiteouts from the tree.
///
/// # Errors
/// What is wrong with it.
pub fn check(
    open: Open,
    digest: Option<&Digest>,
    content: &Digest,
    tree: &Tree,
    left: &mut Left,
) -> Result<()> {
    if let Some(digest) = digest {
        let mut file = Hashing::new(open()?);
        io::copy(&mut file, &mut io::sink())?;
        let found = file.digest();
        ensure!(found == *digest, "its file has the digest {found} and should have {digest}");
    }
    walk_all(open, content, left, |member, _| take_away(tree, &member))
}

/// Adds the files of a checked layer. It is read a second time, and any user who may write its file can
/// have changed it since: so the same bounds and the same digest are checked again.
///
/// # Errors
/// An entry is not allowed, such as a device, or a name or link that leads out; or the layer is not the
/// one that was checked.
pub fn put(open: Open, content: &Digest, tree: &Tree, mut left: Left) -> Result<()> {
    walk_all(open, content, &mut left, |member, bytes| put_one(tree, &member, bytes))
}

/// Visits all of a layer, as far as it is within bounds, and checks its digest.
fn walk_all(
    open: Open,
    content: &Digest,
    left: &mut Left,
    mut visit: impl FnMut(Member, &mut dyn Read) -> Result<()>,
) -> Result<()> {
    let too_large =
        || format!("unpacked, the image has more than the {} bytes that are allowed", crate::IMAGE_BYTES);
    let before = left.bytes;
    let mut archive = Hashing::new(unpacked(open()?)?.take(before + 1));
    walk(&mut archive, |member, bytes| {
        left.bytes = left.bytes.checked_sub(member.bytes).with_context(too_large)?;
        left.entries = left.entries.checked_sub(1).context("it has too many files")?;
        let place = place(&member.path);
        visit(member, bytes).with_context(|| place)
    })?;
    // The digest covers the bytes after the archive's end, too.
    io::copy(&mut archive, &mut io::sink())?;
    ensure!(archive.bytes <= before, too_large());
    left.bytes = before - archive.bytes;
    let found = archive.digest();
    ensure!(found == *content, "it has the digest {found}, unpacked, and should have {content}");
    Ok(())
}

fn place(path: &Path) -> String {
    shown(&path.to_string_lossy())
}

fn unpacked<'a>(file: Box<dyn Read + 'a>) -> Result<Box<dyn Read + 'a>> {
    let mut file = BufReader::with_capacity(1 << 16, file);
    Ok(Compression::of(file.fill_buf()?).reader(file))
}

fn take_away(tree: &Tree, member: &Member) -> Result<()> {
    let Some(name) = member.path.file_name().map(OsStr::as_bytes) else { return Ok(()) };
    let folder = member.path.parent().unwrap_or(Path::new(""));
    if name == OPAQUE {
        return Ok(tree.empty(folder)?);
    }
    match name.strip_prefix(WHITEOUT) {
        // Other names with this prefix are metadata of a file system that is not in use any more (aufs).
        Some(gone) if !gone.starts_with(WHITEOUT) => {
            ensure!(!matches!(gone, b"" | b"." | b".."), "a whiteout names no file");
            Ok(tree.remove(&folder.join(OsStr::from_bytes(gone)))?)
        }
        _ => Ok(()),
    }
}

fn put_one(tree: &Tree, member: &Member, content: &mut dyn Read) -> Result<()> {
    let Member { path, kind, link, attributes, bytes } = member;
    if path.file_name().is_some_and(|name| name.as_bytes().starts_with(WHITEOUT)) {
        return Ok(());
    }
    match kind {
        EntryType::Directory => Ok(tree.put_folder(path, *attributes)?),
        EntryType::Regular | EntryType::Continuous => {
            let written = tree.put_file(path, *attributes, &mut { content })?;
            ensure!(written == *bytes, "it ends early");
            Ok(())
        }
        EntryType::Symlink => Ok(tree.put_link(path, link)?),
        EntryType::Link => {
            let first =
                inside(link).with_context(|| format!("a hard link to {}, which leads out", place(link)))?;
            tree.put_name(path, &first).with_context(|| format!("a hard link to {}", place(link)))
        }
        EntryType::Char | EntryType::Block => bail!("a device, which no image may have"),
        _ => bail!("neither a file nor a folder nor a link"),
    }
}

/// Fields of an entry that its header has no room for, from the extensions before it.
#[derive(Default)]
struct Extension {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    bytes: Option<u64>,
}

impl Extension {
    fn read(&mut self, kind: EntryType, mut entry: impl Read, bytes: u64) -> Result<()> {
        ensure!(bytes <= EXTENSION_BYTES, "a name has {bytes} bytes, at most {EXTENSION_BYTES} are allowed");
        let mut text = Vec::new();
        entry.read_to_end(&mut text)?;
        let until_zero = || text.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
        match kind {
            EntryType::GNULongName => self.path = Some(until_zero()),
            EntryType::GNULongLink => self.link = Some(until_zero()),
            _ => {
                for record in tar::PaxExtensions::new(&text) {
                    let record = record.map_err(quoted)?;
                    let value = record.value_bytes();
                    match record.key_bytes() {
                        b"path" => self.path = Some(value.to_vec()),
                        b"linkpath" => self.link = Some(value.to_vec()),
                        b"size" => self.bytes = Some(record.value()?.parse()?),
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

fn walk(archive: impl Read, mut visit: impl FnMut(Member, &mut dyn Read) -> Result<()>) -> Result<()> {
    let mut archive = tar::Archive::new(archive);
    let mut extension = Extension::default();
    // Raw, since the library would read names of any length into memory.
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry.map_err(quoted).context("it is no archive, or damaged")?;
        let (header, bytes) = (entry.header().clone(), entry.size());
        let kind = header.entry_type();
        match kind {
            EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader => {
                extension.read(kind, &mut entry, bytes)?;
                continue;
            }
            EntryType::XGlobalHeader => continue,
            _ => {}
        }
        let Extension { path, link, bytes: told } = std::mem::take(&mut extension);
        let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
        let path = Path::new(OsStr::from_bytes(&path));
        ensure!(told.is_none_or(|told| told == bytes), "{}: a file of more than 8 GiB", place(path));
        let link =
            link.or_else(|| header.link_name_bytes().map(|link| link.into_owned())).unwrap_or_default();
        let member = Member {
            path: inside(path)
                .with_context(|| format!("{}: the name leads out of the image", place(path)))?,
            kind,
            link: OsStr::from_bytes(&link).into(),
            attributes: Attributes {
                mode: header.mode().map_err(quoted)?,
                modified_s: header.mtime().map_err(quoted)?,
            },
            bytes,
        };
        visit(member, &mut entry)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn archive(files: &[(&str, usize)]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(*bytes as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, name, &vec![7; *bytes][..]).unwrap();
        }
        archive.into_inner().unwrap()
    }

    /// The result of a layer whose file changes as soon as it has been checked, where the image may have 64
    /// KiB and three files.
    fn put_changed(to: &[(&str, usize)]) -> (String, usize) {
        let (checked, changed) = (archive(&[("a", 10)]), archive(to));
        let content = Digest::of(crate::hash(&checked));
        let is_checked = Cell::new(false);
        let open = || -> Result<Box<dyn Read>> {
            let archive = if is_checked.get() { changed.clone() } else { checked.clone() };
            Ok(Box::new(io::Cursor::new(archive)))
        };
        let folder = tempfile::tempdir().unwrap();
        let tree = Tree::new(folder.path(), 10).unwrap();
        let mut left = Left { bytes: 64 << 10, entries: 3 };
        let bounds = left;
        check(&open, None, &content, &tree, &mut left).unwrap();
        is_checked.set(true);
        let refusal =
            put(&open, &content, &tree, bounds).map_or_else(|error| format!("{error:#}"), |()| String::new());
        (refusal, std::fs::read_dir(folder.path()).unwrap().count())
    }

    #[test]
    fn a_layer_that_changes_after_it_was_checked_is_bounded_as_before() {
        assert_eq!(put_changed(&[("a", 10)]), (String::new(), 1));
        let (refusal, _) = put_changed(&[("b", 10)]);
        assert!(refusal.contains("digest"), "{refusal}");
        let (refusal, put) = put_changed(&[("a", 100 << 10)]);
        assert!(refusal.contains("more than the") && put == 0, "{refusal}, {put}");
        let (refusal, put) = put_changed(&[("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)]);
        assert!(refusal.contains("too many") && put == 3, "{refusal}, {put}");
    }

    #[test]
    fn a_layer_in_zstd_is_read_as_far_as_the_image_may_be_and_no_further() {
        let checked = |file: &[u8], content: &[u8]| {
            let open = || -> Result<Box<dyn Read>> { Ok(Box::new(io::Cursor::new(file.to_vec()))) };
            let folder = tempfile::tempdir().unwrap();
            let tree = Tree::new(folder.path(), 10).unwrap();
            let content = Digest::of(crate::hash(content));
            check(&open, None, &content, &tree, &mut Left { bytes: 64 << 10, entries: 3 })
                .map_or_else(|error| format!("{error:#}"), |()| String::new())
        };
        let packed = |content: &[u8]| {
            ruzstd::encoding::compress_to_vec(content, ruzstd::encoding::CompressionLevel::Fastest)
        };
        let small = archive(&[("a", 10)]);
        assert_eq!(checked(&packed(&small), &small), "");
        let refusal = checked(&packed(&small), &archive(&[("b", 10)]));
        assert!(refusal.contains("digest"), "{refusal}");
        let large = archive(&[("a", 100 << 10)]);
        let refusal = checked(&packed(&large), &large);
        assert!(refusal.contains("more than the"), "{refusal}");
        // What follows the archive counts, too: a frame of 1 TiB, in blocks of 128 KiB that are one byte
        // each.
        let blocks = [2, 0, 16, b'x'].repeat(8 << 20);
        let bomb = [&packed(&small)[..], &[0x28, 0xb5, 0x2f, 0xfd, 0, 80], &blocks].concat();
        let refusal = checked(&bomb, &small);
        assert!(refusal.contains("more than the"), "{refusal}");
    }
}
