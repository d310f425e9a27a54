//! `mayfly profile --pid`: samples a running process and its descendants, such as a server's workers, for a
//! while.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use lifetime::attach::{ENDED, SAMPLE, WATCH};
use lifetime::profile::contents::Profile;

use crate::process;
use crate::profile::attach::Attachment;

/// How long the program may take to connect: it does when it allocates.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
/// Time between two checks for new processes.
const CHECK: Duration = Duration::from_millis(500);

/// The processes to sample, and how.
pub struct Target<'a> {
    /// The processes, at least one: messages name the first.
    pub pids: &'a [u32],
    /// No descendants of them.
    pub only: bool,
    /// The folder in which its heap looks for sockets, by its path in this process's file system.
    pub control: Option<&'a Path>,
    /// How long to sample.
    pub time: Duration,
    /// Bytes between two samples, on average.
    pub every: u64,
}

/// Receives the profile while it is taken, and may stop it.
pub trait Observer {
    /// Whether to stop now.
    fn is_stopped(&self) -> bool;
    /// Whether it wants the profile so far now.
    fn wants(&mut self) -> bool;
    /// Stores the profile so far.
    ///
    /// # Errors
    /// It cannot be stored: then profiling ends.
    fn keep(&mut self, so_far: &Profile) -> Result<()>;
}

/// Samples these processes until the time is up.
///
/// # Errors
/// The process does not exist, belongs to another user, has no Mayfly heap that can be attached to, or is
/// being profiled already.
pub fn profile(target: &Target, observer: &mut impl Observer) -> Result<Profile> {
    let pid = target.pids[0];
    let mut session = Session {
        target,
        attached: Vec::new(),
        refused: BTreeMap::new(),
        ended: Profile::default(),
        checked: None,
    };
    let began = Instant::now();
    while !session.is_sampled() {
        session.step(SAMPLE);
        if session.attached.is_empty() && session.ended.processes == 0 {
            return Err(session.refusal());
        }
        if observer.is_stopped() {
            bail!("stopped before process {pid} answered");
        }
        if began.elapsed() > PATIENCE {
            bail!(
                "process {pid} did not answer within {} s: it does so when it allocates. Is it idle, without Mayfly's heap, or in another network namespace?",
                PATIENCE.as_secs()
            );
        }
        std::thread::sleep(PAUSE);
    }
    let bar =
        ProgressBar::new(target.time.as_millis() as u64).with_message(format!("sampling process {pid}"));
    bar.set_style(ProgressStyle::with_template("{msg} {bar:30} {eta} left").expect("the template is right"));
    let (began, stopped) = (Instant::now(), AtomicBool::new(false));
    while began.elapsed() < target.time && !stopped.load(Relaxed) && !session.attached.is_empty() {
        // The heap samples objects in the first half, and awaits their frees in the second.
        session.step(if began.elapsed() >= target.time / 2 { WATCH } else { SAMPLE });
        if observer.wants() {
            observer.keep(&session.so_far(false)?)?;
        }
        stopped.store(observer.is_stopped(), Relaxed);
        bar.set_position(began.elapsed().as_millis() as u64);
        std::thread::sleep(PAUSE.min(target.time.saturating_sub(began.elapsed())));
    }
    bar.finish_and_clear();
    if session.attached.is_empty() {
        eprintln!("mayfly: process {pid} ended after {:.1} s", began.elapsed().as_secs_f64());
    }
    let silent = session.attached.iter().filter(|process| !process.is_sampled()).count();
    if silent > 0 {
        eprintln!("mayfly: {silent} of the processes allocated nothing and are not in the profile");
    }
    session.so_far(true)
}

struct Session<'a> {
    target: &'a Target<'a>,
    attached: Vec<Attachment>,
    /// Processes that cannot be sampled, and why.
    refused: BTreeMap<u32, anyhow::Error>,
    /// The merged profiles of ended processes.
    ended: Profile,
    checked: Option<Instant>,
}

impl Session<'_> {
    fn is_sampled(&self) -> bool {
        self.ended.processes > 0 || self.attached.iter().any(Attachment::is_sampled)
    }

    /// Finds new processes, accepts connections, requests a phase from the heaps, and collects the profiles
    /// of ended processes.
    fn step(&mut self, phase: u64) {
        if self.checked.is_none_or(|at| at.elapsed() >= CHECK) {
            self.checked = Some(Instant::now());
            self.listen_to_new();
        }
        let (running, ended): (Vec<_>, Vec<_>) = std::mem::take(&mut self.attached)
            .into_iter()
            .partition(|process| process::is_running(process.pid));
        for process in ended {
            match process.read(true) {
                Ok(Some(profile)) => self.collect(profile),
                Ok(None) => {
                    let why = anyhow!("process {} ended before it answered", process.pid);
                    self.refused.insert(process.pid, why);
                }
                Err(why) => _ = self.refused.insert(process.pid, why),
            }
        }
        for mut process in running {
            match process.accept() {
                Ok(before) => {
                    before.into_iter().for_each(|profile| self.collect(profile));
                    process.request(phase);
                    self.attached.push(process);
                }
                Err(why) => _ = self.refused.insert(process.pid, why),
            }
        }
    }

    fn collect(&mut self, profile: Profile) {
        self.ended = Profile::merged([std::mem::take(&mut self.ended), profile]);
    }

    /// Listens for connections of new processes.
    fn listen_to_new(&mut self) {
        let roots = self.target.pids;
        let processes = if self.target.only { roots.to_vec() } else { process::trees(roots) };
        for pid in processes {
            let is_known = self.attached.iter().any(|process| process.pid == pid);
            if is_known || self.refused.contains_key(&pid) || pid == std::process::id() {
                continue;
            }
            match self.listen(pid) {
                Ok(process) => self.attached.push(process),
                // A child that has just been forked may be about to run a program that has the heap.
                Err(_) if !roots.contains(&pid) => {}
                Err(why) => _ = self.refused.insert(pid, why),
            }
        }
    }

    fn listen(&self, pid: u32) -> Result<Attachment> {
        process::check(pid)?;
        Attachment::listen(pid, self.target.control, self.target.every)
    }

    fn refusal(&mut self) -> anyhow::Error {
        let own = self.refused.remove(&self.target.pids[0]);
        let first = own.or_else(|| self.refused.pop_first().map(|(_, why)| why));
        first.unwrap_or_else(|| anyhow!("there is no process {}", self.target.pids[0]))
    }

    /// The profile so far; `at_end` it first requests the heaps to stop.
    fn so_far(&self, at_end: bool) -> Result<Profile> {
        if at_end {
            self.attached.iter().for_each(|process| process.request(ENDED));
            std::thread::sleep(PAUSE); // a heap finishes the sample that it is taking
        }
        let mut profiles = vec![self.ended.clone()];
        for process in &self.attached {
            profiles.extend(process.read(false)?);
        }
        Ok(Profile::merged(profiles))
    }
}
