//! What the agent answers a runtime that asks it (NRI).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::request::Ask;
use crate::domains::trust_domain::Domain;
use crate::inject::adjustment::{adjustment, is_in_the_way, variable_of};
use crate::inject::injection::{MARK, ROOT};
use crate::nri::messages::{Adjustment, Container, Pod, RUNNING};
use crate::nri::plugin;
use crate::service::agent::Agent;

impl plugin::Answers for Agent {
    fn configured(&self, runtime: &str, version: &str) {
        self.is_connected.store(true, Ordering::Relaxed);
        tracing::info!("asked by {runtime} {version}");
    }

    fn synchronize(&self, pods: Vec<Pod>, containers: Vec<Container>) {
        let pods: HashMap<&str, &Pod> = pods.iter().map(|pod| (pod.id.as_str(), pod)).collect();
        self.told().clear();
        for container in containers.iter().filter(|container| container.state <= RUNNING) {
            let Some(pod) = pods.get(container.pod_id.as_str()) else { continue };
            let (ask, _) = Ask::read(&pod.annotations);
            if ask.is_nothing() {
                continue;
            }
            if variable_of(container, MARK).is_none() {
                self.counts.missed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    "container {:?} of pod {:?} of {:?} asked and was given nothing: it started while no agent ran; \
                     restart it",
                    container.name,
                    pod.name,
                    pod.namespace
                );
                continue;
            }
            let is_given = variable_of(container, "MAYFLY_SHARE_SOCKET").is_some();
            let domain = ask
                .share
                .as_ref()
                .filter(|_| is_given)
                .map(|share| Domain::of(share, &pod.namespace, &pod.uid));
            self.learn(pod, container, &ask, domain);
        }
        let told = self.told().clone();
        self.profiles.keep_only(told.keys());
        // Also of those that nobody is in any more.
        let served = self.stores.states().into_keys().filter(|domain| !matches!(domain, Domain::Device(_)));
        let domains: BTreeSet<Domain> =
            served.chain(told.into_values().filter_map(|known| known.domain)).collect();
        for domain in domains {
            self.tell_members(&domain);
        }
    }

    fn create(&self, pod: &Pod, container: &Container) -> Adjustment {
        let (ask, wrong) = Ask::read(&pod.annotations);
        for why in wrong {
            self.refuse(pod, format_args!("{why}"));
        }
        if ask.is_nothing() {
            return Adjustment::default();
        }
        if is_in_the_way(container) {
            self.refuse(pod, format_args!("it mounts something at {ROOT} itself"));
            return Adjustment::default();
        }
        let domain = ask.share.as_ref().map(|share| Domain::of(share, &pod.namespace, &pod.uid));
        // Known first: from now on the domain has somebody, and its folder stays.
        self.learn(pod, container, &ask, domain.clone());
        if let Some(domain) = &domain {
            self.tell_members(domain);
        }
        match self.gift(pod, &container.id, &ask, domain.as_ref()) {
            Ok(gift) => {
                let count = |count: &AtomicU64, is: bool| count.fetch_add(is.into(), Ordering::Relaxed);
                count(&self.counts.heap, ask.needs_heap());
                count(&self.counts.share, domain.is_some());
                adjustment(&gift, variable_of(container, "LD_PRELOAD"))
            }
            Err(why) => {
                self.gone(container);
                self.refuse(pod, format_args!("{why:#}"));
                Adjustment::default()
            }
        }
    }

    fn starting(&self, pod: &Pod, container: &Container) {
        let known = self.told().get(&container.id).cloned();
        if let Some(known) = known {
            let (ask, _) = Ask::read(&pod.annotations);
            self.learn(pod, container, &ask, known.domain.clone());
            if let Some(domain) = known.domain {
                self.tell_members(&domain);
            }
        }
    }

    fn started(self: Arc<Self>, pod: &Pod, container: &Container) {
        let is_known = self.told().contains_key(&container.id);
        if is_known {
            self.starting(pod, container);
            self.look_later(container);
            self.profile_later(pod, container);
        }
    }

    fn gone(&self, container: &Container) {
        let known = self.told().remove(&container.id);
        self.profiles.forget(&container.id);
        if let Some(domain) = known.and_then(|known| known.domain) {
            self.tell_members(&domain);
        }
    }
}
