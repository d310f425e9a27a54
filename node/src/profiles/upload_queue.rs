//! The upload queue: profiles wait in a folder of the agent's until they are stored. So no profile is lost if
//! a bucket does not respond, refuses it or is full, or if the agent ends meanwhile.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use tokio::sync::Notify;

use crate::profiles::storage::Storage;

/// A profile's files; the table last, for a profile with a table is complete.
pub const SUFFIXES: [&str; 3] = ["symbols.parquet", "pb.gz", "parquet"];
const TABLE: &str = ".parquet";
const FUNCTIONS: &str = ".symbols.parquet";
/// The queue's folder, below the agent's. It has the name of former versions, so that an upgrade keeps their
/// profiles.
const FOLDER: &str = "outbox";
const FIRST_WAIT: Duration = Duration::from_secs(2);
const MAX_WAIT: Duration = Duration::from_secs(300);
/// The size of the queue, limited since others use the node's disk, too.
const MAX_BYTES: u64 = 256 << 20;
const MAX_LINE_CHARACTERS: usize = 2000;

/// The queue of profiles.
pub struct UploadQueue {
    folder: PathBuf,
    storage: Storage,
    added: Notify,
    /// Profiles that were stored.
    pub kept: AtomicU64,
    /// Profiles that were dropped to make room for newer ones.
    pub dropped: AtomicU64,
}

/// A profile in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    since: SystemTime,
    key: String,
    /// The size of its files.
    pub bytes: u64,
}

impl UploadQueue {
    /// Opens the queue in the agent's folder, with the profiles that a former agent left there.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn new(data: &Path, storage: Storage) -> Result<UploadQueue> {
        let folder = data.join(FOLDER);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        let zero = || AtomicU64::new(0);
        let queue = UploadQueue { folder, storage, added: Notify::new(), kept: zero(), dropped: zero() };
        // An agent that was killed while it added a profile has left files without their table.
        for file in files_below(&queue.folder) {
            let text = file.to_string_lossy();
            let stem = SUFFIXES.iter().find_map(|suffix| text.strip_suffix(&format!(".{suffix}")));
            if stem.is_none_or(|stem| !Path::new(&format!("{stem}{TABLE}")).exists()) {
                let _ = fs::remove_file(&file);
            }
        }
        Ok(queue)
    }

    /// Moves the files of a profile, `stem` and a suffix each, into the queue, on the same file system.
    ///
    /// # Errors
    /// They cannot be moved.
    pub fn add(&self, key: &str, stem: &Path) -> Result<()> {
        let target = self.folder.join(key);
        fs::create_dir_all(target.parent().context("a name without a folder")?)?;
        for suffix in SUFFIXES {
            let (from, to) = (with(stem, suffix), with(&target, suffix));
            fs::rename(&from, &to).with_context(|| format!("cannot move {}", from.display()))?;
        }
        self.added.notify_one();
        Ok(())
    }

    /// The profiles in the queue, oldest first.
    pub fn waiting(&self) -> Vec<Waiting> {
        let found = files_below(&self.folder).into_iter().filter_map(|file| {
            let below = file.strip_prefix(&self.folder).ok()?.to_str()?;
            let key = below.strip_suffix(TABLE).filter(|_| !below.ends_with(FUNCTIONS))?;
            let bytes =
                |suffix| fs::metadata(with(&self.folder.join(key), suffix)).map_or(0, |file| file.len());
            let since = fs::metadata(&file).and_then(|file| file.modified()).ok()?;
            Some(Waiting { since, key: key.to_owned(), bytes: SUFFIXES.map(bytes).iter().sum() })
        });
        let mut found: Vec<Waiting> = found.collect();
        found.sort_by(|one, other| (one.since, &one.key).cmp(&(other.since, &other.key)));
        found
    }

    /// Uploads profiles as they are added, and retries those that fail, after a longer delay each time.
    pub async fn run(self: Arc<Self>) {
        let (mut wait, mut failed) = (FIRST_WAIT, None);
        loop {
            self.make_room();
            match self.upload_all(&mut failed).await {
                Ok(()) => {
                    wait = FIRST_WAIT;
                    self.added.notified().await;
                }
                Err(why) => {
                    let count = self.waiting().len();
                    tracing::warn!("{count} profiles wait, the next try is in {wait:?}: {}", one_line(&why));
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.added.notified() => {}
                    }
                    wait = (wait * 2).min(MAX_WAIT);
                }
            }
        }
    }

    /// Uploads profiles until one fails. That one is the last of the next call, so that it does not block the
    /// others.
    async fn upload_all(&self, failed: &mut Option<String>) -> Result<()> {
        let mut waiting = self.waiting();
        if let Some(at) = waiting.iter().position(|one| Some(&one.key) == failed.as_ref()) {
            waiting.rotate_left(at + 1);
        }
        for Waiting { key, .. } in waiting {
            for suffix in SUFFIXES {
                let file = with(&self.folder.join(&key), suffix);
                let put = self.storage.put(&format!("{key}.{suffix}"), &file).await;
                put.inspect_err(|_| *failed = Some(key.clone()))?;
            }
            self.remove(&key);
            self.kept.fetch_add(1, Ordering::Relaxed);
            tracing::info!("profile kept: {key}{TABLE}");
        }
        Ok(())
    }

    fn make_room(&self) {
        let mut waiting = self.waiting();
        let mut bytes: u64 = waiting.iter().map(|one| one.bytes).sum();
        for one in waiting.drain(..) {
            if bytes <= MAX_BYTES {
                return;
            }
            bytes -= one.bytes;
            self.remove(&one.key);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("profile dropped to make room for newer ones: {}{TABLE}", one.key);
        }
    }

    /// Removes the table first, without which the other files are no profile.
    fn remove(&self, key: &str) {
        let stem = self.folder.join(key);
        for suffix in SUFFIXES.iter().rev() {
            let _ = fs::remove_file(with(&stem, suffix));
        }
        let empty = stem.ancestors().skip(1).take_while(|folder| **folder != self.folder);
        for folder in empty {
            if fs::remove_dir(folder).is_err() {
                return; // it has other profiles
            }
        }
    }
}

fn with(stem: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}.{suffix}", stem.display()))
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder { folders.push(entry.path()) } else { files.push(entry.path()) }
        }
    }
    files
}

/// On one line, for a server's response may be a page.
fn one_line(why: &anyhow::Error) -> String {
    let text: String = format!("{why:#}").chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(MAX_LINE_CHARACTERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "namespace=a/workload=b/version=1/pod.main.1.1";

    fn queue(data: &Path) -> UploadQueue {
        let storage = data.join("storage");
        UploadQueue::new(data, Storage::open(storage.to_str().unwrap()).unwrap()).unwrap()
    }

    fn add(queue: &UploadQueue, data: &Path, key: &str, bytes: u64) {
        let stem = data.join("stem");
        for suffix in SUFFIXES {
            fs::File::create(with(&stem, suffix)).unwrap().set_len(bytes).unwrap();
        }
        queue.add(key, &stem).unwrap();
    }

    #[tokio::test]
    async fn profile_that_cannot_be_stored_waits_and_blocks_no_other() {
        let data = tempfile::tempdir().unwrap();
        let queue = queue(data.path());
        // A file is where the first one's folder would be, so it cannot be stored.
        fs::write(data.path().join("storage/namespace=bad"), "").unwrap();
        add(&queue, data.path(), "namespace=bad/workload=b/version=1/x.main.1.1", 1);
        add(&queue, data.path(), KEY, 1);
        let mut failed = None;
        assert!(queue.upload_all(&mut failed).await.is_err());
        assert!(queue.upload_all(&mut failed).await.is_err());
        assert_eq!((queue.waiting().len(), queue.kept.load(Ordering::Relaxed)), (1, 1));
        assert!(SUFFIXES.iter().all(|suffix| with(&data.path().join("storage").join(KEY), suffix).exists()));
        fs::remove_file(data.path().join("storage/namespace=bad")).unwrap();
        queue.upload_all(&mut failed).await.unwrap();
        assert_eq!(queue.waiting(), []);
        assert_eq!(fs::read_dir(data.path().join(FOLDER)).unwrap().count(), 0);
    }

    #[test]
    fn next_agent_uploads_complete_profiles_only() {
        let data = tempfile::tempdir().unwrap();
        add(&queue(data.path()), data.path(), KEY, 7);
        let half = data.path().join(FOLDER).join(KEY.replace("pod.", "half."));
        fs::write(with(&half, SUFFIXES[0]), "x").unwrap();
        let next = queue(data.path());
        assert_eq!(next.waiting().iter().map(|one| one.bytes).collect::<Vec<_>>(), [21]);
        assert!(!with(&half, SUFFIXES[0]).exists());
    }

    #[test]
    fn drops_the_oldest_profiles_to_make_room() {
        let data = tempfile::tempdir().unwrap();
        let queue = queue(data.path());
        for number in 0..3 {
            add(&queue, data.path(), &format!("{KEY}{number}"), MAX_BYTES / 8); // sparse files
        }
        queue.make_room();
        let left: Vec<String> = queue.waiting().into_iter().map(|one| one.key).collect();
        assert_eq!(left, [format!("{KEY}1"), format!("{KEY}2")]);
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn server_response_is_logged_on_one_line() {
        let why = anyhow::anyhow!("<Error>\n  <Code>{}\u{1b}[1m</Code>", "x".repeat(3000)).context("a");
        let line = one_line(&why);
        assert!(
            line.starts_with("a: <Error> <Code>x")
                && line.len() == MAX_LINE_CHARACTERS
                && !line.contains('\n')
        );
    }
}
