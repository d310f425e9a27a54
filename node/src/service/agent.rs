//! The agent: the node's containers with injections, what it injects, and its periodic checks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Result;

use crate::base::cgroup;
use crate::base::request::{Heap, InjectionRequest};
use crate::domains::page_stores::{Members, PageStores};
use crate::domains::trust_domain::TrustDomain;
use crate::inject::adjustment::preloaded_libraries;
use crate::inject::artifacts::Artifacts;
use crate::inject::cdi;
use crate::inject::injection::Injection;
use crate::nri::messages::{Container, Pod};
use crate::nri::plugin;
use crate::observe::containers::{self, InjectedContainer};
use crate::observe::load_check::LoadOutcome;
use crate::observe::{load_check, model_coverage};
use crate::profiles::profiler::{Profiler, Subject};
use crate::service::settings::Settings;

const RECONNECT_INTERVAL: Duration = Duration::from_secs(2);
const COVERAGE_INTERVAL: Duration = Duration::from_secs(2);
const CDI_REFRESH_INTERVAL: Duration = Duration::from_secs(10);
const CDI_SCAN_INTERVAL: Duration = Duration::from_secs(5);
/// By then a script that the container started has executed its program.
const START_DELAY: Duration = Duration::from_secs(2);

/// Counts of events, for metrics.
#[derive(Default)]
pub struct Counts {
    /// Containers that started with an injected heap.
    pub heap: AtomicU64,
    /// Containers that started with injected sharing.
    pub share: AtomicU64,
    /// Containers that started without an injected library, since another plugin replaced `LD_PRELOAD`.
    pub replaced: AtomicU64,
    /// Requests that the agent refused.
    pub refused: AtomicU64,
    /// Containers with a request that started while no agent ran.
    pub missed: AtomicU64,
    /// Containers whose programs did not believe their model.
    pub models_doubted: AtomicU64,
    /// Results of load checks.
    pub outcomes: Mutex<BTreeMap<LoadOutcome, u64>>,
}

/// The agent's state.
pub struct Agent {
    settings: Settings,
    artifacts: Artifacts,
    /// The page stores.
    pub stores: PageStores,
    /// Takes profiles.
    pub profiler: Arc<Profiler>,
    /// Containers that the runtime reports by NRI, by the runtime's ID.
    nri_containers: Mutex<BTreeMap<String, InjectedContainer>>,
    /// Containers that the agent itself finds, by ID.
    cdi_containers: Mutex<BTreeMap<String, InjectedContainer>>,
    /// Whether a runtime is connected.
    pub is_connected: AtomicBool,
    /// Counts of events.
    pub counts: Counts,
}

impl Agent {
    /// An agent without containers.
    pub fn new(
        settings: Settings,
        artifacts: Artifacts,
        stores: PageStores,
        profiler: Arc<Profiler>,
    ) -> Agent {
        Agent {
            settings,
            artifacts,
            stores,
            profiler,
            nri_containers: Mutex::default(),
            cdi_containers: Mutex::default(),
            is_connected: AtomicBool::new(false),
            counts: Counts::default(),
        }
    }

    /// Locks the containers that the agent injected into by NRI, by the runtime's ID.
    pub fn lock_nri_containers(&self) -> MutexGuard<'_, BTreeMap<String, InjectedContainer>> {
        locked(&self.nri_containers)
    }

    /// All containers with an injection, by NRI or CDI.
    pub fn containers(&self) -> BTreeMap<String, InjectedContainer> {
        let mut all = locked(&self.cdi_containers).clone();
        all.extend(self.lock_nri_containers().clone());
        all
    }

    /// The libraries and models.
    pub fn artifacts(&self) -> &Artifacts {
        &self.artifacts
    }

    /// Writes the CDI specifications, if there is a folder for them.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write_cdi(&self) -> Result<()> {
        let Some(folder) = &self.settings.cdi else { return Ok(()) };
        cdi::write(folder, &self.artifacts, &self.settings.domains, |domain| self.stores.folder(domain))
    }

    /// Rewrites the CDI specifications when models were added or changed; containers that start next get
    /// these.
    pub async fn refresh_cdi(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CDI_REFRESH_INTERVAL).await;
            let agent = self.clone();
            let written = tokio::task::spawn_blocking(move || agent.write_cdi()).await;
            if let Ok(Err(why)) = written {
                tracing::warn!("CDI: {why:#}");
            }
        }
    }

    /// Logs, once for each container, that its program does not believe its model.
    pub async fn watch_model_coverage(self: Arc<Self>) {
        loop {
            tokio::time::sleep(COVERAGE_INTERVAL).await;
            let agent = self.clone();
            let _ = tokio::task::spawn_blocking(move || agent.check_model_coverage()).await;
        }
    }

    fn check_model_coverage(&self) {
        for (id, container) in self.containers() {
            let (Some(model), false) = (container.model(), container.is_model_doubted) else { continue };
            let Some(coverage) =
                model_coverage::of_container(&container, &self.artifacts).filter(|one| one.is_doubted)
            else {
                continue;
            };
            self.counts.models_doubted.fetch_add(1, Ordering::Relaxed);
            for all in [&self.nri_containers, &self.cdi_containers] {
                if let Some(container) = locked(all).get_mut(&id) {
                    container.is_model_doubted = true;
                }
            }
            tracing::warn!(
                "{container}: the model {model} is of another build or program and not believed: it knows {}% of {} \
                 contexts; lifetimes are learned online",
                coverage.known_percent(),
                coverage.contexts
            );
        }
    }

    /// Scans for containers that engines start with CDI devices, since no engine reports them.
    pub async fn scan_cdi_containers(self: Arc<Self>) {
        if self.settings.cdi.is_none() {
            return std::future::pending().await;
        }
        loop {
            let agent = self.clone();
            let _ = tokio::task::spawn_blocking(move || agent.scan_cdi()).await;
            tokio::time::sleep(CDI_SCAN_INTERVAL).await;
        }
    }

    fn scan_cdi(&self) {
        let found = containers::with_cdi_devices(&self.artifacts);
        let mut containers = locked(&self.cdi_containers);
        let before = std::mem::take(&mut *containers);
        for (id, one) in found {
            let old = before.get(&id);
            if old.is_none() {
                self.check_load(one.process, &one.libraries, &one.container);
                if let Some(why) = &one.obstacle {
                    tracing::warn!("{}: {why}", one.container);
                }
            }
            let is_model_doubted = old.is_some_and(|old| old.is_model_doubted);
            containers.insert(id, InjectedContainer { is_model_doubted, ..one.container });
        }
    }

    /// Connects to the runtime, and reconnects when the connection is lost.
    pub async fn serve_runtime(self: Arc<Self>) {
        let Some(socket) = self.settings.nri.clone() else { return std::future::pending().await };
        let mut logged = String::new();
        loop {
            let ended = plugin::connect(&socket, self.clone()).await;
            self.is_connected.store(false, Ordering::Relaxed);
            let why = match ended {
                Ok(()) => "the runtime has closed the connection".to_owned(),
                Err(why) => format!("{why:#}"),
            };
            if why != logged {
                tracing::warn!("NRI connection lost: {why}; reconnecting every {RECONNECT_INTERVAL:?}");
            }
            logged = why;
            tokio::time::sleep(RECONNECT_INTERVAL).await;
        }
    }

    /// Counts and logs a request that the agent refuses.
    pub fn refuse(&self, pod: &Pod, why: std::fmt::Arguments<'_>) {
        self.counts.refused.fetch_add(1, Ordering::Relaxed);
        tracing::warn!("refused to pod {:?} of {:?}: {why}", pod.name, pod.namespace);
    }

    /// The injection that follows from a container's request.
    ///
    /// # Errors
    /// A folder that the container would mount cannot be made.
    pub fn injection(
        &self,
        pod: &Pod,
        id: &str,
        request: &InjectionRequest,
        domain: Option<&TrustDomain>,
    ) -> Result<Injection> {
        let mut injection = Injection::default();
        if request.needs_heap() {
            let model = match &request.heap {
                Some(Heap::Model(name)) => self
                    .artifacts
                    .model(name)
                    .inspect_err(|why| {
                        self.refuse(pod, format_args!("{why:#}; lifetimes are learned online"))
                    })
                    .ok(),
                _ => None,
            };
            let control = request.profile.map(|_| self.profiler.folder(id)).transpose()?;
            injection.heap(&self.artifacts.part("heap"), model.as_deref(), control.as_deref());
        }
        if let Some(domain) = domain {
            injection.share(&self.artifacts.part("share"), &self.stores.folder(domain)?);
        }
        Ok(injection)
    }

    /// Records a container with an injection.
    pub fn record(
        &self,
        pod: &Pod,
        container: &Container,
        request: &InjectionRequest,
        domain: Option<TrustDomain>,
    ) {
        let process = (container.process != 0).then_some(container.process);
        let cgroup = process.and_then(cgroup::of_process);
        // A profile samples the heap, which then learns online.
        let heap = request.heap.clone().or_else(|| request.profile.map(|_| Heap::Online));
        let recorded = InjectedContainer {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            pod_id: pod.id.clone(),
            name: container.name.clone(),
            domain,
            heap,
            is_model_doubted: false,
            cgroup,
        };
        self.lock_nri_containers().insert(container.id.clone(), recorded);
    }

    /// Updates the members of a domain's store to the containers that are in the domain now.
    pub fn update_members(&self, domain: &TrustDomain) {
        let containers = self.lock_nri_containers();
        let members = containers.values().filter(|container| container.domain.as_ref() == Some(domain));
        let (mut cgroups, mut count) = (Vec::new(), 0);
        for member in members {
            cgroups.extend(member.cgroup.clone());
            count += 1;
        }
        self.stores.serve(domain, if count == 0 { Members::None } else { Members::Cgroups(cgroups) });
    }

    /// Schedules the profile that the container requests.
    pub fn schedule_profile(self: &Arc<Self>, pod: &Pod, container: &Container) {
        let (request, _) = InjectionRequest::from_annotations(&pod.annotations);
        let (Some(time), process) = (request.profile, container.process) else { return };
        let subject = Subject::of(pod, &container.id, &container.name);
        let profiler = self.profiler.clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            tokio::time::sleep(START_DELAY).await;
            profiler.profile(subject, process, time).await;
        });
    }

    /// Counts the injection that a container has started with. That may be less than the agent returned:
    /// another plugin may come later.
    pub fn count_given(&self, pod: &Pod, container: &Container, request: &InjectionRequest, shares: bool) {
        let preloaded = preloaded_libraries(container);
        let requested = [
            (request.needs_heap(), "libmayfly_heap.so", &self.counts.heap),
            (shares, "libmayfly_merge_auto.so", &self.counts.share),
        ];
        for (_, library, count) in requested.into_iter().filter(|(is_requested, ..)| *is_requested) {
            if preloaded.contains(&library) {
                count.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            self.counts.replaced.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                "container {:?} of pod {:?} of {:?} starts without {library}: another NRI plugin has replaced LD_PRELOAD; \
                 it must extend the value that it finds",
                container.name,
                pod.name,
                pod.namespace
            );
        }
    }

    /// Schedules the check whether the program has loaded the injected libraries.
    pub fn schedule_load_check(self: &Arc<Self>, container: &Container) {
        let (process, libraries) = (container.process, preloaded_libraries(container));
        let Some(recorded) = self.lock_nri_containers().get(&container.id).cloned() else { return };
        if process == 0 || libraries.is_empty() {
            return;
        }
        let agent = self.clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            tokio::time::sleep(START_DELAY).await;
            // Reads of /proc may block on the program's file system, so they run on no thread that serves
            // connections.
            let check = move || agent.check_load(process, &libraries, &recorded);
            let _ = tokio::task::spawn_blocking(check).await;
        });
    }

    fn check_load(&self, process: u32, libraries: &[&str], container: &InjectedContainer) {
        let outcome = load_check::check(process, libraries);
        *locked(&self.counts.outcomes).entry(outcome).or_default() += 1;
        let list = libraries.join(" and ");
        match outcome {
            LoadOutcome::InPlace => tracing::info!("{container}: {list} in place"),
            LoadOutcome::Static => {
                tracing::warn!("{container} runs unchanged: its program is linked statically")
            }
            LoadOutcome::EnvironmentReplaced => {
                tracing::warn!(
                    "{container} runs unchanged: the process that started its program removed {list} from its environment"
                )
            }
            LoadOutcome::NotLoaded => {
                tracing::warn!("{container} runs unchanged: its loader did not load {list}")
            }
            LoadOutcome::Exited => tracing::debug!("{container}: its program has exited"),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
