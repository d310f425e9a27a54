//! The archive that the guest receives beside its image: cpio's "newc" format, which Linux unpacks into its
//! root.

/// Files to be unpacked, in order.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    files: u32,
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const DEVICE: u32 = 0o020_600;

impl Archive {
    /// A folder; the one above it must be there already.
    pub fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER, (0, 0), &[]);
    }

    /// A file that can be executed.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, PROGRAM, (0, 0), content);
    }

    /// A character device.
    pub fn device(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path, DEVICE, (major, minor), &[]);
    }

    /// The whole archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.files += 1;
        let links = 1;
        // inode, mode, user, group, links, time, size, device's major and minor, special file's, name's
        // length, no sum
        let numbers = [
            self.files,
            mode,
            0,
            0,
            links,
            0,
            content.len() as u32,
            0,
            0,
            device.0,
            device.1,
            path.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for number in numbers {
            self.bytes.extend_from_slice(format!("{number:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn cpio_unpacks_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut archive = Archive::default();
        archive.folder("sim");
        archive.file("sim/hello", b"#!/bin/sh\necho hello\n");
        let mut child = Command::new("cpio")
            .args(["-i", "--quiet"])
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .spawn()
            .expect("cpio is one of the packages that tests need");
        child.stdin.take().unwrap().write_all(&archive.finish()).unwrap();
        assert!(child.wait().unwrap().success());
        let output = Command::new(folder.path().join("sim/hello")).output().unwrap();
        assert_eq!(output.stdout, b"hello\n");
    }
}
