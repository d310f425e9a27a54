//! What the agent injects into a container, by NRI or by CDI: mounts, variables and devices.
//!
//! ```text
//! /opt/mayfly/heap/    libmayfly_heap.so, for each C library         LD_PRELOAD
//! /opt/mayfly/share/   libmayfly_merge_auto.so, libmayfly_merge.so   LD_PRELOAD
//! /opt/mayfly/store/   share.socket of its trust domain
//! /opt/mayfly/model/   one model
//! /opt/mayfly/control/ a socket, while `mayfly profile` samples it
//! ```
//!
//! Only a program's loader knows **which C library the program has**, so the loader chooses. glibc replaces
//! `$LIB` in a path by its own folder, `lib/x86_64-linux-gnu` or `lib64`. musl takes `$LIB` literally, and
//! there is a folder of that name. So one variable is right for every program of a container, and no hook has
//! to inspect images. A static program has no loader and runs unchanged.

use std::path::{Path, PathBuf};

/// The folder in the container below which all mounts are.
pub const ROOT: &str = "/opt/mayfly";
/// The variable that marks a container with an injection, and lists its parts.
pub const MARK: &str = "MAYFLY_NODE";
/// The device by which a program freezes its pages while they are merged.
pub const USERFAULTFD: &str = "/dev/userfaultfd";

const HEAP_LIBRARY: &str = "/opt/mayfly/heap/$LIB/libmayfly_heap.so";
const AUTO_LIBRARY: &str = "/opt/mayfly/share/$LIB/libmayfly_merge_auto.so";
const MERGE_LIBRARY: &str = "/opt/mayfly/share/$LIB/libmayfly_merge.so";
const SOCKET: &str = "/opt/mayfly/store/share.socket";
const MODEL: &str = "/opt/mayfly/model/model";
const CONTROL: &str = "/opt/mayfly/control";
/// Allocations of at least that size are scanned: smaller ones rarely have equal pages.
const AUTO_BYTES: &str = "1M";
/// The node's root, as it appears in a user namespace that does not map it. Only root can have put a socket
/// into the mount.
const UNMAPPED_USER: &str = "65534";

/// A folder of the node in the container, read-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// On the node.
    pub source: PathBuf,
    /// In the container.
    pub destination: String,
}

/// The changes to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Injection {
    /// Folders.
    pub mounts: Vec<Mount>,
    /// Variables, without `LD_PRELOAD`.
    pub variables: Vec<(&'static str, String)>,
    /// Libraries, in the order of `LD_PRELOAD`.
    pub preloaded: Vec<&'static str>,
    /// Device nodes.
    pub devices: Vec<&'static str>,
}

impl Injection {
    fn mount(&mut self, source: &Path, part: &str) {
        self.mounts.push(Mount { source: source.to_owned(), destination: format!("{ROOT}/{part}") });
    }

    /// Mounts the folder with mount points for all parts, and stub libraries in them. A container may have
    /// several CDI devices, of which the last one's `LD_PRELOAD` counts: so each must name all libraries.
    pub fn stub_root(&mut self, folder: &Path) {
        self.mounts.push(Mount { source: folder.to_owned(), destination: ROOT.into() });
        self.preloaded = vec![AUTO_LIBRARY, HEAP_LIBRARY];
    }

    /// Adds the heap, with a model's folder, and the folder of the socket by which `mayfly profile` samples
    /// it.
    pub fn heap(&mut self, libraries: &Path, model: Option<&Path>, control: Option<&Path>) {
        self.mount(libraries, "heap");
        self.preload(HEAP_LIBRARY);
        let control = control.map_or("on", |folder| {
            self.mount(folder, "control");
            CONTROL
        });
        self.variables.push(("MAYFLY_HEAP_CONTROL", control.into()));
        if let Some(model) = model {
            self.mount(model, "model");
            self.variables.push(("MAYFLY_HEAP_MODEL", MODEL.into()));
        }
    }

    /// Adds sharing through the store that listens in the folder `store`.
    pub fn share(&mut self, libraries: &Path, store: &Path) {
        self.mount(libraries, "share");
        self.mount(store, "store");
        self.preload(AUTO_LIBRARY);
        self.variables.push(("MAYFLY_SHARE_SOCKET", SOCKET.into()));
        self.variables.push(("MAYFLY_SHARE_UID", UNMAPPED_USER.into()));
        self.variables.push(("MAYFLY_MERGE_LIBRARY", MERGE_LIBRARY.into()));
        self.variables.push(("MAYFLY_MERGE_AUTO", AUTO_BYTES.into()));
        if Path::new(USERFAULTFD).exists() {
            self.devices.push(USERFAULTFD);
        }
    }

    fn preload(&mut self, library: &'static str) {
        if !self.preloaded.contains(&library) {
            // The automatic mode forwards small allocations to the heap, so it is preloaded first.
            let at = if library == AUTO_LIBRARY { 0 } else { self.preloaded.len() };
            self.preloaded.insert(at, library);
        }
    }

    /// `LD_PRELOAD`, with the container's own value first.
    pub fn ld_preload(&self, existing: Option<&str>) -> Option<String> {
        if self.preloaded.is_empty() {
            return None;
        }
        let own = self.preloaded.join(":");
        Some(match existing.filter(|text| !text.is_empty()) {
            Some(existing) => format!("{existing}:{own}"),
            None => own,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharing_is_preloaded_before_the_heap_and_after_the_images_libraries() {
        let mut injection = Injection::default();
        assert_eq!(injection.ld_preload(Some("x.so")), None);
        injection.heap(Path::new("/h"), None, None);
        injection.share(Path::new("/s"), Path::new("/d"));
        let both = format!("{AUTO_LIBRARY}:{HEAP_LIBRARY}");
        assert_eq!(injection.ld_preload(None), Some(both.clone()));
        assert_eq!(injection.ld_preload(Some("x.so")), Some(format!("x.so:{both}")));
        assert_eq!(injection.mounts.len(), 3);
    }

    #[test]
    fn every_cdi_device_names_all_libraries_in_one_order() {
        let (mut one, mut two) = (Injection::default(), Injection::default());
        one.stub_root(Path::new("/g"));
        one.heap(Path::new("/h"), Some(Path::new("/m")), None);
        two.stub_root(Path::new("/g"));
        two.share(Path::new("/s"), Path::new("/d"));
        assert_eq!(one.ld_preload(None), two.ld_preload(None));
    }
}
