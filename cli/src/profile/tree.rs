//! `mayfly profile --pid`: samples a process that runs and those that descend from it, as servers' workers do, for a while.

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

/// How long the program may take to answer: it does when it allocates.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
/// Between two looks whether there are new processes.
const LOOK: Duration = Duration::from_millis(500);

/// What to sample.
pub struct Wish<'a> {
    /// The processes, one at least: messages speak of the first.
    pub pids: &'a [u32],
    /// None that descends from them.
    pub only: bool,
    /// The folder that it looks for sockets in, where it lies here.
    pub control: Option<&'a Path>,
    /// For how long.
    pub time: Duration,
    /// Bytes between two samples, on average.
    pub every: u64,
}

/// Who is told how far it is.
pub trait Onlooker {
    /// It shall end now.
    fn is_stopped(&self) -> bool;
    /// Whether the profile so far is wanted now.
    fn wants(&mut self) -> bool;
    /// The profile so far.
    ///
    /// # Errors
    /// It cannot be kept: then the whole ends.
    fn keep(&mut self, so_far: &Profile) -> Result<()>;
}

/// Samples these processes, and waits meanwhile.
///
/// # Errors
/// The process is not there, not ours, has no heap of Mayfly's that can be attached to, or is being profiled already.
pub fn profile(wish: &Wish, onlooker: &mut impl Onlooker) -> Result<Profile> {
    let pid = wish.pids[0];
    let mut session = Session {
        wish,
        attached: Vec::new(),
        refused: BTreeMap::new(),
        ended: Profile::default(),
        looked: None,
    };
    let began = Instant::now();
    while !session.is_sampled() {
        session.step(SAMPLE);
        if session.attached.is_empty() && session.ended.processes == 0 {
            return Err(session.why_not());
        }
        if onlooker.is_stopped() {
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
    let bar = ProgressBar::new(wish.time.as_millis() as u64).with_message(format!("sampling process {pid}"));
    bar.set_style(ProgressStyle::with_template("{msg} {bar:30} {eta} left").expect("the template is right"));
    let (began, stopped) = (Instant::now(), AtomicBool::new(false));
    while began.elapsed() < wish.time && !stopped.load(Relaxed) && !session.attached.is_empty() {
        // What is sampled in the first half has the second half to be freed in.
        session.step(if began.elapsed() >= wish.time / 2 { WATCH } else { SAMPLE });
        if onlooker.wants() {
            onlooker.keep(&session.so_far(false)?)?;
        }
        stopped.store(onlooker.is_stopped(), Relaxed);
        bar.set_position(began.elapsed().as_millis() as u64);
        std::thread::sleep(PAUSE.min(wish.time.saturating_sub(began.elapsed())));
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
    wish: &'a Wish<'a>,
    attached: Vec<Attachment>,
    /// Why not, by process.
    refused: BTreeMap<u32, anyhow::Error>,
    /// What processes that have ended left.
    ended: Profile,
    looked: Option<Instant>,
}

impl Session<'_> {
    fn is_sampled(&self) -> bool {
        self.ended.processes > 0 || self.attached.iter().any(Attachment::is_sampled)
    }

    /// Takes in processes that are new, meets those that call, tells the others what is wanted, and harvests those that have ended.
    fn step(&mut self, phase: u64) {
        if self.looked.is_none_or(|at| at.elapsed() >= LOOK) {
            self.looked = Some(Instant::now());
            self.look();
        }
        let (running, ended): (Vec<_>, Vec<_>) = std::mem::take(&mut self.attached)
            .into_iter()
            .partition(|process| process::is_running(process.pid));
        for process in ended {
            match process.read(true) {
                Ok(Some(profile)) => self.harvest(profile),
                Ok(None) => {
                    let why = anyhow!("process {} ended before it answered", process.pid);
                    self.refused.insert(process.pid, why);
                }
                Err(why) => _ = self.refused.insert(process.pid, why),
            }
        }
        for mut process in running {
            match process.meet() {
                Ok(before) => {
                    before.into_iter().for_each(|profile| self.harvest(profile));
                    process.say(phase);
                    self.attached.push(process);
                }
                Err(why) => _ = self.refused.insert(process.pid, why),
            }
        }
    }

    fn harvest(&mut self, profile: Profile) {
        self.ended = Profile::merged([std::mem::take(&mut self.ended), profile]);
    }

    /// Listens for processes that are new.
    fn look(&mut self) {
        let roots = self.wish.pids;
        let processes = if self.wish.only { roots.to_vec() } else { process::trees(roots) };
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
        Attachment::listen(pid, self.wish.control, self.wish.every)
    }

    fn why_not(&mut self) -> anyhow::Error {
        let own = self.refused.remove(&self.wish.pids[0]);
        let first = own.or_else(|| self.refused.pop_first().map(|(_, why)| why));
        first.unwrap_or_else(|| anyhow!("there is no process {}", self.wish.pids[0]))
    }

    /// What is there; at the end the heaps are told to leave.
    fn so_far(&self, at_end: bool) -> Result<Profile> {
        if at_end {
            self.attached.iter().for_each(|process| process.say(ENDED));
            std::thread::sleep(PAUSE); // a sample in work is finished
        }
        let mut profiles = vec![self.ended.clone()];
        for process in &self.attached {
            profiles.extend(process.read(false)?);
        }
        Ok(Profile::merged(profiles))
    }
}
