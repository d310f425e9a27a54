//! The profile's file as it lies in memory (docs/lifetime.md): a header, modules, contexts, and the live
//! sampled objects. It consists of plain numbers, initially zeros: a reader needs nothing from the process
//! that wrote it.

use core::sync::atomic::AtomicU64;

use lifetime_model::attach::{LEFT_AT, PHASE_AT, SEEN_AT};

use crate::lifetime::unwind::{self, MAX_FRAMES};
use crate::observe::profile_changes::Changes;
use crate::system::files;
use crate::system::os;
use crate::units::lifetime_class::CLASSES;

/// Version of the layout.
pub const VERSION: u32 = 1;
const MODULES: usize = 512;
const CONTEXTS: usize = 1 << 15;
const LIVE: usize = 1 << 17;
const PAIRS: usize = 1 << 14;
const MODULE_PATH_BYTES: usize = 256;
const BUILD_ID_BYTES: usize = 32;
/// A frame's address is relative to its module's load address; the bits above hold the module's number plus
/// one.
const OFFSET_BITS: u32 = 48;

/// The whole file.
#[repr(C)]
pub struct File {
    /// The header.
    pub header: Header,
    modules: [Module; MODULES],
    /// Contexts by hash of their frames; see [`File::context`].
    pub contexts: [Context; CONTEXTS],
    /// Sampled objects that live.
    pub live: LiveObjects,
    /// Which context's objects were freed in which context.
    pairs: [Pair; PAIRS],
    /// What changed since it was last written: not part of the file.
    pub changes: Changes,
}

/// Bytes of the file: all but the changes.
pub const FILE_BYTES: usize = core::mem::offset_of!(File, changes);
/// The first 256 bytes.
#[repr(C, align(256))]
pub struct Header {
    magic: [u8; 8],
    version: u32,
    pid: u32,
    modules: u32,
    module_bytes: u32,
    contexts: u32,
    context_bytes: u32,
    live: u32,
    live_bytes: u32,
    /// Bytes between two samples, on average.
    pub mean_bytes: u64,
    start_unix_ns: u64,
    start_ns: u64,
    /// When an object was last sampled or a sample freed, by the clock of `start_ns`.
    pub last_ns: u64,
    /// Samples that were lost because a table was full.
    lost_contexts: u64,
    /// As above.
    pub lost_live: u64,
    /// The attached profiler's command: see [`lifetime_model::attach`]. 0 in a profile from the program's
    /// start.
    pub phase: AtomicU64,
    /// When the profiler was last seen, by the clock of `start_ns`.
    pub seen_ns: AtomicU64,
    /// Not written by the heap: when the profiler detached from a running process, and the number of
    /// processes in a merged profile.
    left_ns: u64,
    processes: u32,
    pairs: u32,
    pair_bytes: u32,
}

const _: () = assert!(core::mem::offset_of!(Header, phase) == PHASE_AT);
const _: () = assert!(core::mem::offset_of!(Header, seen_ns) == SEEN_AT);
const _: () = assert!(core::mem::offset_of!(Header, left_ns) == LEFT_AT);

#[repr(C)]
struct Module {
    start: u64,
    end: u64,
    load_address: u64,
    build_id_bytes: u32,
    path_bytes: u32,
    build_id: [u8; BUILD_ID_BYTES],
    path: [u8; MODULE_PATH_BYTES],
}

/// A running tally; with the count it gives mean and variance.
#[repr(C)]
pub struct Tally {
    min: u64,
    max: u64,
    sum: f64,
    sum_of_squares: f64,
}

impl Tally {
    fn add(&mut self, value: u64, first: bool) {
        self.min = if first { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.sum += value as f64;
        self.sum_of_squares += value as f64 * value as f64;
    }
}

/// A calling context and the data of its sampled objects.
#[repr(C)]
pub struct Context {
    hash: u64,
    depth: u64,
    frames: [u64; MAX_FRAMES],
    /// Sampled allocations.
    sampled: u64,
    /// How many of them could not be watched.
    pub unwatched: u64,
    /// How many allocations, and bytes, the samples represent.
    allocations: f64,
    bytes: f64,
    /// Watched objects that were freed.
    freed: u64,
    /// How many of them on the thread and on the CPU that allocated them.
    same_thread: u64,
    same_cpu: u64,
    /// How many of them in each lifetime class.
    classes: [u64; CLASSES],
    size: Tally,
    alignment: Tally,
    lifetime_ns: Tally,
}

impl Context {
    /// Adds a sample that represents `weight` allocations.
    pub fn was_allocated(&mut self, size: u64, alignment: u64, weight: f64) {
        let first = self.sampled == 0;
        self.size.add(size, first);
        self.alignment.add(alignment, first);
        self.allocations += weight;
        self.bytes += weight * size as f64;
        self.sampled += 1;
    }

    /// Adds the free of a watched object.
    pub fn was_freed(&mut self, lifetime_ns: u64, class: usize, same_thread: bool, same_cpu: bool) {
        self.lifetime_ns.add(lifetime_ns, self.freed == 0);
        self.classes[class] += 1;
        self.same_thread += u64::from(same_thread);
        self.same_cpu += u64::from(same_cpu);
        self.freed += 1;
    }
}

/// The context that allocated objects, the context that freed them, and their number (LLAMA §4). All zeros is
/// none.
#[repr(C)]
struct Pair {
    /// Numbers of contexts plus one.
    allocated: u32,
    freed: u32,
    objects: u64,
}

/// A live sampled object. All zeros is none.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Live {
    /// Its address; 0 for none.
    pub address: u64,
    /// When it was allocated.
    pub birth_ns: u64,
    /// Number of its context plus one.
    pub context: u32,
    /// Number of the thread that allocated it.
    pub thread: u32,
    /// The CPU it ran on.
    pub cpu: u32,
}

/// A hash table with linear probing.
#[repr(C)]
pub struct LiveObjects([Live; LIVE], u64);

const _: () = assert!(core::mem::offset_of!(File, pairs).is_multiple_of(8));

const NONE: Live = Live { address: 0, birth_ns: 0, context: 0, thread: 0, cpu: 0 };

impl LiveObjects {
    fn home(address: u64) -> usize {
        ((address >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - LIVE.ilog2())) as usize
    }

    fn changed(&self, at: usize, changes: &mut Changes) {
        let table = core::mem::offset_of!(File, live);
        changes.add(table + at * size_of::<Live>(), size_of::<Live>());
        changes.add(table + LIVE * size_of::<Live>(), size_of::<u64>());
    }

    /// Adds an object; `false` if the table is seven eighths full.
    pub fn insert(&mut self, live: Live, changes: &mut Changes) -> bool {
        if self.1 >= LIVE as u64 / 8 * 7 {
            return false;
        }
        let mut at = Self::home(live.address);
        while self.0[at].address != 0 && self.0[at].address != live.address {
            at = (at + 1) % LIVE;
        }
        self.1 += u64::from(self.0[at].address == 0);
        self.0[at] = live;
        self.changed(at, changes);
        true
    }

    /// Whether an object is there.
    pub fn has(&self, address: u64) -> bool {
        let mut at = Self::home(address);
        while self.0[at].address != address {
            if self.0[at].address == 0 {
                return false;
            }
            at = (at + 1) % LIVE;
        }
        true
    }

    /// Removes an object; entries behind it that it had displaced move up.
    pub fn remove(&mut self, address: u64, changes: &mut Changes) -> Option<Live> {
        let mut at = Self::home(address);
        while self.0[at].address != address {
            if self.0[at].address == 0 {
                return None;
            }
            at = (at + 1) % LIVE;
        }
        let removed = self.0[at];
        let mut next = (at + 1) % LIVE;
        while self.0[next].address != 0 {
            let home = Self::home(self.0[next].address);
            // It may move up if its home is not between the gap and itself.
            if (next + LIVE - home) % LIVE >= (next + LIVE - at) % LIVE {
                self.0[at] = self.0[next];
                self.changed(at, changes);
                at = next;
            }
            next = (next + 1) % LIVE;
        }
        self.0[at] = NONE;
        self.1 -= 1;
        self.changed(at, changes);
        Some(removed)
    }
}

impl File {
    /// Writes the header of a file of zeros.
    pub fn begin(&mut self, mean_bytes: u64) {
        let header = &mut self.header;
        header.version = VERSION;
        header.pid = os::process_id();
        (header.modules, header.module_bytes) = (MODULES as u32, size_of::<Module>() as u32);
        (header.contexts, header.context_bytes) = (CONTEXTS as u32, size_of::<Context>() as u32);
        (header.live, header.live_bytes) = (LIVE as u32, size_of::<Live>() as u32);
        (header.pairs, header.pair_bytes) = (PAIRS as u32, size_of::<Pair>() as u32);
        header.mean_bytes = mean_bytes;
        header.start_unix_ns = os::unix_ns();
        header.start_ns = os::precise_ns();
        header.last_ns = header.start_ns;
        header.magic = *b"MAYFLYPF";
        self.changed_header();
        self.place(unwind::program_entry()); // the program is the first module
    }

    /// Notes that the header changed.
    pub fn changed_header(&mut self) {
        self.changes.add(0, size_of::<Header>());
    }

    /// Notes that a context changed.
    pub fn changed_context(&mut self, number: usize) {
        let table = core::mem::offset_of!(File, contexts);
        self.changes.add(table + number * size_of::<Context>(), size_of::<Context>());
    }

    /// Finds or adds a context; `None` if the table is full, which is counted.
    pub fn context(&mut self, frames: &[usize]) -> Option<usize> {
        let found = self.find(frames);
        self.header.lost_contexts += u64::from(found.is_none());
        found
    }

    fn find(&mut self, frames: &[usize]) -> Option<usize> {
        let mut offsets = [0; MAX_FRAMES];
        let mut hash = 0xCBF2_9CE4_8422_2325;
        for (offset, &frame) in offsets.iter_mut().zip(frames) {
            *offset = self.place(frame);
            hash = (hash ^ *offset).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        }
        hash |= 1; // 0 is no context
        let offsets = &offsets[..frames.len()];
        let mut at = (hash >> 40) as usize % CONTEXTS;
        for _ in 0..CONTEXTS / 8 {
            let context = &mut self.contexts[at];
            if context.hash == 0 {
                context.frames[..offsets.len()].copy_from_slice(offsets);
                context.depth = offsets.len() as u64;
                context.hash = hash;
                self.changed_context(at);
                return Some(at);
            }
            if context.hash == hash && context.frames[..context.depth as usize] == *offsets {
                return Some(at);
            }
            at = (at + 1) % CONTEXTS;
        }
        None
    }

    /// Counts an object of one context that was freed in another; not if the table is full.
    pub fn freed_in(&mut self, allocated: usize, freed: &[usize]) {
        let Some(freed) = self.find(freed) else { return };
        let both = [allocated, freed].map(|number| number as u32 + 1);
        let hash = (u64::from(both[0]) << 32 | u64::from(both[1])).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let first = (hash >> (u64::BITS - PAIRS.ilog2())) as usize;
        for at in (first..first + PAIRS / 8).map(|at| at % PAIRS) {
            let pair = &mut self.pairs[at];
            if pair.objects == 0 || [pair.allocated, pair.freed] == both {
                [pair.allocated, pair.freed] = both;
                pair.objects += 1;
                let table = core::mem::offset_of!(File, pairs);
                self.changes.add(table + at * size_of::<Pair>(), size_of::<Pair>());
                return;
            }
        }
    }

    /// Encodes a return address as its module and offset; unchanged if it is in no module.
    fn place(&mut self, address: usize) -> u64 {
        let known = |module: &Module| (module.start..module.end).contains(&(address as u64));
        let number = self.modules.iter().take_while(|module| module.end != 0).position(known);
        let Some(number) = number.or_else(|| self.add_module(address)) else { return address as u64 };
        let offset = (address as u64).wrapping_sub(self.modules[number].load_address);
        (number as u64 + 1) << OFFSET_BITS | offset & ((1 << OFFSET_BITS) - 1)
    }

    fn add_module(&mut self, address: usize) -> Option<usize> {
        let number = self.modules.iter().position(|module| module.end == 0)?;
        let found = unwind::module(address)?;
        let entry = &mut self.modules[number];
        let id = unwind::build_id(&found).unwrap_or_default();
        entry.build_id_bytes = id.len().min(BUILD_ID_BYTES) as u32;
        id.iter().zip(&mut entry.build_id).for_each(|(from, to)| *to = *from);
        entry.path_bytes = match found.path {
            b"" => files::program_path(&mut entry.path) as u32,
            path => {
                path.iter().zip(&mut entry.path).for_each(|(from, to)| *to = *from);
                path.len().min(MODULE_PATH_BYTES) as u32
            }
        };
        entry.load_address = found.load_address as u64;
        entry.start = found.start as u64;
        entry.end = found.end as u64;
        let table = core::mem::offset_of!(File, modules);
        self.changes.add(table + number * size_of::<Module>(), size_of::<Module>());
        Some(number)
    }
}
