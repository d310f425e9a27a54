//! A profile of object lifetimes by calling context, from a sample of the allocations (LLAMA §4).
//!
//! **Which ones.** Objects are sampled by allocated bytes: the distance to the next one is drawn from an exponential
//! distribution, so what is seen stands for all that was allocated, weighted by size. Each bin counts down cells of
//! its own ([`crate::heap::Bin`]): when it takes cells in hand it takes no more than come before the one to be sampled, and
//! that one finds none at hand and takes the slow path. So the fast paths neither count nor know of it, profile or not.
//!
//! **What is kept.** The calling context is unwound, and each context keeps a running tally (minimum, maximum, sum, sum of
//! squares) of lifetime, size and alignment, how many died in each lifetime class, and how many on the thread and CPU
//! they were born on. A sampled object is *watched* as those of [`crate::sites`] are: its free takes the slow path.
//!
//! **Where.** In a file mapped into memory (docs/lifetime.md): nothing is written at the end, so a process may be killed at
//! any moment and leaves a profile that is whole but for the sample in work. Nothing here allocates.

use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use lifetime_model::attach::ENDED;

use crate::config::PATH_BYTES;
use crate::geometry::MAX_SMALL_BYTES;
use crate::heap::{Call, Heap};
use crate::lifetime;
use crate::lock::{Guard, Lock};
use crate::profile_file::{Context, File, Live};
use crate::size_class::{self, GRANULE_BYTES};
use crate::text::warn;
use crate::{os, report, unwind};

/// What [`crate::heap::Bin`] counts down from while nothing is sampled.
pub const NEVER: u32 = u32::MAX;
/// Bytes between two samples, on average, unless the configuration says otherwise.
pub const MEAN_BYTES: usize = 512 << 10;

static ON: AtomicBool = AtomicBool::new(false);
static SAMPLING: AtomicBool = AtomicBool::new(false);
static FILE: AtomicPtr<File> = AtomicPtr::new(core::ptr::null_mut());
static MEAN: AtomicUsize = AtomicUsize::new(MEAN_BYTES);
static RANDOM: AtomicU64 = AtomicU64::new(0);
static LOCK: Lock = Lock::new();

/// Whether there is a profile: sampled objects may be awaited.
#[inline]
pub fn on() -> bool {
    ON.load(Relaxed)
}

/// Whether allocations are sampled.
#[inline]
pub fn sampling() -> bool {
    SAMPLING.load(Relaxed)
}

/// Sets the mean number of bytes between two samples; before the first allocation.
pub fn set_mean_bytes(bytes: usize) {
    MEAN.store(bytes, Relaxed);
    with_file(|file| file.header.mean_bytes = bytes as u64);
}

/// Starts sampling into the file that `path` names, `%p` in it being the process id.
pub fn start(path: &[u8]) {
    let mut name = [0; PATH_BYTES];
    let shown = core::str::from_utf8(path).unwrap_or("(not UTF-8)");
    let file =
        report::expand_path(path, &mut name).and_then(|name| os::create_mapped(name, size_of::<File>()));
    let Some(at) = file else {
        return warn(format_args!("profile {shown} cannot be created; nothing is sampled"));
    };
    // SAFETY: a fresh shared mapping of a file of zeros, of that size.
    unsafe { begin(at, MEAN.load(Relaxed)) };
}

/// Starts sampling into a mapping of zeros.
///
/// # Safety
/// At `at` lie as many writable bytes as a [`File`] has, nobody else's in this process, until [`end`].
pub unsafe fn begin(at: usize, mean_bytes: usize) {
    let file = at as *mut File;
    MEAN.store(mean_bytes, Relaxed);
    // SAFETY: a `File` is plain numbers, for which zero is a value.
    unsafe { (*file).begin(mean_bytes as u64) };
    RANDOM.store(os::precise_ns() ^ u64::from(os::process_id()) << 40, Relaxed);
    FILE.store(file, Release);
    ON.store(true, Release);
    SAMPLING.store(true, Release);
}

/// From now on nothing more is sampled; the frees of what was are still noted.
pub fn only_watch() {
    SAMPLING.store(false, Relaxed);
}

/// Ends the profile; where it was mapped.
pub fn end() -> Option<usize> {
    only_watch();
    ON.store(false, Relaxed);
    let _guard = LOCK.lock(); // whoever is writing has written
    let file = FILE.swap(core::ptr::null_mut(), Relaxed);
    (!file.is_null()).then_some(file as usize)
}

/// A forked child does not write into its parent's profile, which it has not mapped.
pub fn stop_in_child() {
    end();
}

/// Who is attached is there.
pub fn seen() {
    with_file(|file| file.header.seen_ns.store(os::precise_ns(), Relaxed));
}

/// What who is attached to this profile wants, and when it was last seen.
pub fn attached() -> Option<(u64, u64)> {
    with_file(|file| (file.header.phase.load(Relaxed), file.header.seen_ns.load(Relaxed)))
}

fn with_file<T>(change: impl FnOnce(&mut File) -> T) -> Option<T> {
    let _guard: Guard = LOCK.lock();
    // SAFETY: null or a mapping that is never unmapped; the lock makes this the only reference.
    unsafe { FILE.load(Acquire).as_mut() }.map(change)
}

/// Bytes to the next sample: exponentially distributed.
fn draw_bytes() -> f64 {
    let mut bits = RANDOM.fetch_add(0x9E37_79B9_7F4A_7C15, Relaxed); // SplitMix64
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    let uniform = ((bits ^ bits >> 31) >> 11) as f64 / (1u64 << 53) as f64;
    -libm::log(1.0 - uniform) * MEAN.load(Relaxed) as f64
}

/// Cells of `cell_bytes` that are handed out before one is sampled; [`NEVER`] while none are.
pub fn cells_before_sample(cell_bytes: usize) -> u32 {
    if !sampling() {
        return NEVER;
    }
    let cells = draw_bytes() / cell_bytes as f64;
    cells.min(f64::from(NEVER - 1)) as u32
}

/// Whether a large object of `size` bytes is sampled.
pub fn large_is_due(heap: &Heap, size: usize) -> bool {
    if !sampling() {
        return false;
    }
    let draw = || draw_bytes().max(1.0) as u64;
    let left = match heap.large_before_sample.get() {
        0 => draw(), // the heap's first
        left => left,
    };
    let due = left <= size as u64;
    heap.large_before_sample.set(if due { draw() } else { left - size as u64 });
    due
}

/// The chance that an object of `size` bytes is sampled.
fn chance(size: usize) -> f64 {
    let bytes = if size <= MAX_SMALL_BYTES {
        // In bins, cells are counted.
        size_class::CELL_BYTES[size_class::of_granules(size.div_ceil(GRANULE_BYTES))] as usize
    } else {
        size
    };
    -libm::expm1(-(bytes as f64) / MEAN.load(Relaxed) as f64)
}

/// The calling thread's number. One that has never allocated has no heap and no number, and has borne none of the objects.
fn thread_of(heap: &Heap) -> u32 {
    if heap.id.get() == 0 { u32::MAX } else { heap.thread.get() }
}

/// The object at `address` was chosen and is watched; with `watched` false its lifetime cannot be measured.
#[cold]
pub fn allocated(heap: &Heap, call: &Call, alignment: usize, address: usize, watched: bool) {
    let mut stack = unwind::Stack::default();
    os::keep_errno(|| unwind::from(call.caller, &mut stack));
    let now_ns = os::precise_ns();
    with_file(|file| {
        let Some(context) = file.context(stack.frames()) else { return };
        file.contexts[context].was_allocated(call.size as u64, alignment as u64, 1.0 / chance(call.size));
        if !watched {
            file.contexts[context].unwatched += 1;
            return;
        }
        let (thread, cpu) = (thread_of(heap), os::cpu());
        let live =
            Live { address: address as u64, birth_ns: now_ns, context: context as u32 + 1, thread, cpu };
        file.header.lost_live += u64::from(!file.live.insert(live));
        file.header.last_ns = now_ns;
    });
}

/// The object at `address`, which may have been chosen, is about to be freed.
#[cold]
pub fn freed(heap: &Heap, address: usize) {
    let now_ns = os::precise_ns();
    with_file(|file| {
        if file.header.phase.load(Relaxed) >= ENDED {
            return; // it is being read
        }
        let Some(live) = file.live.remove(address as u64) else { return };
        let lifetime_ns = now_ns.saturating_sub(live.birth_ns);
        let class = lifetime::of_lifetime_ms((lifetime_ns / 1_000_000).min(u64::from(u32::MAX - 1)) as u32);
        let context: &mut Context = &mut file.contexts[live.context as usize - 1];
        context.was_freed(lifetime_ns, class, live.thread == thread_of(heap), live.cpu == os::cpu());
        file.header.last_ns = now_ns;
    });
}

/// The object at `from`, which may have been chosen, was moved.
pub fn moved(from: usize, to: usize) {
    with_file(|file| {
        if let Some(live) = file.live.remove(from as u64) {
            file.live.insert(Live { address: to as u64, ..live });
        }
    });
}
