//! The contents of a profile: modules, calling contexts, and how long their objects lived (docs/lifetime.md).

use std::collections::HashMap;
use std::path::PathBuf;

/// Lifetime classes.
pub const CLASSES: usize = 7;
/// The lower bits of a frame's number, which hold the offset; the bits above hold the module.
pub(crate) const OFFSET_BITS: u32 = 48;
/// The time within which objects of each class die, ms; the last class has no limit.
const CLASS_LIMITS_MS: [u64; CLASSES - 1] = [10, 100, 1000, 10_000, 100_000, 1_000_000];

/// A whole profile, of one process or of several that were merged.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// The process; of several, the one that allocated most.
    pub pid: u32,
    /// The number of its processes.
    pub processes: u32,
    /// The start, ns since 1970.
    pub start_unix_ns: u64,
    /// From the start to the last event.
    pub duration_ns: u64,
    /// Bytes between two samples, on average.
    pub mean_bytes: u64,
    /// Samples that found no room in a table.
    pub lost: u64,
    /// Programs and libraries.
    pub modules: Vec<Module>,
    /// Calling contexts that were sampled.
    pub contexts: Vec<Context>,
}

/// A program or library.
#[derive(Clone, Debug)]
pub struct Module {
    /// The path that it was loaded from.
    pub path: PathBuf,
    /// Its build-id; empty if it has none.
    pub build_id: Vec<u8>,
    /// The addresses that it was mapped at.
    pub addresses: std::ops::Range<u64>,
    /// The difference between its addresses in memory and in its file.
    pub load_address: u64,
}

impl Module {
    fn is_library(&self) -> bool {
        self.path.file_name().is_none_or(|name| name.to_string_lossy().contains(".so"))
    }
}

/// A return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Index into [`Profile::modules`]; none for code generated at run time.
    pub module: Option<usize>,
    /// Its address in the module's file; the address itself without a module.
    pub offset: u64,
}

impl Frame {
    /// The frame as one number: its module's number plus one above 48 bits of offset.
    pub fn place(&self) -> u64 {
        self.module.map_or(self.offset, |number| (number as u64 + 1) << OFFSET_BITS | self.offset)
    }
}

/// A running tally; the mean and variance follow from it and the count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// The least.
    pub min: u64,
    /// The greatest.
    pub max: u64,
    /// Their sum.
    pub sum: f64,
    /// The sum of their squares.
    pub sum_of_squares: f64,
}

impl Tally {
    /// Adds another tally; `counts` are the numbers of values of both.
    fn add(&mut self, other: &Tally, counts: [u64; 2]) {
        match counts {
            [_, 0] => {}
            [0, _] => *self = *other,
            _ => {
                (self.min, self.max) = (self.min.min(other.min), self.max.max(other.max));
                self.sum += other.sum;
                self.sum_of_squares += other.sum_of_squares;
            }
        }
    }
}

/// A calling context and the lifetimes of its objects.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The same for the same frames, whatever addresses the modules were mapped at.
    pub id: u64,
    /// Innermost first.
    pub frames: Vec<Frame>,
    /// Sampled allocations.
    pub sampled: u64,
    /// Of those, the ones whose lifetimes could not be watched.
    pub unwatched: u64,
    /// How many allocations the samples represent.
    pub allocations: f64,
    /// How many bytes they represent.
    pub bytes: f64,
    /// Watched objects that were freed.
    pub freed: u64,
    /// Of those, on the thread that allocated them.
    pub same_thread: u64,
    /// Of those, on the CPU that allocated them.
    pub same_cpu: u64,
    /// Of those, by lifetime class.
    pub classes: [u64; CLASSES],
    /// Watched objects that lived at the end.
    pub live: u64,
    /// Each of these objects.
    pub alive: Vec<Alive>,
    /// Requested bytes.
    pub size: Tally,
    /// Alignment, bytes.
    pub alignment: Tally,
    /// Lifetimes of the freed ones.
    pub lifetime_ns: Tally,
    /// The callers that freed them, as far as they were recorded.
    pub frees: Vec<Frees>,
}

/// Watched objects of one context that were freed by the same callers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frees {
    /// The callers, innermost first.
    pub frames: Vec<Frame>,
    /// The number of objects.
    pub objects: u64,
}

/// A watched object that lived at the end of the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alive {
    /// Its age then.
    pub age_ns: u64,
    /// Its process ended then, too, so it was never freed. Otherwise the process ran on, and the object lives
    /// at least so long.
    pub never_freed: bool,
}

/// The lifetime class of an object that lives so long.
pub fn class_of(lifetime_ns: u64) -> usize {
    let ms = lifetime_ns / 1_000_000;
    CLASS_LIMITS_MS.iter().position(|&limit| ms < limit).unwrap_or(CLASSES - 1)
}

impl Context {
    /// Objects with a lower bound of their lifetime, by the class of their age when the profiler left their
    /// process, which ran on.
    pub fn censored(&self) -> [u64; CLASSES] {
        let mut counts = [0; CLASSES];
        let censored = self.alive.iter().filter(|object| !object.never_freed);
        censored.for_each(|object| counts[class_of(object.age_ns)] += 1);
        counts
    }

    /// How many allocations one watched object represents.
    fn weight(&self) -> f64 {
        self.allocations / (self.freed + self.live).max(1) as f64
    }

    /// Allocations that live at the end.
    pub fn live_allocations(&self) -> f64 {
        self.weight() * self.live as f64
    }

    /// Bytes that live at the end.
    pub fn live_bytes(&self) -> f64 {
        self.bytes * self.live as f64 / (self.freed + self.live).max(1) as f64
    }

    /// The sum, over all bytes, of the seconds that they were observed to live: the average memory of this
    /// context times the profile's duration.
    pub fn byte_seconds(&self) -> f64 {
        let alive: f64 = self.alive.iter().map(|object| object.age_ns as f64).sum();
        let mean_ns = (self.lifetime_ns.sum + alive) / (self.freed + self.live).max(1) as f64;
        self.bytes * mean_ns / 1e9
    }

    /// Adds another context's numbers; the frames stay.
    pub fn add(&mut self, other: Context) {
        let sampled = [self.sampled, other.sampled];
        self.size.add(&other.size, sampled);
        self.alignment.add(&other.alignment, sampled);
        self.lifetime_ns.add(&other.lifetime_ns, [self.freed, other.freed]);
        self.sampled += other.sampled;
        self.unwatched += other.unwatched;
        self.allocations += other.allocations;
        self.bytes += other.bytes;
        self.freed += other.freed;
        self.same_thread += other.same_thread;
        self.same_cpu += other.same_cpu;
        self.classes.iter_mut().zip(other.classes).for_each(|(sum, count)| *sum += count);
        self.live += other.live;
        self.alive.extend(other.alive);
        for frees in other.frees {
            match self.frees.iter_mut().find(|known| known.frames == frees.frames) {
                Some(known) => known.objects += frees.objects,
                None => self.frees.push(frees),
            }
        }
    }
}

impl Profile {
    /// The program: the first module that is no library.
    pub fn program(&self) -> Option<usize> {
        self.modules.iter().position(|module| !module.is_library())
    }

    /// The program of a context: the one that its outermost frames lie in.
    pub fn program_of(&self, context: &Context) -> Option<usize> {
        let mut modules = context.frames.iter().rev().filter_map(|frame| frame.module);
        modules.find(|&number| !self.modules[number].is_library()).or_else(|| self.program())
    }

    /// All allocated bytes.
    pub fn bytes(&self) -> f64 {
        self.contexts.iter().map(|context| context.bytes).sum()
    }

    /// One profile of several processes, with their common contexts added up. Modules are the same if path
    /// and build-id are, and contexts if their frames are. The process that allocated most comes first: a
    /// shell's child names the profile, not the shell.
    pub fn merged(profiles: impl IntoIterator<Item = Profile>) -> Profile {
        let mut profiles: Vec<Profile> =
            profiles.into_iter().filter(|profile| profile.processes > 0).collect();
        profiles.sort_by(|a, b| b.bytes().total_cmp(&a.bytes()));
        let mut whole = Profile::default();
        let mut modules: HashMap<(PathBuf, Vec<u8>), usize> = HashMap::new();
        let mut places: HashMap<Vec<Frame>, usize> = HashMap::new();
        for profile in profiles {
            let begins_with_it = whole.processes == 0;
            if begins_with_it {
                (whole.pid, whole.start_unix_ns) = (profile.pid, profile.start_unix_ns);
                whole.mean_bytes = profile.mean_bytes;
            }
            let start = whole.start_unix_ns.min(profile.start_unix_ns);
            let end = |profile: &Profile| profile.start_unix_ns.saturating_add(profile.duration_ns);
            whole.duration_ns = end(&whole).max(end(&profile)).saturating_sub(start);
            whole.start_unix_ns = start;
            whole.processes += profile.processes;
            whole.lost = whole.lost.saturating_add(profile.lost);
            let numbers: Vec<usize> = profile
                .modules
                .into_iter()
                .map(|module| {
                    let key = (module.path.clone(), module.build_id.clone());
                    *modules.entry(key).or_insert_with(|| {
                        whole.modules.push(module);
                        whole.modules.len() - 1
                    })
                })
                .collect();
            for mut context in profile.contexts {
                let frees = context.frees.iter_mut().flat_map(|frees| &mut frees.frames);
                for frame in context.frames.iter_mut().chain(frees) {
                    frame.module = frame.module.map(|number| numbers[number]);
                }
                match places.get(&context.frames) {
                    Some(&place) => whole.contexts[place].add(context),
                    None => {
                        places.insert(context.frames.clone(), whole.contexts.len());
                        context.id = if begins_with_it { context.id } else { id_of(&context.frames) };
                        whole.contexts.push(context);
                    }
                }
            }
        }
        whole
    }
}

/// A context's id as the heap computes it: from the frames' numbers, so modules must have the numbers of this
/// profile.
pub(crate) fn id_of(frames: &[Frame]) -> u64 {
    let mix =
        |hash: u64, frame: &Frame| (hash ^ frame.place()).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    frames.iter().fold(0xCBF2_9CE4_8422_2325, mix) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(pid: u32, modules: &[&str], frames: &[(usize, u64)]) -> Profile {
        let module = |path: &&str| Module {
            path: path.into(),
            build_id: vec![1],
            addresses: 0..9,
            load_address: u64::from(pid),
        };
        let frames = frames.iter().map(|&(module, offset)| Frame { module: Some(module), offset }).collect();
        let size = Tally { min: u64::from(pid), max: u64::from(pid), sum: 8.0, sum_of_squares: 64.0 };
        let alive = vec![Alive { age_ns: 1, never_freed: false }];
        let frames: Vec<Frame> = frames;
        let frees = vec![Frees { frames: frames[..1].to_vec(), objects: 1 }];
        let context = Context {
            id: 77,
            frames,
            sampled: 2,
            freed: 1,
            live: 1,
            alive,
            size,
            frees,
            ..Context::default()
        };
        Profile {
            pid,
            processes: 1,
            start_unix_ns: 1000 * u64::from(pid),
            duration_ns: 500,
            modules: modules.iter().map(module).collect(),
            contexts: vec![context],
            ..Profile::default()
        }
    }

    #[test]
    fn equal_frames_are_one_context_under_other_module_numbers() {
        let [one, two] = [
            profile(1, &["/bin/server", "/lib/b.so"], &[(1, 5), (0, 7)]),
            profile(2, &["/lib/b.so", "/lib/c.so", "/bin/server"], &[(0, 5), (2, 7)]),
        ];
        let other = profile(3, &["/lib/c.so"], &[(0, 5)]);
        let whole = Profile::merged([one, two, other]);
        assert_eq!((whole.pid, whole.processes), (1, 3));
        assert_eq!((whole.start_unix_ns, whole.duration_ns), (1000, 2500));
        assert_eq!(whole.program(), Some(0));
        let paths: Vec<_> = whole.modules.iter().map(|module| module.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["/bin/server", "/lib/b.so", "/lib/c.so"]);
        assert_eq!(whole.contexts.len(), 2);
        let both = &whole.contexts[0];
        assert_eq!((both.id, both.sampled, both.freed, both.live, both.alive.len()), (77, 4, 2, 2, 2));
        assert_eq!((both.size.min, both.size.max, both.size.sum), (1, 2, 16.0));
        let freed_in = vec![Frame { module: Some(1), offset: 5 }];
        assert_eq!(both.frees, [Frees { frames: freed_in, objects: 2 }], "both freed at the same place");
        assert_eq!(whole.contexts[1].frames, [Frame { module: Some(2), offset: 5 }]);
        assert_ne!(whole.contexts[1].id, 77, "another one has another id");
    }

    #[test]
    fn live_objects_count_with_their_age() {
        let alive = vec![
            Alive { age_ns: 3_000_000_000, never_freed: false },
            Alive { age_ns: 50_000_000, never_freed: true },
        ];
        let context =
            Context { bytes: 300.0, allocations: 30.0, freed: 1, live: 2, alive, ..Context::default() };
        assert_eq!(context.censored(), [0, 0, 0, 1, 0, 0, 0]);
        assert_eq!((context.live_bytes(), context.live_allocations()), (200.0, 20.0));
        assert!((context.byte_seconds() - 305.0).abs() < 1e-9);
    }
}
