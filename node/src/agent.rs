//! The agent: what it knows of the node's containers, what it answers the runtime, and what runs beside that.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Result;

use crate::adjust::{adjustment, is_in_the_way, variable_of};
use crate::ask::{Ask, Heap, Name};
use crate::domain::Domain;
use crate::gift::{Gift, MARK, ROOT};
use crate::nri::messages::{Adjustment, Container, Pod, RUNNING};
use crate::offer::Offer;
use crate::profiles::{Profiles, Subject};
use crate::stores::{Members, Stores};
use crate::watch::Outcome;
use crate::{cdi, cgroup, nri, watch};

/// How an agent is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The `mayfly` command, which is also the page store.
    pub program: PathBuf,
    /// The agent's folder, at the same path for the agent and for the runtime: containers mount what is in it.
    pub data: PathBuf,
    /// Libraries for programs on glibc.
    pub glibc: PathBuf,
    /// Libraries for programs on musl.
    pub musl: Option<PathBuf>,
    /// Models, `NAME.mayfly-model`.
    pub models: Option<PathBuf>,
    /// Where profiles go.
    pub profiles: PathBuf,
    /// Where CDI specifications go, if they do.
    pub cdi: Option<PathBuf>,
    /// The runtime's NRI socket, if there is one.
    pub nri: Option<PathBuf>,
    /// Trust domains that CDI devices name.
    pub domains: Vec<Name>,
    /// Bytes that each domain's store may hold.
    pub store_bytes: u64,
    /// Where `/metrics` and `/healthz` are.
    pub listen: Option<SocketAddr>,
}

const AGAIN: Duration = Duration::from_secs(2);
const LOOK_AT_MODELS: Duration = Duration::from_secs(10);
/// A program that is begun by a script has replaced it by then.
const LOOK_AFTER: Duration = Duration::from_secs(2);

/// How often what happened.
#[derive(Default)]
pub struct Counts {
    /// Containers that were given the heap.
    pub heap: AtomicU64,
    /// Containers that were given sharing.
    pub share: AtomicU64,
    /// Annotations that were not followed.
    pub refused: AtomicU64,
    /// Containers that asked and started while the agent was away.
    pub missed: AtomicU64,
    /// Containers whose model was not believed.
    pub models_doubted: AtomicU64,
    /// What programs had, once they ran.
    pub outcomes: Mutex<BTreeMap<Outcome, u64>>,
}

/// A container that was given something.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its pod's namespace.
    pub namespace: String,
    /// Its pod.
    pub pod: String,
    /// Its name.
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

/// The agent's state.
pub struct Agent {
    settings: Settings,
    offer: Offer,
    /// The page stores.
    pub stores: Stores,
    /// What takes profiles.
    pub profiles: Arc<Profiles>,
    known: Mutex<BTreeMap<String, Known>>,
    /// Whether a runtime asks it.
    pub is_connected: AtomicBool,
    /// What happened.
    pub counts: Counts,
}

impl Agent {
    /// One that knows of nothing yet.
    pub fn new(settings: Settings, offer: Offer, stores: Stores, profiles: Arc<Profiles>) -> Agent {
        Agent {
            settings,
            offer,
            stores,
            profiles,
            known: Mutex::default(),
            is_connected: AtomicBool::new(false),
            counts: Counts::default(),
        }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The containers that were given something, by the runtime's name.
    pub fn known(&self) -> BTreeMap<String, Known> {
        self.held().clone()
    }

    /// What the node has to give.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// It was seen that a container's program does not believe its model.
    pub fn model_is_doubted(&self, id: &str) {
        if let Some(known) = self.held().get_mut(id) {
            known.is_model_doubted = true;
        }
    }

    /// Writes the CDI specifications, if they are wanted.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write_cdi(&self) -> Result<()> {
        let Some(folder) = &self.settings.cdi else { return Ok(()) };
        cdi::write(folder, &self.offer, &self.settings.domains, |domain| self.stores.folder(domain))
    }

    /// Models come and change while the agent runs; what starts next takes them.
    pub async fn follow_models(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_AT_MODELS).await;
            let agent = self.clone();
            let written = tokio::task::spawn_blocking(move || agent.write_cdi()).await;
            if let Ok(Err(why)) = written {
                tracing::warn!("CDI: {why:#}");
            }
        }
    }

    /// Connects to the runtime, and again when it went away.
    pub async fn follow_runtime(self: Arc<Self>) {
        let Some(socket) = self.settings.nri.clone() else { return std::future::pending().await };
        let mut said = String::new();
        loop {
            let ended = nri::connect(&socket, self.clone()).await;
            self.is_connected.store(false, Ordering::Relaxed);
            let now = match ended {
                Ok(()) => "the runtime has closed the connection".to_owned(),
                Err(why) => format!("{why:#}"),
            };
            if now != said {
                tracing::warn!("containers are not seen: {now}; trying again every {AGAIN:?}");
            }
            said = now;
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn refuse(&self, pod: &Pod, why: std::fmt::Arguments<'_>) {
        self.counts.refused.fetch_add(1, Ordering::Relaxed);
        tracing::warn!("not given to pod {:?} of {:?}: {why}", pod.name, pod.namespace);
    }

    /// What a container is given of what it asks for.
    fn gift(&self, pod: &Pod, id: &str, ask: &Ask, domain: Option<&Domain>) -> Result<Gift> {
        let mut gift = Gift::default();
        if ask.needs_heap() {
            let model = match &ask.heap {
                Some(Heap::Model(name)) => self
                    .offer
                    .model(name)
                    .inspect_err(|why| {
                        self.refuse(pod, format_args!("{why:#}; lifetimes are learned online"))
                    })
                    .ok(),
                _ => None,
            };
            let control = ask.profile.map(|_| self.profiles.folder(id)).transpose()?;
            gift.heap(&self.offer.part("heap"), model.as_deref(), control.as_deref());
        }
        if let Some(domain) = domain {
            gift.share(&self.offer.part("share"), &self.stores.folder(domain)?);
        }
        Ok(gift)
    }

    fn learn(&self, pod: &Pod, container: &Container, ask: &Ask, domain: Option<Domain>) {
        let process = (container.process != 0).then_some(container.process);
        let cgroup = process.and_then(merge::daemon::cgroup_of_process);
        let model = match &ask.heap {
            Some(Heap::Model(name)) => Some(name.clone()),
            _ => None,
        };
        let known = Known {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            name: container.name.clone(),
            domain,
            model,
            is_model_doubted: false,
            cgroup,
        };
        self.held().insert(container.id.clone(), known);
    }

    fn tell_members(&self, domain: &Domain) {
        let known = self.held();
        let all = known.values().filter(|known| known.domain.as_ref() == Some(domain));
        let (mut cgroups, mut count) = (Vec::new(), 0);
        for one in all {
            cgroups.extend(one.cgroup.clone());
            count += 1;
        }
        self.stores.serve(domain, if count == 0 { Members::Nobody } else { Members::Cgroups(cgroups) });
    }

    /// Takes the profile that the container asks for.
    fn profile_later(self: &Arc<Self>, pod: &Pod, container: &Container) {
        let Some(time) = Ask::read(&pod.annotations).0.profile else { return };
        let subject = Subject::of(pod, &container.id, &container.name);
        let cgroup = self.known().remove(&container.id).and_then(|known| known.cgroup);
        let profiles = self.profiles.clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            tokio::time::sleep(LOOK_AFTER).await;
            let processes = cgroup.map(|path| cgroup::processes_below(&path)).unwrap_or_default();
            profiles.take(subject, processes, time).await;
        });
    }

    /// Looks whether the program has what it was given; says once if it has not.
    fn look_later(self: &Arc<Self>, pod: &Pod, container: &Container) {
        let process = container.process;
        let preloaded = variable_of(container, "LD_PRELOAD").unwrap_or_default();
        let libraries: Vec<&'static str> = ["libmayfly_heap.so", "libmayfly_merge_auto.so"]
            .into_iter()
            .filter(|library| preloaded.contains(library))
            .collect();
        if process == 0 || libraries.is_empty() {
            return;
        }
        let label = format!("container {:?} of pod {:?} of {:?}", container.name, pod.name, pod.namespace);
        let agent = self.clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            tokio::time::sleep(LOOK_AFTER).await;
            let outcome = watch::look(process, &libraries);
            let mut outcomes = agent.counts.outcomes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            *outcomes.entry(outcome).or_default() += 1;
            drop(outcomes);
            let list = libraries.join(" and ");
            match outcome {
                Outcome::InPlace => tracing::info!("{label}: {list} in place"),
                Outcome::Static => tracing::warn!("{label}: left alone, its program is linked statically"),
                Outcome::NotTaken => tracing::warn!("{label}: left alone, its loader did not take {list}"),
                Outcome::Ended => tracing::debug!("{label}: has ended"),
            }
        });
    }
}

impl nri::Answers for Agent {
    fn configured(&self, runtime: &str, version: &str) {
        self.is_connected.store(true, Ordering::Relaxed);
        tracing::info!("asked by {runtime} {version}");
    }

    fn synchronize(&self, pods: Vec<Pod>, containers: Vec<Container>) {
        let pods: HashMap<&str, &Pod> = pods.iter().map(|pod| (pod.id.as_str(), pod)).collect();
        self.held().clear();
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
        self.profiles.keep_only(self.known().keys());
        // Also of those that nobody is in any more.
        let served = self.stores.states().into_keys().filter(|domain| !matches!(domain, Domain::Device(_)));
        let domains: BTreeSet<Domain> =
            served.chain(self.known().into_values().filter_map(|known| known.domain)).collect();
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
        let known = self.held().get(&container.id).cloned();
        if let Some(known) = known {
            let (ask, _) = Ask::read(&pod.annotations);
            self.learn(pod, container, &ask, known.domain.clone());
            if let Some(domain) = known.domain {
                self.tell_members(&domain);
            }
        }
    }

    fn started(self: Arc<Self>, pod: &Pod, container: &Container) {
        let is_known = self.held().contains_key(&container.id);
        if is_known {
            self.starting(pod, container);
            self.look_later(pod, container);
            self.profile_later(pod, container);
        }
    }

    fn gone(&self, container: &Container) {
        let known = self.held().remove(&container.id);
        self.profiles.forget(&container.id);
        if let Some(domain) = known.and_then(|known| known.domain) {
            self.tell_members(&domain);
        }
    }
}
