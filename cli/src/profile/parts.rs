//! The profiles of a program that `mayfly profile` runs, and of the processes that it starts.
//!
//! Each heap makes a memory file and sends it here before it samples (`heap/src/observe/profile_place.rs`),
//! after an exec as well. So no disk can fill up below a program, no other process has the file, and a killed
//! process leaves what it has sampled. This process keeps the files of running processes, merges the others,
//! and saves the profile so far every few seconds, for the case that it is killed itself.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lifetime::attach::{ENDED, PHASE_AT};
use lifetime::profile::contents::Profile;
use lifetime::profile::file::now_ns;
use merge::channel;
use rustix::fs::{SealFlags, fcntl_add_seals};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::{Resource, getrlimit, setrlimit};
use tempfile::TempDir;

use crate::profile::files::{COST, KEEP};

/// A server that forks for each connection leaves thousands of profiles: so many are merged at a time.
const MANY: usize = 64;
/// Time between two checks for ended processes.
const CHECK: Duration = Duration::from_millis(200);
/// How long a process may take from its connection to its file.
const ANSWER: Duration = Duration::from_secs(2);
/// The file of the merged profiles, in the folder.
const SO_FAR: &str = "so-far";
/// The longest path of a socket, the PID of another process left aside.
const SOCKET_BYTES: usize = 100;

/// The collector, and its folder, which is removed when this is dropped.
pub struct Parts {
    folder: TempDir,
    _socket_folder: Option<TempDir>,
    socket: PathBuf,
    collected: Arc<Collected>,
    thread: Option<JoinHandle<()>>,
    next_save: Instant,
    save_failed: bool,
}

/// The profiles of all processes.
pub struct Found {
    /// The merged profile.
    pub profile: Profile,
    /// Processes that run on.
    pub running: usize,
}

/// A memory file of a heap.
struct Part {
    pid: u32,
    file: File,
}

impl Part {
    /// Whether its process has ended, or runs another program: then the file is mapped nowhere, and the
    /// kernel allows the seal.
    fn has_ended(&self) -> bool {
        fcntl_add_seals(&self.file, SealFlags::WRITE) != Err(Errno::BUSY)
    }

    fn read(&self, runs: bool) -> Option<Profile> {
        Profile::of(&self.file, runs.then(now_ns)).ok()
    }
}

struct Collected {
    listener: UnixListener,
    /// The program's own process, 0 if it is not known yet; and whether only that one counts.
    program: AtomicU32,
    only: bool,
    stopped: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: Vec<Part>,
    ended: Vec<(u32, Profile)>,
    pids: HashSet<u32>,
}

impl Parts {
    /// Listens; `only` for the profile of the program's own process. The folder is beside `stem`, and named
    /// after it, so that a user finds it after this process is killed.
    ///
    /// # Errors
    /// The folder or the socket cannot be made.
    pub fn beside(stem: &Path, only: bool) -> Result<Self> {
        let folder = stem.parent().unwrap_or(Path::new("."));
        let name = stem.file_name().unwrap_or_default().to_string_lossy();
        let made = tempfile::Builder::new().prefix(&format!("{name}.parts-")).tempdir_in(folder);
        let folder = made.with_context(|| format!("cannot write in {}", folder.display()))?;
        let beside = folder.path().join("socket");
        let is_short = beside.as_os_str().len() <= SOCKET_BYTES;
        let bound = if is_short { UnixListener::bind(&beside).ok() } else { None };
        let (listener, socket, socket_folder) = match bound {
            Some(listener) => (listener, beside, None),
            // A path that is too long for a socket, or a file system without sockets.
            None => {
                let elsewhere = tempfile::Builder::new().prefix("mayfly-profile-").tempdir()?;
                let socket = elsewhere.path().join("socket");
                (UnixListener::bind(&socket).context("cannot make a socket")?, socket, Some(elsewhere))
            }
        };
        listener.set_nonblocking(true)?;
        let collected = Arc::new(Collected {
            listener,
            program: AtomicU32::new(0),
            only,
            stopped: AtomicBool::new(false),
            state: Mutex::default(),
        });
        let thread = std::thread::spawn({
            let collected = collected.clone();
            move || collected.collect()
        });
        Ok(Self {
            folder,
            _socket_folder: socket_folder,
            socket,
            collected,
            thread: Some(thread),
            next_save: Instant::now() + KEEP,
            save_failed: false,
        })
    }

    /// The value of `MAYFLY_HEAP_PROFILE`.
    pub fn address(&self) -> std::ffi::OsString {
        let mut value = std::ffi::OsString::from("socket:");
        value.push(&self.socket);
        value
    }

    /// Saves the profile so far in the folder, now and then; to be called periodically. `pid` is the
    /// program's.
    pub fn keep(&mut self, pid: u32) {
        self.collected.program.store(pid, Relaxed);
        if Instant::now() < self.next_save {
            return;
        }
        let began = Instant::now();
        let written = self.read(pid).map(|found| found.profile.write(&self.folder.path().join(SO_FAR)));
        if let Some(Err(why)) = written
            && !std::mem::replace(&mut self.save_failed, true)
        {
            eprintln!("mayfly: the profile so far cannot be saved, and sampling goes on: {why:#}");
        }
        self.next_save = Instant::now() + KEEP.max(began.elapsed() * COST);
    }

    /// The profiles so far; `pid` is the program's. `None` if there is none.
    pub fn read(&self, pid: u32) -> Option<Found> {
        self.collected.program.store(pid, Relaxed);
        let mut state = self.collected.update();
        state.forget_others(&self.collected);
        let running: Vec<_> = state.running.iter().filter_map(|part| part.read(true)).collect();
        let number = running.len();
        let mut profile =
            Profile::merged(state.ended.iter().map(|(_, profile)| profile.clone()).chain(running));
        // A process that ran several programs, one after another, is one.
        profile.processes = profile.processes.min(state.pids.len() as u32);
        (profile.processes > 0).then_some(Found { profile, running: number })
    }
}

impl Drop for Parts {
    /// Lets the heaps of processes that run on stop, and give the memory back.
    fn drop(&mut self) {
        self.collected.stopped.store(true, Relaxed);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
        for part in &self.collected.update().running {
            let _ = part.file.write_at(&ENDED.to_le_bytes(), PHASE_AT as u64);
        }
    }
}

impl Collected {
    /// Receives files until the end.
    fn collect(&self) {
        use std::os::fd::AsRawFd;
        let mut checked = Instant::now();
        while !self.stopped.load(Relaxed) {
            let mut wait = libc::pollfd { fd: self.listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid structure.
            let ready = unsafe { libc::poll(&raw mut wait, 1, 50) } > 0;
            if ready || checked.elapsed() >= CHECK {
                checked = Instant::now();
                drop(self.update());
            }
        }
    }

    /// Receives what was sent, and reads the profiles of processes that have ended.
    fn update(&self) -> std::sync::MutexGuard<'_, State> {
        // A reader that panicked has changed nothing.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => state.receive(&stream),
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) && may_open_more() => {}
                Err(_) => break,
            }
        }
        let parts = std::mem::take(&mut state.running);
        let (ended, running): (Vec<_>, Vec<_>) = parts.into_iter().partition(Part::has_ended);
        state.running = running;
        state.ended.extend(ended.iter().filter_map(|part| Some((part.pid, part.read(false)?))));
        state.forget_others(self);
        if state.ended.len() >= MANY && self.program.load(Relaxed) != 0 {
            let program = self.program.load(Relaxed);
            let (kept, others): (Vec<_>, Vec<_>) =
                std::mem::take(&mut state.ended).into_iter().partition(|&(pid, _)| pid == program);
            let others = Profile::merged(others.into_iter().map(|(_, profile)| profile));
            state.ended = kept;
            state.ended.push((0, others));
        }
        state
    }
}

impl State {
    fn receive(&mut self, stream: &std::os::unix::net::UnixStream) {
        let blocks = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(ANSWER)));
        let received = channel::receive(stream, &mut [0; 1], RecvFlags::empty(), true);
        let (Ok(()), Ok(received), Ok((pid, _))) = (blocks, received, channel::peer(stream)) else {
            return; // killed before it sent the file
        };
        if let Some(file) = received.file {
            self.pids.insert(pid.cast_unsigned());
            self.running.push(Part { pid: pid.cast_unsigned(), file: file.into() });
        }
    }

    /// Forgets all but the program's own process, if only that is wanted.
    fn forget_others(&mut self, collected: &Collected) {
        let program = collected.program.load(Relaxed);
        if collected.only && program != 0 {
            self.ended.retain(|&(pid, _)| pid == program);
            self.running.retain(|part| part.pid == program);
            self.pids.retain(|&pid| pid == program);
        }
    }
}

/// Raises the limit of open files: each running process needs one. The program was started with the old one.
fn may_open_more() -> bool {
    let now = getrlimit(Resource::Nofile);
    let most = rustix::process::Rlimit { current: now.maximum, maximum: now.maximum };
    now.current != now.maximum && setrlimit(Resource::Nofile, most).is_ok()
}

/// The profiles in a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_hidden =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.is_file() && !is_hidden(path)).collect();
    files.sort();
    files
}
