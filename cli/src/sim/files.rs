//! The files of this machine that a simulated guest gets: the program, a library for it, those that its
//! command names, and those of --file. The guest's own files stay as they are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The guest's working folder.
const WORKING_FOLDER: &str = "/tmp";
/// The guest reads them byte by byte, a quarter of a minute for so many.
const MOST_BYTES: usize = 64 << 20;

/// A file for the guest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostFile {
    /// Its path on this machine.
    pub from: PathBuf,
    /// Its path in the guest.
    pub to: String,
}

impl HostFile {
    /// The program, or a library: /sim/bin/NAME.
    pub fn program(from: &Path) -> HostFile {
        let name = from.file_name().unwrap_or_default().to_string_lossy();
        HostFile { from: from.to_owned(), to: format!("/sim/bin/{name}") }
    }
}

/// The files that a command's arguments name, also as `--option=FILE`. `tree`: the image's root; what is
/// there is meant there.
pub fn named(arguments: &[String], tree: Option<&Path>) -> Vec<HostFile> {
    let words = arguments.iter().flat_map(|word| {
        let value = word.split_once('=').filter(|_| word.starts_with('-')).map(|(_, value)| value);
        [Some(word.as_str()), value].into_iter().flatten()
    });
    let all = words.filter(|word| Path::new(word).is_file()).filter_map(|word| place(word, tree));
    let mut all: Vec<_> = all.map(|(from, to)| HostFile { from, to }).collect();
    all.sort();
    all.dedup();
    all
}

/// A file of --file, or all files of a folder.
///
/// # Errors
/// There is none.
pub fn given(path: &Path, tree: Option<&Path>) -> Result<Vec<HostFile>> {
    let known = std::fs::metadata(path).with_context(|| format!("--file {}", path.display()))?;
    if known.is_dir() {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(path).with_context(|| format!("--file {}", path.display()))? {
            let entry = entry?.path();
            if entry.is_dir() || entry.is_file() {
                all.extend(given(&entry, tree)?);
            }
        }
        all.sort();
        return Ok(all);
    }
    let Some((from, to)) = place(&path.to_string_lossy(), tree) else {
        bail!("--file {}: the guest has a file there", path.display());
    };
    Ok(vec![HostFile { from, to }])
}

/// A path's place in the guest, if it is this machine's file that is meant.
fn place(path: &str, tree: Option<&Path>) -> Option<(PathBuf, String)> {
    let from = PathBuf::from(path);
    if !from.is_absolute() {
        return Some((from, format!("{WORKING_FOLDER}/{path}")));
    }
    let is_guests = ["/proc", "/sys", "/dev", "/sim"].iter().any(|folder| from.starts_with(folder))
        || tree.is_some_and(|tree| tree.join(path.trim_start_matches('/')).exists());
    (!is_guests).then(|| (from, path.to_owned()))
}

/// The files as the guest's init reads them: path, zero byte, size, zero byte, bytes.
///
/// # Errors
/// One cannot be read, or they are too large.
pub fn packed(files: &[HostFile]) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    for HostFile { from, to } in files {
        let content = std::fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        all.extend_from_slice(format!("{to}\0{}\0", content.len()).as_bytes());
        all.extend(content);
        if all.len() > MOST_BYTES {
            bail!("{}: with it the guest's files have more than {} MiB", from.display(), MOST_BYTES >> 20);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_are_files_go_with_the_command() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        std::fs::create_dir_all(tree.join("etc")).unwrap();
        std::fs::write(tree.join("etc/passwd"), "").unwrap();
        let own = folder.path().join("words.txt").display().to_string();
        std::fs::write(&own, "abc").unwrap();
        // Tests run in the crate's folder.
        let option = format!("--input={own}");
        let words =
            ["-c", "print(6)", "Cargo.toml", "none.txt", "src", &option, "/etc/passwd", "/proc/version"];
        let words: Vec<_> = words.iter().map(|word| word.to_string()).collect();
        let found = named(&words, Some(&tree));
        let places: Vec<_> = found.iter().map(|file| file.to.as_str()).collect();
        assert_eq!(places, [own.as_str(), "/tmp/Cargo.toml"], "neither a folder nor what the image has");
        assert_eq!(packed(&found[..1]).unwrap(), format!("{own}\x003\0abc").as_bytes());
        let all = given(Path::new("src/sim"), None).unwrap();
        assert!(all.iter().any(|file| file.to == "/tmp/src/sim/files.rs"), "{all:?}");
        let line = format!("{:#}", given(Path::new("none"), None).unwrap_err());
        assert!(line.starts_with("--file none: No such file"), "{line}");
    }
}
