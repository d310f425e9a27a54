//! A function's .zip: made of entries with names, modes, links and lies in its headers, or any bytes. It is
//! unpacked as the `zip` crate lists it, or refused; nothing appears outside of its folder.

#![no_main]

use std::collections::BTreeSet;
use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use worker::fuzzing::unzip;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

#[derive(Debug, Arbitrary)]
enum Input {
    Bytes(Vec<u8>),
    Entries(Vec<Entry>, Vec<(u16, u8)>),
}

#[derive(Debug, Arbitrary)]
struct Entry {
    name: Vec<u8>,
    kind: u8,
    mode: u16,
    content: Vec<u8>,
    repeats: u8,
}

const PARTS: [&str; 12] = ["a", "b", "link", "..", ".", "", "/", "a/b", "a\\b", "c\u{e9}", "dir/", "x y"];

/// A name of parts that meet one another, so that entries lie in and over each other.
fn name(parts: &[u8]) -> String {
    let parts: Vec<&str> = parts.iter().take(6).map(|part| PARTS[usize::from(*part) % PARTS.len()]).collect();
    parts.join("/")
}

fn archive(entries: &[Entry], changes: &[(u16, u8)]) -> Option<Vec<u8>> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for entry in entries.iter().take(20) {
        let name = name(&entry.name);
        let method =
            if entry.kind & 1 == 0 { CompressionMethod::Stored } else { CompressionMethod::Deflated };
        let options = SimpleFileOptions::default().compression_method(method);
        let options = options.unix_permissions(u32::from(entry.mode) & 0o7777);
        match entry.kind % 5 {
            0 => writer.add_directory(name, options).ok()?,
            1 | 2 => {
                let target = self::name(&entry.content);
                writer.add_symlink(name, target, options).ok()?;
            }
            _ => {
                writer.start_file(name, options).ok()?;
                for _ in 0..=entry.repeats {
                    writer.write_all(&entry.content).ok()?;
                }
            }
        }
    }
    let mut zip = writer.finish().ok()?.into_inner();
    for (at, byte) in changes {
        let at = usize::from(*at) % zip.len();
        zip[at] = *byte;
    }
    Some(zip)
}

/// A path without its `.` parts.
fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

fn below(folder: &Path, all: &mut BTreeSet<PathBuf>, depth: usize) {
    for entry in std::fs::read_dir(folder).expect("it is there").flatten() {
        all.insert(plain(&entry.path()));
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            below(&entry.path(), all, depth - 1);
        }
    }
}

fuzz_target!(|input: Input| {
    let zip = match &input {
        Input::Bytes(bytes) => Some(bytes.clone()),
        Input::Entries(entries, changes) => archive(entries, changes),
    };
    let Some(zip) = zip else { return };
    let outer = tempfile::tempdir_in("/dev/shm").expect("there is room");
    let folder = outer.path().join("root");
    std::fs::create_dir(&folder).expect("there is room");
    let unpacked = unzip(&zip, &folder);
    let beside: Vec<_> = std::fs::read_dir(outer.path()).expect("it is there").flatten().collect();
    assert_eq!(beside.len(), 1, "something lies beside its folder");
    if let Err(reason) = unpacked {
        assert!(!reason.contains('\n'), "{reason}");
        return;
    }
    let mut known = BTreeSet::new();
    let mut listed = ZipArchive::new(Cursor::new(&zip)).expect("it was unpacked");
    for index in 0..listed.len() {
        let mut entry = listed.by_index(index).expect("it was unpacked");
        let name = entry.name().expect("it was unpacked").into_owned();
        let path = folder.join(name);
        let about = path.symlink_metadata().expect("an entry is missing");
        let mut content = Vec::new();
        if !about.is_dir() {
            entry.read_to_end(&mut content).expect("it was unpacked");
        }
        if about.is_symlink() {
            // Parts of a link are words or steps up; resolved anywhere below, it stays below.
            let target = std::fs::read_link(&path).expect("it is one");
            assert!(target.is_relative() && target.to_string_lossy().as_bytes() == content);
            if let Ok(to) = path.canonicalize() {
                assert!(to.starts_with(folder.canonicalize().expect("it is there")), "a link leads out");
            }
        } else if about.is_file() {
            assert_eq!(std::fs::read(&path).expect("it may be read"), content);
        }
        for part in path.ancestors().take_while(|part| *part != folder) {
            known.insert(plain(part));
        }
    }
    let mut found = BTreeSet::new();
    below(&folder, &mut found, 300);
    assert!(found.is_subset(&known), "a file comes from nowhere");
});
