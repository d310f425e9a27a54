//! Profiles on their way. What was taken waits in a folder of the agent's until the storage that it goes to has it: a bucket that does
//! not answer, refuses or is full costs no profile, and neither does an end of the agent meanwhile.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use tokio::sync::Notify;

use crate::profiles::storage::Storage;

/// What of a profile goes away; the table last, for it stands for the others.
pub const SUFFIXES: [&str; 3] = ["symbols.parquet", "pb.gz", "parquet"];
const TABLE: &str = ".parquet";
const FUNCTIONS: &str = ".symbols.parquet";
const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// More than that does not wait: a node's disk is others', too.
const MOST_BYTES: u64 = 256 << 20;
const LONGEST_LINE: usize = 2000;

/// Where profiles wait.
pub struct Outbox {
    folder: PathBuf,
    storage: Storage,
    came: Notify,
    /// Profiles that the storage has taken.
    pub kept: AtomicU64,
    /// Profiles that waited too long: newer ones needed the room.
    pub dropped: AtomicU64,
}

/// A profile that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    since: SystemTime,
    key: String,
    /// Of its files.
    pub bytes: u64,
}

impl Outbox {
    /// One in the agent's folder; what a former agent has left there is on its way, too.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn new(data: &Path, storage: Storage) -> Result<Outbox> {
        let folder = data.join("outbox");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        let zero = || AtomicU64::new(0);
        let outbox = Outbox { folder, storage, came: Notify::new(), kept: zero(), dropped: zero() };
        // An agent that was killed while it moved a profile in has left parts without their table.
        for file in files_below(&outbox.folder) {
            let text = file.to_string_lossy();
            let stem = SUFFIXES.iter().find_map(|suffix| text.strip_suffix(&format!(".{suffix}")));
            if stem.is_none_or(|stem| !Path::new(&format!("{stem}{TABLE}")).exists()) {
                let _ = fs::remove_file(&file);
            }
        }
        Ok(outbox)
    }

    /// Takes the files of a profile, `stem` and a suffix each, on the same file system.
    ///
    /// # Errors
    /// They cannot be moved.
    pub fn take(&self, key: &str, stem: &Path) -> Result<()> {
        let target = self.folder.join(key);
        fs::create_dir_all(target.parent().context("a name without a folder")?)?;
        for suffix in SUFFIXES {
            let (from, to) = (with(stem, suffix), with(&target, suffix));
            fs::rename(&from, &to).with_context(|| format!("cannot move {}", from.display()))?;
        }
        self.came.notify_one();
        Ok(())
    }

    /// What waits, oldest first.
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

    /// Sends what comes; what is not taken is sent again, later each time.
    pub async fn follow(self: Arc<Self>) {
        let (mut wait, mut failed) = (FIRST_WAIT, None);
        loop {
            self.make_room();
            match self.send(&mut failed).await {
                Ok(()) => {
                    wait = FIRST_WAIT;
                    self.came.notified().await;
                }
                Err(why) => {
                    let count = self.waiting().len();
                    tracing::warn!("{count} profiles wait, the next try is in {wait:?}: {}", one_line(&why));
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.came.notified() => {}
                    }
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
            }
        }
    }

    /// Until the first that is not taken; the next time it is the last in turn, so that it keeps no other back.
    async fn send(&self, failed: &mut Option<String>) -> Result<()> {
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
            if bytes <= MOST_BYTES {
                return;
            }
            bytes -= one.bytes;
            self.remove(&one.key);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("profile lost, for newer ones that wait: {}{TABLE}", one.key);
        }
    }

    /// The table first: what is left without it is nothing.
    fn remove(&self, key: &str) {
        let stem = self.folder.join(key);
        for suffix in SUFFIXES.iter().rev() {
            let _ = fs::remove_file(with(&stem, suffix));
        }
        let empty = stem.ancestors().skip(1).take_while(|folder| **folder != self.folder);
        for folder in empty {
            if fs::remove_dir(folder).is_err() {
                return; // others are in it
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

/// What a server answers may be a page.
fn one_line(why: &anyhow::Error) -> String {
    let text: String = format!("{why:#}").chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(LONGEST_LINE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "namespace=a/workload=b/version=1/pod.main.1.1";

    fn outbox(data: &Path) -> Outbox {
        let storage = data.join("storage");
        Outbox::new(data, Storage::of(storage.to_str().unwrap()).unwrap()).unwrap()
    }

    fn taken(outbox: &Outbox, data: &Path, key: &str, bytes: u64) {
        let stem = data.join("stem");
        for suffix in SUFFIXES {
            fs::File::create(with(&stem, suffix)).unwrap().set_len(bytes).unwrap();
        }
        outbox.take(key, &stem).unwrap();
    }

    #[tokio::test]
    async fn what_is_not_taken_waits_and_keeps_nothing_back() {
        let data = tempfile::tempdir().unwrap();
        let outbox = outbox(data.path());
        // Where the first one's folder would be is a file: it cannot be put there.
        fs::write(data.path().join("storage/namespace=bad"), "").unwrap();
        taken(&outbox, data.path(), "namespace=bad/workload=b/version=1/x.main.1.1", 1);
        taken(&outbox, data.path(), KEY, 1);
        let mut failed = None;
        assert!(outbox.send(&mut failed).await.is_err());
        assert!(outbox.send(&mut failed).await.is_err());
        assert_eq!((outbox.waiting().len(), outbox.kept.load(Ordering::Relaxed)), (1, 1));
        assert!(SUFFIXES.iter().all(|suffix| with(&data.path().join("storage").join(KEY), suffix).exists()));
        fs::remove_file(data.path().join("storage/namespace=bad")).unwrap();
        outbox.send(&mut failed).await.unwrap();
        assert_eq!(outbox.waiting(), []);
        assert_eq!(fs::read_dir(data.path().join("outbox")).unwrap().count(), 0);
    }

    #[test]
    fn the_next_agent_has_what_is_whole() {
        let data = tempfile::tempdir().unwrap();
        taken(&outbox(data.path()), data.path(), KEY, 7);
        let half = data.path().join("outbox").join(KEY.replace("pod.", "half."));
        fs::write(with(&half, SUFFIXES[0]), "x").unwrap();
        let next = outbox(data.path());
        assert_eq!(next.waiting().iter().map(|one| one.bytes).collect::<Vec<_>>(), [21]);
        assert!(!with(&half, SUFFIXES[0]).exists());
    }

    #[test]
    fn the_oldest_make_room() {
        let data = tempfile::tempdir().unwrap();
        let outbox = outbox(data.path());
        for number in 0..3 {
            taken(&outbox, data.path(), &format!("{KEY}{number}"), MOST_BYTES / 8); // of holes
        }
        outbox.make_room();
        let left: Vec<String> = outbox.waiting().into_iter().map(|one| one.key).collect();
        assert_eq!(left, [format!("{KEY}1"), format!("{KEY}2")]);
        assert_eq!(outbox.dropped.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn an_answer_is_one_line() {
        let why = anyhow::anyhow!("<Error>\n  <Code>{}\u{1b}[1m</Code>", "x".repeat(3000)).context("a");
        let line = one_line(&why);
        assert!(line.starts_with("a: <Error> <Code>x") && line.len() == LONGEST_LINE && !line.contains('\n'));
    }
}
