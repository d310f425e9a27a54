//! Containers that were given something: those that the runtime tells of (NRI), and those that an engine made by CDI, of which nobody
//! tells the agent, but the kernel: they mount the folder that only CDI devices name.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::base::request::Name;
use crate::domains::trust_domain::Domain;
use crate::inject::artifacts::Offer;
use crate::inject::injection::{MARK, ROOT};

/// Engines name containers by so many hexadecimal digits, and show the first few.
const LONG_ID: usize = 64;
const SHORT_ID: usize = 12;

/// A container that was given something.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Its pod's namespace; none by CDI.
    pub namespace: String,
    /// Its pod; none by CDI.
    pub pod: String,
    /// Its name; by CDI its short number.
    pub name: String,
    /// With whom it shares.
    pub domain: Option<Domain>,
    /// The model that it was given.
    pub model: Option<Name>,
    /// Whether it was seen that its program does not believe the model.
    pub is_model_doubted: bool,
    /// Its memory cgroup, once it has one.
    pub cgroup: Option<String>,
}

impl std::fmt::Display for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "container {:?}", self.name)?;
        if self.pod.is_empty() {
            return Ok(());
        }
        write!(f, " of pod {:?} of {:?}", self.pod, self.namespace)
    }
}

/// A container by CDI, seen by one of its processes.
#[derive(Debug)]
pub struct Seen {
    /// One of its processes.
    pub process: u32,
    /// What preloaded libraries it was given.
    pub libraries: Vec<&'static str>,
    /// What is known of it.
    pub known: Known,
}

/// The containers that run now with CDI devices of this agent's folder, by number.
pub fn by_cdi(offer: &Offer) -> BTreeMap<String, Seen> {
    let mut has_devices = HashMap::new();
    let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(namespace) = fs::read_link(entry.path().join("ns/mnt")) else { continue };
        if *has_devices.entry(namespace).or_insert_with(|| mounts_ground(&entry.path(), offer)) {
            let Some(cgroup) = merge::daemon::cgroup_of_process(process) else { continue };
            let variables = fs::read(entry.path().join("environ")).unwrap_or_default();
            let (id, cgroup) = container_of(&cgroup);
            // A program that shows its state as its name writes it over its variables: then another process says it.
            if !seen.contains_key(id)
                && let Some(told) = told(process, id, cgroup, &variables)
            {
                seen.insert(id.to_owned(), told);
            }
        }
    }
    seen
}

fn mounts_ground(process: &Path, offer: &Offer) -> bool {
    let mounts = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
    let is_there = mounts.lines().any(|line| line.split(' ').nth(4) == Some(ROOT));
    // By its file number, for a path in a container leads where the container wants.
    is_there
        && fs::metadata(process.join("root").join(ROOT.trim_start_matches('/')))
            .is_ok_and(|folder| offer.is_ground((folder.dev(), folder.ino())))
}

fn told(process: u32, id: &str, cgroup: &str, variables: &[u8]) -> Option<Seen> {
    let mark = |class: &str| {
        let name = format!("{MARK}_{class}=");
        let mut all = variables.split(|&byte| byte == 0);
        all.find_map(|variable| std::str::from_utf8(variable).ok()?.strip_prefix(&name))
    };
    let (heap, share) = (mark("HEAP"), mark("SHARE"));
    let libraries = [(heap, "libmayfly_heap.so"), (share, "libmayfly_merge_auto.so")];
    let libraries: Vec<_> =
        libraries.into_iter().filter_map(|(mark, library)| mark.map(|_| library)).collect();
    let known = Known {
        name: id.get(..SHORT_ID).unwrap_or(id).to_owned(),
        domain: share.and_then(|name| name.parse().ok()).map(Domain::Device),
        model: heap.and_then(|heap| heap.strip_prefix("model.")?.parse().ok()),
        cgroup: Some(cgroup.to_owned()),
        ..Known::default()
    };
    (!libraries.is_empty()).then_some(Seen { process, libraries, known })
}

/// The number in a cgroup's path, and the path up to it; the whole path where there is none.
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
    fn engines_say_the_number_in_the_cgroups_name() {
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
    fn what_a_container_was_given_is_what_its_variables_say() {
        let seen = |text: &[u8]| told(1, &"ab".repeat(32), "/docker/ab", text);
        let both = seen(b"A=b\0MAYFLY_NODE_HEAP=model.web-7\0MAYFLY_NODE_SHARE=shop\0").unwrap();
        assert_eq!(both.libraries, ["libmayfly_heap.so", "libmayfly_merge_auto.so"]);
        assert_eq!(both.known.model.map(|name| name.to_string()).as_deref(), Some("web-7"));
        assert_eq!(both.known.domain, Some(Domain::Device("shop".parse().unwrap())));
        assert_eq!(both.known.name, "abababababab");
        let odd = seen(b"MAYFLY_NODE_HEAP=model.../x\0MAYFLY_NODE_SHARE=\xff\0").unwrap();
        assert_eq!((odd.known.model, odd.libraries.len()), (None, 1));
        assert!(seen(b"gunicorn: worker\0").is_none());
    }
}
