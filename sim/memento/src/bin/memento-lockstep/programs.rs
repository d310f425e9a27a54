//! Programs for the lockstep: random ones, and those that libmemento.so keeps journals of.

use std::io::Write;

use memento::journal::{Journal, Kind};
use memento::layout::{CLASS_SHIFT, CLASSES, REGION_BYTES, REGION_START, arena_bytes, locate};
use memento::{Config, NonLocalFree};

use crate::observed::{CORES, Observed, Thread};
use crate::random::Random;
use crate::record::Outcome;

const PROCESSES: u64 = 2;
const LANES: usize = 4;
/// Operations until the units are made anew, with other parameters; more of them where a class of 64 MiB is
/// used up.
const EPISODE: u64 = 50_000;
const NARROW_EPISODE: u64 = 200_000;

/// The units have no other way: frees of other threads' objects are software's.
fn config(eager: bool, initialise_all_classes: bool) -> Config {
    Config {
        eager,
        initialise_all_classes,
        non_local_free: NonLocalFree::Batch,
        batch_objects: usize::MAX,
        drain_at_switch: false,
        ..Config::default()
    }
}

/// Random programs of two processes with four threads each on three cores, until `operations` are done. Every
/// second time they have one thread and one size, so that the addresses of a class are used up.
///
/// # Errors
/// The output cannot be written.
pub fn random(operations: u64, seed: u64, out: &mut impl Write) -> Result<(), String> {
    let mut random = Random(seed);
    let (mut left, mut is_narrow) = (operations, false);
    while left > 0 {
        let kind = random.next();
        let episode = left.min(if is_narrow { NARROW_EPISODE } else { EPISODE });
        World::new(&config(kind & 3 != 0, kind & 4 == 0), is_narrow, &mut random, out)?.run(episode)?;
        left -= episode;
        is_narrow = !is_narrow;
    }
    Ok(())
}

/// A thread's objects: those that live, with their sizes, and the addresses of others.
#[derive(Clone, Default)]
struct Objects {
    live: Vec<(u64, u64)>,
    freed: Vec<u64>,
}

struct World<'a, W: Write> {
    observed: Observed<'a, W>,
    random: &'a mut Random,
    is_narrow: bool,
    /// By process and lane.
    objects: Vec<[Objects; LANES]>,
    /// By core, as `CORES` counts them.
    running: Vec<Thread>,
    done: u64,
}

impl<'a, W: Write> World<'a, W> {
    fn new(config: &Config, is_narrow: bool, random: &'a mut Random, out: &'a mut W) -> Result<Self, String> {
        let mut observed = Observed::new(config, out)?;
        for key in 1..=PROCESSES {
            observed.start(CORES[0], key)?;
        }
        for core in CORES {
            observed.switch(core, 1)?;
        }
        let objects = vec![<[Objects; LANES]>::default(); PROCESSES as usize];
        let running = (0..CORES.len()).map(|core| (1, core)).collect();
        Ok(World { observed, random, is_narrow, objects, running, done: 0 })
    }

    fn run(mut self, operations: u64) -> Result<(), String> {
        while self.done < operations {
            let core = if self.is_narrow { 0 } else { self.random.below(CORES.len()) };
            match self.random.below(1024) {
                0..20 if !self.is_narrow => self.switch(core)?,
                20..22 if !self.is_narrow => self.exit(core)?,
                22..90 => self.free_wrongly(core)?,
                90..400 => self.free(core)?,
                400..800 => self.allocate(core)?,
                _ => self.touch(core)?,
            }
        }
        Ok(())
    }

    fn of(&mut self, thread: Thread) -> &mut Objects {
        &mut self.objects[thread.0 as usize - 1][thread.1]
    }

    /// In runs of one size, of few sizes mostly: so arenas are filled.
    fn allocate(&mut self, core: usize) -> Result<(), String> {
        let thread = self.running[core];
        let size = match self.random.below(if self.is_narrow { 128 } else { 16 }) {
            0 => match self.random.below(8) {
                0 => self.random.next(),
                1 => 0,
                _ => self.random.next() % 520,
            },
            1..=3 => 512,
            4..=8 => 24,
            9..=16 => 64,
            _ => 512,
        };
        for _ in 0..self.random.below(if self.is_narrow { 400 } else { 140 }) {
            self.done += 1;
            match self.observed.allocate(CORES[core], thread, size)? {
                Some(address) => self.of(thread).live.push((address, size)),
                // A class that is used up stays so while the process lives.
                None if self.random.below(400) == 0 => return self.exit(core),
                None => {}
            }
        }
        Ok(())
    }

    /// The newest objects or any; now and then nearly all; now and then one of another thread, which the
    /// hardware leaves to software, so that it lives on.
    fn free(&mut self, core: usize) -> Result<(), String> {
        let thread = self.running[core];
        let other = (thread.0, self.random.below(LANES));
        if self.random.below(4) == 0
            && let Some(&(address, _)) = self.of(other).live.last()
            && other != thread
        {
            self.observed.free(CORES[core], thread, address)?;
        }
        let many = if self.is_narrow {
            self.random.below(10)
        } else if self.random.below(25) == 0 {
            usize::MAX
        } else {
            self.random.below(70)
        };
        let newest = self.random.below(2) == 0;
        for _ in 0..many.min(self.of(thread).live.len()) {
            let length = self.of(thread).live.len();
            let which = if newest { length - 1 } else { self.random.below(length) };
            let (address, _) = self.of(thread).live.swap_remove(which);
            let outcome = self.observed.free(CORES[core], thread, address)?;
            if outcome != Outcome::Any {
                return Err(format!("a live object cannot be freed: {outcome:?}"));
            }
            self.of(thread).freed.push(address);
            self.done += 1;
        }
        Ok(())
    }

    /// An object that was freed before, an address in one, an object of an arena that may not exist, an
    /// address outside the region, or anywhere in it.
    fn free_wrongly(&mut self, core: usize) -> Result<(), String> {
        let thread = self.running[core];
        let (which, any) = (self.random.below(10), self.random.next());
        let offset = any % REGION_BYTES;
        let objects = self.of(thread);
        let newest = |length: usize| length - 1 - any as usize % length.min(5000);
        let wrong = match which {
            0..3 if !objects.freed.is_empty() => objects.freed[newest(objects.freed.len())],
            3..7 if !objects.live.is_empty() => {
                let address = objects.live[newest(objects.live.len())].0;
                let class = (address - REGION_START) as usize >> CLASS_SHIFT & (CLASSES - 1);
                address + if which < 5 { 1 + any / 7 % 64 } else { any / 7 % 50 * arena_bytes(class) }
            }
            7 => REGION_START.wrapping_add(REGION_BYTES * (any % 2)).wrapping_sub(8 * (1 - any % 2)),
            8 => any,
            _ => REGION_START + offset / 8 * 8,
        };
        let mut live = self.objects[thread.0 as usize - 1].iter().flat_map(|objects| &objects.live);
        if !live.any(|object| object.0 == wrong) {
            self.observed.free(CORES[core], thread, wrong)?;
            self.done += 1;
        }
        Ok(())
    }

    /// Accesses to the newest objects or to any, or outside the region; from another thread's core, too.
    fn touch(&mut self, core: usize) -> Result<(), String> {
        let (key, lane) = self.running[core];
        let owner = (key, if self.random.below(8) == 0 { self.random.below(LANES) } else { lane });
        for _ in 0..self.random.below(30) {
            let mut address = self.random.next();
            let live = &self.objects[key as usize - 1][owner.1].live;
            let within = if self.random.below(4) == 0 { live.len() } else { live.len().min(20) };
            if within > 0 && self.random.below(50) != 0 {
                let (start, bytes) = live[live.len() - 1 - self.random.below(within)];
                address = start + address % bytes;
            }
            self.observed.touch(CORES[core], key, address)?;
            self.done += 1;
        }
        Ok(())
    }

    /// A thread of any process gets the core; if it runs on another, that one gets the thread that ran here.
    fn switch(&mut self, core: usize) -> Result<(), String> {
        let next = (1 + self.random.next() % PROCESSES, self.random.below(LANES));
        let other = self.running.iter().position(|&running| running == next);
        let before = self.running[core];
        for (core, thread) in other.map(|other| (other, before)).into_iter().chain([(core, next)]) {
            if self.running[core].0 != thread.0 {
                self.observed.switch(CORES[core], thread.0)?;
            }
            self.running[core] = thread;
        }
        Ok(())
    }

    /// The process on the core exits and starts anew.
    fn exit(&mut self, core: usize) -> Result<(), String> {
        let (key, _) = self.running[core];
        self.observed.restart(CORES[core], key)?;
        for other in (0..CORES.len()).filter(|&other| self.running[other].0 == key) {
            self.observed.switch(CORES[other], key)?;
        }
        self.objects[key as usize - 1] = Default::default();
        Ok(())
    }
}

/// The operations of a journal, each thread's on a core of its own.
///
/// # Errors
/// The journal cannot be read, or has what the hardware description leaves out.
pub fn replay(path: &str, out: &mut impl Write) -> Result<(), String> {
    let journal = Journal::open(path)?;
    if journal.config.whole_pages {
        return Err(format!("{path}: its arenas are whole pages, which the hardware description leaves out"));
    }
    let mut observed = Observed::new(&config(journal.config.eager, true), out)?;
    observed.start(CORES[0], 1)?;
    for core in CORES {
        observed.switch(core, 1)?;
    }
    for (number, record) in journal.enumerate() {
        let record = record?;
        let (core, thread) = (CORES[record.lane % CORES.len()], (1, record.lane));
        let wrong = match record.kind {
            Kind::Allocate => observed.allocate(core, thread, record.size)?.unwrap_or(0) != record.address,
            Kind::Free => {
                if locate(REGION_START, record.address).is_ok_and(|place| place.lane != record.lane) {
                    return Err(format!(
                        "{path}: operation {number} frees another thread's object, which is software's"
                    ));
                }
                (observed.free(core, thread, record.address)? == Outcome::Any) != (record.outcome == 0)
            }
            Kind::Batch => false,
        };
        if wrong {
            return Err(format!("{path}: operation {number}: the model does not answer as the shim did"));
        }
    }
    Ok(())
}
