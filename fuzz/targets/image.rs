//! A container image in an OCI archive, as a caller of the API may give: layers of entries that overwrite,
//! link and whiten out one another, or of any bytes. It is unpacked or refused; twice the same; and nothing
//! outside of its folder is touched.

#![no_main]

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use arbitrary::Arbitrary;
use flate2::{Compression, write::GzEncoder};
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use sha2::{Digest, Sha256};

#[derive(Debug, Arbitrary)]
struct Input {
    layers: Vec<Layer>,
    is_docker: bool,
    config: Option<(Vec<String>, Vec<String>, Option<String>)>,
    /// Bytes of the archive that are changed at the end.
    changes: Vec<(u16, u8)>,
}

#[derive(Debug, Arbitrary)]
enum Layer {
    Bytes(Vec<u8>),
    Entries(Vec<Entry>, bool),
}

#[derive(Debug, Arbitrary)]
struct Entry {
    name: Vec<u8>,
    kind: u8,
    mode: u16,
    link: Vec<u8>,
    content: Vec<u8>,
    /// Whether the name comes in an extension before it.
    extension: u8,
    /// A size other than the content's.
    size: Option<u32>,
}

const PARTS: [&str; 14] = [
    "a",
    "b",
    "etc",
    "hosts",
    "link",
    "..",
    ".",
    "",
    "/",
    ".wh.a",
    ".wh..wh..opq",
    ".wh.",
    ".wh..",
    "very-long-name-of-a-file",
];

fn name(parts: &[u8]) -> String {
    let parts: Vec<&str> =
        parts.iter().take(12).map(|part| PARTS[usize::from(*part) % PARTS.len()]).collect();
    parts.join("/")
}

/// One entry, with its header's fields as they are given.
fn member(out: &mut Vec<u8>, name: &str, kind: u8, entry: &Entry, content: &[u8]) {
    let mut header = [0_u8; 512];
    let put = |header: &mut [u8], at: usize, bytes: &[u8], most: usize| {
        let bytes = &bytes[..bytes.len().min(most)];
        header[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(&mut header, 0, name.as_bytes(), 100);
    let size = entry.size.filter(|_| kind == b'0').map_or(content.len(), |size| size as usize);
    for (at, text) in [
        (100, format!("{:07o}", entry.mode & 0o7777)),
        (124, format!("{size:011o}")),
        (136, format!("{:011o}", 1_000_000)),
    ] {
        put(&mut header, at, text.as_bytes(), 12);
    }
    header[148..156].fill(b' ');
    header[156] = kind;
    put(&mut header, 157, self::name(&entry.link).as_bytes(), 100);
    put(&mut header, 257, b"ustar\x0000", 8);
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    put(&mut header, 148, format!("{sum:06o}\0 ").as_bytes(), 8);
    out.extend(header);
    out.extend(content);
    out.resize(out.len().next_multiple_of(512), 0);
}

impl Layer {
    fn tar(&self) -> Vec<u8> {
        let Layer::Entries(entries, ends) = self else {
            let Layer::Bytes(bytes) = self else { unreachable!() };
            return bytes.clone();
        };
        let mut tar = Vec::new();
        for entry in entries.iter().take(20) {
            let name = name(&entry.name);
            match entry.extension % 8 {
                0 => member(&mut tar, "long", b'L', entry, format!("{name}\0").as_bytes()),
                1 => {
                    let record = format!(" path={name}\n");
                    let length = record.len() + 2;
                    member(&mut tar, "pax", b'x', entry, format!("{length:02}{record}").as_bytes());
                }
                2 => member(&mut tar, "pax", b'x', entry, &entry.link),
                3 => {
                    member(&mut tar, "long", b'K', entry, format!("{}\0", self::name(&entry.link)).as_bytes())
                }
                _ => {}
            }
            let kind = b"000025512730g6S"[usize::from(entry.kind) % 15];
            let content: &[u8] = if kind == b'0' { &entry.content } else { b"" };
            member(&mut tar, &name, kind, entry, content);
        }
        if *ends {
            tar.extend([0; 1024]);
        }
        tar
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The files of the archive, by their names.
fn files(input: &Input) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let (mut contents, mut layers, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for (number, layer) in input.layers.iter().take(4).enumerate() {
        let tar = layer.tar();
        contents.push(format!("sha256:{}", digest(&tar)));
        let file = if number % 2 == 0 {
            tar
        } else {
            let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
            packed.write_all(&tar).expect("into memory");
            packed.finish().expect("into memory")
        };
        let name = digest(&file);
        layers.push(json!({ "digest": format!("sha256:{name}") }));
        names.push(format!("blobs/sha256/{name}"));
        files.push((format!("blobs/sha256/{name}"), file));
    }
    let config = input.config.as_ref().map(|(entry_point, environment, folder)| {
        json!({ "Entrypoint": entry_point, "Env": environment, "WorkingDir": folder })
    });
    let description = json!({
        "architecture": "amd64", "os": "linux", "config": config, "rootfs": { "diff_ids": contents },
    });
    let description = description.to_string().into_bytes();
    let config = format!("blobs/sha256/{}", digest(&description));
    if input.is_docker {
        let saved = json!([{ "Config": config, "RepoTags": ["a:b"], "Layers": names }]);
        files.push(("manifest.json".into(), saved.to_string().into_bytes()));
    } else {
        let config = json!({ "digest": format!("sha256:{}", digest(&description)) });
        let manifest = json!({ "config": config, "layers": layers }).to_string().into_bytes();
        let name = digest(&manifest);
        let index = json!({ "manifests": [{ "digest": format!("sha256:{name}") }] });
        files.push((format!("blobs/sha256/{name}"), manifest));
        files.push(("index.json".into(), index.to_string().into_bytes()));
    }
    files.push((config, description));
    files
}

/// What lies below a folder: kind, mode, and content or target.
fn listed(folder: &Path, below: &Path, all: &mut BTreeMap<Vec<u8>, (u32, Vec<u8>)>) {
    use std::os::unix::fs::MetadataExt;
    for entry in std::fs::read_dir(folder.join(below)).expect("it is there").flatten() {
        let path = below.join(entry.file_name());
        let about = entry.metadata().expect("it is there");
        let content = if about.is_dir() {
            listed(folder, &path, all);
            Vec::new()
        } else if about.is_symlink() {
            std::fs::read_link(entry.path()).expect("it is one").as_os_str().as_bytes().to_vec()
        } else {
            assert!(about.is_file(), "neither a file nor a folder nor a link");
            std::fs::read(entry.path()).expect("root may read it")
        };
        assert_eq!(about.mode() & 0o7000, 0, "a file gives rights");
        all.insert(path.as_os_str().as_bytes().to_vec(), (about.mode(), content));
    }
}

fuzz_target!(|input: Input| {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in files(&input) {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, &content[..]).expect("into memory");
    }
    let mut archive = archive.into_inner().expect("into memory");
    for (at, byte) in &input.changes {
        let at = usize::from(*at) % archive.len();
        archive[at] = *byte;
    }
    let outer = tempfile::tempdir_in("/dev/shm").expect("there is room");
    let file = outer.path().join("image.tar");
    std::fs::write(&file, &archive).expect("there is room");
    let kind = if input.is_docker { "docker-archive" } else { "oci-archive" };
    let uri = format!("{kind}:{}", file.display());
    let Ok(opened) = worker_image::open(&uri, None, None, outer.path(), |_, _, _, _, _| {
        unreachable!("it names no registry")
    }) else {
        return;
    };
    let unpacked = ["one", "two"].map(|name| {
        let folder = outer.path().join(name);
        std::fs::create_dir(&folder).expect("there is room");
        let result = opened.unpack(&folder).map_err(|error| error.to_string());
        let mut all = BTreeMap::new();
        listed(&folder, Path::new(""), &mut all);
        (result, all)
    });
    assert_eq!(unpacked[0], unpacked[1]);
    let beside = std::fs::read_dir(outer.path()).expect("it is there").count();
    assert_eq!((beside, std::fs::read(&file).ok()), (3, Some(archive)), "something outside was touched");
    if let (Err(reason), _) = &unpacked[0] {
        assert!(!reason.chars().any(char::is_control), "{reason:?}");
    }
});
