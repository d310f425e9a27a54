//! Groups of tests: plain folders and files in place of the kernel's.

use std::fs;
use std::path::Path;

use crate::Group;

/// A group of version 2 in plain folders, with these files.
pub fn two(folder: &Path, files: &[(&str, &str)]) -> Group {
    let group = Group::two(folder);
    group.create().unwrap();
    files.iter().for_each(|(file, text)| fs::write(folder.join(file), text).unwrap());
    group
}

/// The contents of a file of the group.
pub fn text(group: &Group, file: &str) -> String {
    fs::read_to_string(group.folder().join(file)).unwrap()
}
