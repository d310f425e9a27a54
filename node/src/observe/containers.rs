//! Containers with an injection. The runtime reports those into which the agent injects by NRI. No engine
//! reports those that it starts with CDI devices; the agent finds them in `/proc`: they mount the folder that
//! only CDI devices name.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::base::cgroup;
use crate::base::request::{Heap, Name};
use crate::domains::trust_domain::TrustDomain;
use crate::inject::artifacts::Artifacts;
use crate::inject::injection::{MARK, ROOT, USERFAULTFD};

/// Engines' container IDs have so many hexadecimal digits; people see the first few.
const LONG_ID: usize = 64;
const SHORT_ID: usize = 12;

/// A container with an injection.
#[derive(Clone, Debug, Default)]
pub struct InjectedContainer {
    /// Its pod's namespace; none by CDI.
    pub namespace: String,
    /// Its pod; none by CDI.
    pub pod: String,
    /// The runtime's ID of its pod; none by CDI.
    pub pod_id: String,
    /// Its name; by CDI its short ID.
    pub name: String,
    /// The trust domain in which it shares pages.
    pub domain: Option<TrustDomain>,
    /// Where the lifetimes of its injected heap come from; `None` without the heap.
    pub heap: Option<Heap>,
    /// Whether the agent has seen that its program does not believe the model.
    pub is_model_doubted: bool,
    /// Its memory cgroup, once it has one.
    pub cgroup: Option<String>,
}

impl InjectedContainer {
    /// The injected model.
    pub fn model(&self) -> Option<&Name> {
        match &self.heap {
            Some(Heap::Model(name)) => Some(name),
            _ => None,
        }
    }
}

impl std::fmt::Display for InjectedContainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "container {:?}", self.name)?;
        if self.pod.is_empty() {
            return Ok(());
        }
        write!(f, " of pod {:?} of {:?}", self.pod, self.namespace)
    }
}

/// A container with CDI devices, found by one of its processes.
#[derive(Debug)]
pub struct CdiContainer {
    /// Why it cannot share pages although it has a device for it.
    pub obstacle: Option<String>,
    /// One of its processes.
    pub process: u32,
    /// The injected libraries.
    pub libraries: Vec<&'static str>,
    /// The container.
    pub container: InjectedContainer,
}

/// The running containers with CDI devices of this agent's folder, by ID.
pub fn with_cdi_devices(artifacts: &Artifacts) -> BTreeMap<String, CdiContainer> {
    let mut has_devices = HashMap::new();
    let mut found: BTreeMap<String, CdiContainer> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(namespace) = fs::read_link(entry.path().join("ns/mnt")) else { continue };
        if *has_devices.entry(namespace).or_insert_with(|| mounts_stub_root(&entry.path(), artifacts)) {
            let Some(cgroup) = cgroup::of_process(process) else { continue };
            let variables = fs::read(entry.path().join("environ")).unwrap_or_default();
            let (id, cgroup) = container_of(&cgroup);
            // A program that sets its process title may overwrite its variables; another process then has
            // them.
            if !found.contains_key(id)
                && let Some(mut one) = from_variables(process, id, cgroup, &variables)
            {
                one.obstacle = one.container.domain.as_ref().and_then(|_| obstacle_to_sharing(&entry.path()));
                found.insert(id.to_owned(), one);
            }
        }
    }
    found
}

fn mounts_stub_root(process: &Path, artifacts: &Artifacts) -> bool {
    let mounts = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
    let is_there = mounts.lines().any(|line| line.split(' ').nth(4) == Some(ROOT));
    // By its inode, for a container controls where its paths lead.
    is_there
        && fs::metadata(process.join("root").join(ROOT.trim_start_matches('/')))
            .is_ok_and(|folder| artifacts.is_stub_root((folder.dev(), folder.ino())))
}

fn from_variables(process: u32, id: &str, cgroup: &str, variables: &[u8]) -> Option<CdiContainer> {
    let mark = |class: &str| {
        let name = format!("{MARK}_{class}=");
        let mut all = variables.split(|&byte| byte == 0);
        all.find_map(|variable| std::str::from_utf8(variable).ok()?.strip_prefix(&name))
    };
    let (heap, share) = (mark("HEAP"), mark("SHARE"));
    let libraries = [(heap, "libmayfly_heap.so"), (share, "libmayfly_merge_auto.so")];
    let libraries: Vec<_> =
        libraries.into_iter().filter_map(|(mark, library)| mark.map(|_| library)).collect();
    let container = InjectedContainer {
        name: id.get(..SHORT_ID).unwrap_or(id).to_owned(),
        domain: share.and_then(|name| name.parse().ok()).map(TrustDomain::Device),
        // A device without a valid model's name has the heap, which then learns online.
        heap: heap.map(|heap| {
            let model = heap.strip_prefix("model.").and_then(|name| name.parse().ok());
            model.map_or(Heap::Online, Heap::Model)
        }),
        cgroup: Some(cgroup.to_owned()),
        ..InjectedContainer::default()
    };
    (!libraries.is_empty()).then_some(CdiContainer { obstacle: None, process, libraries, container })
}

/// Why a container, of which this is a process's folder in `/proc`, cannot share pages: a rootless engine
/// makes no device nodes, and so passes the node's own on, with its permissions.
fn obstacle_to_sharing(process: &Path) -> Option<String> {
    let users = fs::read_to_string(process.join("uid_map")).unwrap_or_default();
    let about = fs::metadata(process.join("root").join(USERFAULTFD.trim_start_matches('/'))).ok()?;
    rootless_obstacle(&users, about.mode())
}

fn rootless_obstacle(uid_map: &str, mode: u32) -> Option<String> {
    let maps_all_users = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
    (!maps_all_users && mode & 0o006 != 0o006).then(|| {
        format!(
            "it is rootless and may not open {USERFAULTFD} (mode {:o}), so it shares no pages; its heap is not \
             affected; on the node, chmod 666 {USERFAULTFD} lets every user open it",
            mode & 0o777
        )
    })
}

/// The container ID in a cgroup's path, and the path up to its component; the whole path where there is none.
fn container_of(cgroup: &str) -> (&str, &str) {
    let hexadecimal = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    let is_id = |word: &&str| word.len() == LONG_ID && word.chars().all(hexadecimal);
    // libpod-ID, docker-ID.scope, cri-containerd-ID.scope, or ID.
    let mut words = cgroup.split(['/', '-', '.']).filter(is_id);
    let Some(id) = words.next_back() else { return (cgroup, cgroup) };
    let after = cgroup.rfind(id).map_or(cgroup.len(), |at| at + id.len());
    let end = cgroup[after..].find('/').map_or(cgroup.len(), |at| after + at);
    (id, &cgroup[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_container_id_in_cgroup_paths() {
        let id = "0123456789abcdef".repeat(4);
        for (path, wanted) in [
            (format!("/libpod_parent/libpod-{id}/container"), format!("/libpod_parent/libpod-{id}")),
            (format!("/system.slice/docker-{id}.scope"), format!("/system.slice/docker-{id}.scope")),
            (format!("/docker/{id}"), format!("/docker/{id}")),
        ] {
            assert_eq!(container_of(&path), (id.as_str(), wanted.as_str()));
        }
        assert_eq!(container_of("/user.slice/a"), ("/user.slice/a", "/user.slice/a"));
    }

    #[test]
    fn reads_the_injection_from_variables() {
        let found = |text: &[u8]| from_variables(1, &"ab".repeat(32), "/docker/ab", text);
        let both = found(b"A=b\0MAYFLY_NODE_HEAP=model.web-7\0MAYFLY_NODE_SHARE=shop\0").unwrap();
        assert_eq!(both.libraries, ["libmayfly_heap.so", "libmayfly_merge_auto.so"]);
        assert_eq!(both.container.model().map(Name::as_str), Some("web-7"));
        assert_eq!(both.container.domain, Some(TrustDomain::Device("shop".parse().unwrap())));
        assert_eq!(both.container.name, "abababababab");
        let odd = found(b"MAYFLY_NODE_HEAP=model.../x\0MAYFLY_NODE_SHARE=\xff\0").unwrap();
        assert_eq!((odd.container.heap, odd.libraries.len()), (Some(Heap::Online), 1));
        assert_eq!(found(b"MAYFLY_NODE_SHARE=shop\0").unwrap().container.heap, None);
        assert!(found(b"gunicorn: worker\0").is_none());
    }

    #[test]
    fn rootless_containers_share_only_if_the_nodes_device_is_for_all() {
        let rootless = "         0       1000          1\n         1     100000      65536\n";
        let why = rootless_obstacle(rootless, 0o020_600).unwrap();
        assert!(why.contains("mode 600") && why.contains("chmod 666 /dev/userfaultfd"), "{why}");
        assert!(!why.contains('\n'), "{why}");
        assert_eq!(rootless_obstacle(rootless, 0o020_666), None);
        assert_eq!(rootless_obstacle("         0          0 4294967295\n", 0o020_600), None);
    }
}
