//! The agent's handlers of the runtime's requests (NRI).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::request::InjectionRequest;
use crate::domains::trust_domain::TrustDomain;
use crate::inject::adjustment::{adjustment, mounts_over, variable_of};
use crate::inject::injection::{MARK, ROOT};
use crate::nri::messages::{Adjustment, Container, Pod, RUNNING};
use crate::nri::plugin;
use crate::observe::containers::InjectedContainer;
use crate::service::agent::Agent;

impl plugin::RuntimeHandler for Agent {
    fn configured(&self, runtime: &str, version: &str) {
        self.is_connected.store(true, Ordering::Relaxed);
        tracing::info!("NRI connected to {runtime} {version}");
    }

    fn synchronize(&self, pods: Vec<Pod>, containers: Vec<Container>) {
        let pods: HashMap<&str, &Pod> = pods.iter().map(|pod| (pod.id.as_str(), pod)).collect();
        self.lock_nri_containers().clear();
        for container in containers.iter().filter(|container| container.state <= RUNNING) {
            let Some(pod) = pods.get(container.pod_id.as_str()) else { continue };
            let (request, _) = InjectionRequest::from_annotations(&pod.annotations);
            if request.is_empty() {
                continue;
            }
            if variable_of(container, MARK).is_none() {
                self.counts.missed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    "container {:?} of pod {:?} of {:?} started while no agent ran and runs without what it requests; \
                     restart it",
                    container.name,
                    pod.name,
                    pod.namespace
                );
                continue;
            }
            let is_sharing = variable_of(container, "MAYFLY_SHARE_SOCKET").is_some();
            let domain = request
                .share
                .as_ref()
                .filter(|_| is_sharing)
                .map(|share| TrustDomain::of(share, &pod.namespace, &pod.uid));
            self.record(pod, container, &request, domain);
        }
        let nri_containers = self.lock_nri_containers().clone();
        self.profiler.remove_all_but(nri_containers.keys());
        // Domains whose last container stopped while no runtime was connected, too.
        let served =
            self.stores.states().into_keys().filter(|domain| !matches!(domain, TrustDomain::Device(_)));
        let domains: BTreeSet<TrustDomain> =
            served.chain(nri_containers.into_values().filter_map(|container| container.domain)).collect();
        for domain in domains {
            self.update_members(&domain);
        }
    }

    fn create(&self, pod: &Pod, container: &Container) -> Adjustment {
        let (request, errors) = InjectionRequest::from_annotations(&pod.annotations);
        for why in errors {
            self.refuse(pod, format_args!("{why}"));
        }
        if request.is_empty() {
            return Adjustment::default();
        }
        if mounts_over(container, ROOT) {
            self.refuse(pod, format_args!("the container itself mounts something at {ROOT}"));
            return Adjustment::default();
        }
        let domain = request.share.as_ref().map(|share| TrustDomain::of(share, &pod.namespace, &pod.uid));
        // Recorded first: with a member the domain's folder stays until the runtime mounts it.
        self.record(pod, container, &request, domain.clone());
        if let Some(domain) = &domain {
            self.update_members(domain);
        }
        match self.injection(pod, &container.id, &request, domain.as_ref()) {
            Ok(injection) => adjustment(&injection, variable_of(container, "LD_PRELOAD")),
            Err(why) => {
                self.stopped(container);
                self.refuse(pod, format_args!("{why:#}"));
                Adjustment::default()
            }
        }
    }

    fn starting(&self, pod: &Pod, container: &Container) {
        let recorded = self.lock_nri_containers().get(&container.id).cloned();
        if let Some(recorded) = recorded {
            let (request, _) = InjectionRequest::from_annotations(&pod.annotations);
            self.record(pod, container, &request, recorded.domain.clone());
            if let Some(domain) = recorded.domain {
                self.update_members(&domain);
            }
        }
    }

    fn started(self: Arc<Self>, pod: &Pod, container: &Container) {
        let recorded = self.lock_nri_containers().get(&container.id).cloned();
        if let Some(recorded) = recorded {
            self.starting(pod, container);
            let (request, _) = InjectionRequest::from_annotations(&pod.annotations);
            self.count_given(pod, container, &request, recorded.domain.is_some());
            self.schedule_load_check(container);
            self.schedule_profile(pod, container);
        }
    }

    fn stopped(&self, container: &Container) {
        let recorded = self.lock_nri_containers().remove(&container.id);
        self.profiler.remove(&container.id);
        if let Some(domain) = recorded.and_then(|recorded| recorded.domain) {
            self.update_members(&domain);
        }
    }

    fn pod_removed(&self, pod: &Pod) {
        let of_pod = |(_, one): &(&String, &InjectedContainer)| one.pod_id == pod.id;
        let left: Vec<String> =
            self.lock_nri_containers().iter().filter(of_pod).map(|(id, _)| id.clone()).collect();
        for id in left {
            self.stopped(&Container { id, ..Container::default() });
        }
    }
}
