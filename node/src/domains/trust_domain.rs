//! Trust domains: which containers may share pages. The boundary is Kubernetes' namespace; annotations only
//! divide it further. A process that may map a page can read it, and can measure whether it was there (UPM
//! §IV-E).

use std::fmt;

use sha2::{Digest, Sha256};

use crate::base::request::{Name, Share};

/// A trust domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TrustDomain {
    /// One pod's containers.
    Pod {
        /// The namespace.
        namespace: String,
        /// The pod's identity, which no other pod ever has.
        uid: String,
    },
    /// Those of a namespace that request it.
    Namespace(String),
    /// Those of a namespace that request the same name.
    Named(String, Name),
    /// Containers with the CDI device of that name: the operator decides which.
    Device(Name),
}

impl TrustDomain {
    /// The trust domain of a pod's container. The runtime states the namespace and the pod, the pod only the
    /// name.
    pub fn of(share: &Share, namespace: &str, uid: &str) -> TrustDomain {
        let namespace = namespace.to_owned();
        match share {
            Share::Pod => TrustDomain::Pod { namespace, uid: uid.to_owned() },
            Share::Namespace => TrustDomain::Namespace(namespace),
            Share::Named(name) => TrustDomain::Named(namespace, name.clone()),
        }
    }

    /// The name of its folders and cgroup, unique: short, for a socket's path has 107 bytes.
    pub fn id(&self) -> String {
        short_name(&Sha256::digest(self.to_string()))
    }

    /// The namespace, where there is one.
    pub fn namespace(&self) -> &str {
        match self {
            TrustDomain::Pod { namespace, .. }
            | TrustDomain::Namespace(namespace)
            | TrustDomain::Named(namespace, _) => namespace,
            TrustDomain::Device(_) => "",
        }
    }
}

/// Quotes what a pod or a runtime chose, so that no two domains read alike.
impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrustDomain::Pod { namespace, uid } => write!(f, "pod {uid:?} of {namespace:?}"),
            TrustDomain::Namespace(namespace) => write!(f, "namespace {namespace:?}"),
            TrustDomain::Named(namespace, name) => write!(f, "{name} of {namespace:?}"),
            TrustDomain::Device(name) => write!(f, "device {name}"),
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
        let all: Vec<TrustDomain> = ["a", "b", "", "a\" of \"b"]
            .iter()
            .flat_map(|namespace| forged.iter().map(|share| TrustDomain::of(share, namespace, "uid")))
            .chain([TrustDomain::Device("web".parse().unwrap()), TrustDomain::Device("b".parse().unwrap())])
            .collect();
        assert_eq!(all.iter().map(TrustDomain::id).collect::<HashSet<_>>().len(), all.len());
        assert!(all.iter().all(|domain| domain.id().len() == 32));
    }
}
