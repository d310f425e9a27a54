//! Profiles of containers that request one (`mayfly.dev/profile: SECONDS`). `mayfly profile` samples their
//! programs from outside for that long, and the processes that these start or fork meanwhile. Its output goes
//! into a partitioned data set, for `mayfly train`.
//!
//! ```text
//! namespace=shop/workload=web/version=7/POD.CONTAINER.PROCESS.TIME.parquet, .symbols.parquet, .pb.gz
//! ```
//!
//! A container mounts a folder in which its heap looks for samplers' sockets, and only the agent can make
//! sockets there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::domains::trust_domain::short_name;
use crate::nri::messages::Pod;
use crate::profiles::upload_queue::{SUFFIXES, UploadQueue};

/// Profiles that the agent takes at once.
const MAX_CONCURRENT: usize = 16;
/// For looking up the functions' names, which takes long in large programs.
const SYMBOLIZE_TIMEOUT: Duration = Duration::from_secs(300);

/// The container that a profile is of.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The runtime's ID of it.
    pub id: String,
    /// Its partition: `namespace=…/workload=…/version=…`.
    pub partition: String,
    /// The beginning of its files' names.
    pub name: String,
}

impl Subject {
    /// The container of a pod, whose labels have the workload and version.
    pub fn of(pod: &Pod, id: &str, container: &str) -> Subject {
        let label = |names: &[&str]| names.iter().find_map(|name| pod.labels.get(*name)).map(String::as_str);
        let workload = label(&["app.kubernetes.io/name", "app", "k8s-app"]).unwrap_or(&pod.name);
        let version = label(&["app.kubernetes.io/version", "version", "pod-template-hash"]).unwrap_or("none");
        let pairs = [("namespace", pod.namespace.as_str()), ("workload", workload), ("version", version)];
        let partition: Vec<String> =
            pairs.iter().map(|(key, value)| format!("{key}={}", escaped(value))).collect();
        let name = format!("{}.{}", escaped(&pod.name), escaped(container));
        Subject { id: id.to_owned(), partition: partition.join("/"), name }
    }
}

/// Percent-encodes a part of a path, which readers of such data sets decode.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let first = |at: usize, byte: u8| at > 0 || byte.is_ascii_alphanumeric();
    let bytes = text.bytes().take(100).enumerate();
    bytes
        .map(|(at, byte)| {
            if plain(byte) && first(at, byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
        })
        .collect()
}

/// Takes profiles.
pub struct Profiler {
    program: PathBuf,
    /// Folders of containers, for samplers' sockets.
    control: PathBuf,
    /// Profiles that are not complete yet.
    work: PathBuf,
    permits: Semaphore,
    /// Complete profiles.
    pub upload_queue: Arc<UploadQueue>,
    /// Containers of which no profile could be taken.
    pub failed: AtomicU64,
}

impl Profiler {
    /// A profiler that runs `program`, which is `mayfly`, below the agent's folder.
    ///
    /// # Errors
    /// The agent's folder cannot be written.
    pub fn new(program: &Path, data: &Path, upload_queue: UploadQueue) -> Result<Profiler> {
        let (control, work) = (data.join("control"), data.join("work"));
        let _ = fs::remove_dir_all(&work); // profiles that a former agent did not complete
        for folder in [&control, &work] {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        fs::set_permissions(&work, fs::Permissions::from_mode(0o700))?;
        Ok(Profiler {
            program: program.to_owned(),
            control,
            work,
            permits: Semaphore::new(MAX_CONCURRENT),
            upload_queue: Arc::new(upload_queue),
            failed: AtomicU64::new(0),
        })
    }

    fn folder_of(&self, id: &str) -> PathBuf {
        self.control.join(short_name(&Sha256::digest(id)))
    }

    /// Makes the folder that a container mounts.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn folder(&self, id: &str) -> Result<PathBuf> {
        let folder = self.folder_of(id);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for open in [&self.control, &folder] {
            fs::set_permissions(open, fs::Permissions::from_mode(0o755))?; // containers have other users
        }
        Ok(folder)
    }

    /// Removes the folder of a container that has stopped.
    pub fn remove(&self, id: &str) {
        let _ = fs::remove_dir_all(self.folder_of(id));
    }

    /// Removes the folders of all containers but these.
    pub fn remove_all_but<'a>(&self, ids: impl Iterator<Item = &'a String>) {
        let kept: Vec<PathBuf> = ids.map(|id| self.folder_of(id)).collect();
        for entry in fs::read_dir(&self.control).into_iter().flatten().flatten() {
            if !kept.contains(&entry.path()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Samples a container's programs, from its first process on, for `time`, and queues the profile for
    /// upload.
    pub async fn profile(self: Arc<Self>, subject: Subject, process: u32, time: Duration) {
        let Ok(_permit) = self.permits.acquire().await else { return };
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let name = format!("{}.{process}.{now_s}", subject.name);
        let stem = self.work.join(&name);
        let sampled = self.sample(&subject, process, time, &stem).await;
        let key = format!("{}/{name}", subject.partition);
        let queued = sampled.and_then(|()| self.upload_queue.add(&key, &stem));
        for suffix in SUFFIXES.iter().chain(&["profile"]) {
            let _ = fs::remove_file(format!("{}.{suffix}", stem.display()));
        }
        if let Err(why) = queued {
            self.failed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("{}: no profile: {why:#}", subject.name);
        }
    }

    async fn sample(&self, subject: &Subject, process: u32, time: Duration, stem: &Path) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["profile", "--json", "--pid"]).arg(process.to_string());
        command.arg("--seconds").arg(time.as_secs().to_string());
        command.arg("--control").arg(self.folder_of(&subject.id)).arg("--output").arg(stem);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let child = command.spawn().context("mayfly profile")?;
        if let Some(own) = child.id() {
            // It reads symbols from the container's files; if that exhausts memory the kernel kills it and
            // not the agent.
            let _ = fs::write(format!("/proc/{own}/oom_score_adj"), "1000");
        }
        let done = tokio::time::timeout(time + SYMBOLIZE_TIMEOUT, child.wait_with_output())
            .await
            .context("it took too long")??;
        let stderr = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "{}", stderr.trim().lines().next_back().unwrap_or("it was killed"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::storage::Storage;

    fn pod(labels: &[(&str, &str)]) -> Pod {
        let labels = labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Pod { name: "web-1".into(), namespace: "shop".into(), labels, ..Pod::default() }
    }

    #[test]
    fn reads_workload_and_version_from_the_pods_labels() {
        let labels = [("app.kubernetes.io/name", "web"), ("version", "2.1"), ("pod-template-hash", "4f0c")];
        let subject = Subject::of(&pod(&labels), "1", "main");
        assert_eq!(subject.partition, "namespace=shop/workload=web/version=2.1");
        assert_eq!(subject.name, "web-1.main");
        assert_eq!(
            Subject::of(&pod(&[]), "1", "main").partition,
            "namespace=shop/workload=web-1/version=none"
        );
    }

    #[test]
    fn names_cannot_leave_the_data_set() {
        assert_eq!(escaped("a/b=c"), "a%2Fb%3Dc");
        assert_eq!(escaped("../x"), "%2E.%2Fx");
        assert_eq!(escaped("_é"), "%5F%C3%A9");
        assert!(escaped(&"x".repeat(1000)).len() <= 300);
    }

    #[test]
    fn removes_folders_of_stopped_containers() {
        let data = tempfile::tempdir().unwrap();
        let storage = Storage::open(data.path().join("profiles").to_str().unwrap()).unwrap();
        let upload_queue = UploadQueue::new(data.path(), storage).unwrap();
        let profiler = Profiler::new(Path::new("mayfly"), data.path(), upload_queue).unwrap();
        let [one, two] = ["one", "two"].map(|id| profiler.folder(id).unwrap());
        profiler.remove_all_but([&"two".to_owned()].into_iter());
        assert!(!one.exists() && two.exists());
        profiler.remove("two");
        assert!(!two.exists());
    }
}
