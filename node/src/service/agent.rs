//! The agent: what it knows of the node's containers, what it gives them, and what it looks for meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Result;

use crate::base::request::{Ask, Heap};
use crate::domains::page_stores::{Members, Stores};
use crate::domains::trust_domain::Domain;
use crate::inject::adjustment::variable_of;
use crate::inject::artifacts::Offer;
use crate::inject::cdi;
use crate::inject::injection::Gift;
use crate::nri::messages::{Container, Pod};
use crate::nri::plugin;
use crate::observe::containers::{self, Known};
use crate::observe::load_check::Outcome;
use crate::observe::{load_check, model_coverage};
use crate::profiles::profiler::{Profiles, Subject};
use crate::service::settings::Settings;

const AGAIN: Duration = Duration::from_secs(2);
const CHECK_COVERAGE: Duration = Duration::from_secs(2);
const LOOK_AT_MODELS: Duration = Duration::from_secs(10);
const LOOK_AT_CONTAINERS: Duration = Duration::from_secs(5);
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

/// The agent's state.
pub struct Agent {
    settings: Settings,
    offer: Offer,
    /// The page stores.
    pub stores: Stores,
    /// What takes profiles.
    pub profiles: Arc<Profiles>,
    /// What the runtime tells of, by its name.
    told: Mutex<BTreeMap<String, Known>>,
    /// What was seen by itself, by number.
    seen: Mutex<BTreeMap<String, Known>>,
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
            told: Mutex::default(),
            seen: Mutex::default(),
            is_connected: AtomicBool::new(false),
            counts: Counts::default(),
        }
    }

    /// The containers that the runtime tells of and that were given something, by its name.
    pub fn told(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        locked(&self.told)
    }

    /// All containers that were given something, those by CDI too.
    pub fn containers(&self) -> BTreeMap<String, Known> {
        let mut all = locked(&self.seen).clone();
        all.extend(self.told().clone());
        all
    }

    /// What the node has to give.
    pub fn offer(&self) -> &Offer {
        &self.offer
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

    /// Logs once for each container that its program does not believe its model.
    pub async fn follow_model_coverage(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CHECK_COVERAGE).await;
            let agent = self.clone();
            let _ = tokio::task::spawn_blocking(move || agent.check_model_coverage()).await;
        }
    }

    fn check_model_coverage(&self) {
        for (id, known) in self.containers() {
            let (Some(model), false) = (&known.model, known.is_model_doubted) else { continue };
            let Some(standing) =
                model_coverage::of_container(&known, &self.offer).filter(|one| one.is_doubted)
            else {
                continue;
            };
            self.counts.models_doubted.fetch_add(1, Ordering::Relaxed);
            for all in [&self.told, &self.seen] {
                if let Some(known) = locked(all).get_mut(&id) {
                    known.is_model_doubted = true;
                }
            }
            tracing::warn!(
                "{known}: the model {model} is of another build or program and not believed: it knows {}% of {} \
                 contexts; lifetimes are learned online",
                standing.known_percent(),
                standing.contexts
            );
        }
    }

    /// Engines that start containers by CDI tell nobody: looks for these.
    pub async fn follow_cdi(self: Arc<Self>) {
        if self.settings.cdi.is_none() {
            return std::future::pending().await;
        }
        loop {
            let agent = self.clone();
            let _ = tokio::task::spawn_blocking(move || agent.look_for_cdi()).await;
            tokio::time::sleep(LOOK_AT_CONTAINERS).await;
        }
    }

    fn look_for_cdi(&self) {
        let found = containers::by_cdi(&self.offer);
        let mut seen = locked(&self.seen);
        let before = std::mem::take(&mut *seen);
        for (id, one) in found {
            let old = before.get(&id);
            if old.is_none() {
                self.look(one.process, &one.libraries, &one.known);
            }
            let is_model_doubted = old.is_some_and(|old| old.is_model_doubted);
            seen.insert(id, Known { is_model_doubted, ..one.known });
        }
    }

    /// Connects to the runtime, and again when it went away.
    pub async fn follow_runtime(self: Arc<Self>) {
        let Some(socket) = self.settings.nri.clone() else { return std::future::pending().await };
        let mut said = String::new();
        loop {
            let ended = plugin::connect(&socket, self.clone()).await;
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

    /// Says that something was not given.
    pub fn refuse(&self, pod: &Pod, why: std::fmt::Arguments<'_>) {
        self.counts.refused.fetch_add(1, Ordering::Relaxed);
        tracing::warn!("not given to pod {:?} of {:?}: {why}", pod.name, pod.namespace);
    }

    /// What a container is given of what it asks for.
    ///
    /// # Errors
    /// A folder that it would mount cannot be made.
    pub fn gift(&self, pod: &Pod, id: &str, ask: &Ask, domain: Option<&Domain>) -> Result<Gift> {
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

    /// Takes note of a container.
    pub fn learn(&self, pod: &Pod, container: &Container, ask: &Ask, domain: Option<Domain>) {
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
        self.told().insert(container.id.clone(), known);
    }

    /// Says to a domain's store who is in it.
    pub fn tell_members(&self, domain: &Domain) {
        let known = self.told();
        let all = known.values().filter(|known| known.domain.as_ref() == Some(domain));
        let (mut cgroups, mut count) = (Vec::new(), 0);
        for one in all {
            cgroups.extend(one.cgroup.clone());
            count += 1;
        }
        self.stores.serve(domain, if count == 0 { Members::Nobody } else { Members::Cgroups(cgroups) });
    }

    /// Takes the profile that the container asks for.
    pub fn profile_later(self: &Arc<Self>, pod: &Pod, container: &Container) {
        let (Some(time), process) = (Ask::read(&pod.annotations).0.profile, container.process) else {
            return;
        };
        let subject = Subject::of(pod, &container.id, &container.name);
        let profiles = self.profiles.clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            tokio::time::sleep(LOOK_AFTER).await;
            profiles.take(subject, process, time).await;
        });
    }

    /// Looks whether the program has what it was given; says once if it has not.
    pub fn look_later(self: &Arc<Self>, container: &Container) {
        let process = container.process;
        let preloaded = variable_of(container, "LD_PRELOAD").unwrap_or_default();
        let libraries: Vec<&'static str> = ["libmayfly_heap.so", "libmayfly_merge_auto.so"]
            .into_iter()
            .filter(|library| preloaded.contains(library))
            .collect();
        let Some(known) = self.told().get(&container.id).cloned() else { return };
        if process == 0 || libraries.is_empty() {
            return;
        }
        let agent = self.clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            tokio::time::sleep(LOOK_AFTER).await;
            // What /proc says of a container's program may be long in coming, as its program's file system likes: not on the
            // threads that carry connections.
            let _ = tokio::task::spawn_blocking(move || agent.look(process, &libraries, &known)).await;
        });
    }

    fn look(&self, process: u32, libraries: &[&str], known: &Known) {
        let outcome = load_check::look(process, libraries);
        *locked(&self.counts.outcomes).entry(outcome).or_default() += 1;
        let list = libraries.join(" and ");
        match outcome {
            Outcome::InPlace => tracing::info!("{known}: {list} in place"),
            Outcome::Static => tracing::warn!("{known}: left alone, its program is linked statically"),
            Outcome::NotTold => {
                tracing::warn!(
                    "{known}: left alone, who started its program took {list} out of its environment"
                )
            }
            Outcome::NotTaken => tracing::warn!("{known}: left alone, its loader did not take {list}"),
            Outcome::Ended => tracing::debug!("{known}: has ended"),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
