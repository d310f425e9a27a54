//! Trust domains: whose containers may share pages. Kubernetes' namespace is the border; annotations only divide it
//! further. Whoever may map a page can read it, and can tell whether it was there (UPM §IV-E).

use std::fmt;

use sha2::{Digest, Sha256};

use crate::base::request::{Name, Share};

/// A trust domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Domain {
    /// One pod's containers.
    Pod {
        /// The namespace.
        namespace: String,
        /// The pod's identity, which no other pod ever has.
        uid: String,
    },
    /// Those of a namespace that ask for it.
    Namespace(String),
    /// Those of a namespace that say the same name.
    Named(String, Name),
    /// Whoever was started with the CDI device of that name: the operator decides.
    Device(Name),
}

impl Domain {
    /// What a pod's container belongs to. The namespace and the pod are the runtime's word, only the name the pod's.
    pub fn of(share: &Share, namespace: &str, uid: &str) -> Domain {
        let namespace = namespace.to_owned();
        match share {
            Share::Pod => Domain::Pod { namespace, uid: uid.to_owned() },
            Share::Namespace => Domain::Namespace(namespace),
            Share::Named(name) => Domain::Named(namespace, name.clone()),
        }
    }

    /// The name of its folders and cgroup: short, for a socket's path has 107 bytes, and another for each domain.
    pub fn id(&self) -> String {
        short_name(&Sha256::digest(self.to_string()))
    }

    /// The namespace, where there is one.
    pub fn namespace(&self) -> &str {
        match self {
            Domain::Pod { namespace, .. } | Domain::Namespace(namespace) | Domain::Named(namespace, _) => {
                namespace
            }
            Domain::Device(_) => "",
        }
    }
}

/// Quoted where a pod or a runtime chose the text, so that no two domains look alike.
impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Domain::Pod { namespace, uid } => write!(f, "pod {uid:?} of {namespace:?}"),
            Domain::Namespace(namespace) => write!(f, "namespace {namespace:?}"),
            Domain::Named(namespace, name) => write!(f, "{name} of {namespace:?}"),
            Domain::Device(name) => write!(f, "device {name}"),
        }
    }
}

/// A name of 32 characters, from a SHA-256.
pub(crate) fn short_name(digest: &[u8]) -> String {
    digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_annotation_reaches_another_namespace() {
        let forged: Vec<Share> =
            ["pod", "namespace", "web", "b"].iter().map(|text| text.parse().unwrap()).collect();
        let all: Vec<Domain> = ["a", "b", "", "a\" of \"b"]
            .iter()
            .flat_map(|namespace| forged.iter().map(|share| Domain::of(share, namespace, "uid")))
            .chain([Domain::Device("web".parse().unwrap()), Domain::Device("b".parse().unwrap())])
            .collect();
        assert_eq!(all.iter().map(Domain::id).collect::<HashSet<_>>().len(), all.len());
        assert!(all.iter().all(|domain| domain.id().len() == 32));
    }
}
