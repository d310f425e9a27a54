//! Profiles object lifetimes by calling context, from a sample of the allocations (LLAMA §4).
//!
//! **Sampling.** See [`crate::thread::sample`].
//!
//! **Contents.** For each sampled allocation the heap unwinds the calling context. Each context has running
//! tallies (minimum, maximum, sum, sum of squares) of lifetime, size and alignment, counts of deaths in each
//! lifetime class, and counts of objects freed on the thread and CPU that allocated them. The freeing context
//! is unwound as well, and each pair of contexts is counted. A sampled object is *watched* like those of
//! [`crate::lifetime::sites`]: its free takes the slow path.
//!
//! **The file.** It lies in memory (docs/lifetime.md, [`crate::observe::profile_memory`]), and nothing is
//! left to do at the end. So a process may be killed at any moment and leaves a complete profile, except for
//! the sample in progress. Nothing here allocates.
//!
//! **Forks.** A child does not write into the parent's profile. It begins one of its own before it does
//! anything else, if a profiler collects them or if the file's name has `%p`: later it may run as another
//! user or in another root, as servers' workers do.

use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use lifetime_model::attach::ENDED;

use crate::lifetime::unwind;
use crate::observe::profile_file::{Context, File, Live};
use crate::observe::profile_memory::{self, SOCKET};
use crate::system::files;
use crate::system::forked;
use crate::system::lock::{Guard, Lock};
use crate::system::observers::{self, Allocation, Observer};
use crate::system::os;
use crate::system::paths::PATH_BYTES;
use crate::system::text::warn;
use crate::thread::sample;
use crate::units::lifetime_class;

static FILE: AtomicPtr<File> = AtomicPtr::new(core::ptr::null_mut());
static LOCK: Lock = Lock::new();

/// The profile began with the process: no profiler attached to it.
static FROM_START: AtomicBool = AtomicBool::new(false);

/// What children's profiles go to.
struct Name(UnsafeCell<[u8; PATH_BYTES]>);
// SAFETY: written once, while the configuration is read, before LENGTH is set.
unsafe impl Sync for Name {}
static NAME: Name = Name(UnsafeCell::new([0; PATH_BYTES]));
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Sets the mean number of bytes between two samples; before the first allocation.
pub fn set_mean_bytes(bytes: usize) {
    sample::set_mean_bytes(bytes);
    with_file(|file| {
        file.header.mean_bytes = bytes as u64;
        file.changed_header();
    });
}

/// Starts sampling into what `value` names: a file, in whose name `%p` is replaced by the process id, or the
/// socket of a profiler. Forked children then begin their own.
pub fn start(value: &[u8]) {
    let of_each_process = value.starts_with(SOCKET) || value.windows(2).any(|two| two == b"%p");
    if start_in(value) && value.len() < PATH_BYTES && of_each_process {
        // SAFETY: see `Name`.
        unsafe { (&mut *NAME.0.get())[..value.len()].copy_from_slice(value) };
        LENGTH.store(value.len(), Release);
    }
}

fn start_in(value: &[u8]) -> bool {
    let Some(memory) = profile_memory::open(value) else { return false };
    // SAFETY: fresh memory of zeros, of that size, with no other user.
    let file = unsafe { &mut *(memory.at as *mut File) };
    file.begin(sample::mean_bytes() as u64);
    if memory.publish(value, file) && forked::claim_process() {
        FROM_START.store(true, Relaxed);
        sample_into(memory.at);
        return true;
    }
    os::unmap(memory.at, size_of::<File>());
    false
}

/// The child of a fork does not write into its parent's profile.
fn in_child() {
    stop();
    profile_memory::close();
    let length = LENGTH.load(Acquire);
    if length > 0 {
        // SAFETY: see `Name`; not written again.
        start_in(unsafe { &(&*NAME.0.get())[..length] });
    }
}

/// Starts sampling into a mapping of zeros, for a profiler that attached; whether that is possible.
///
/// # Safety
/// The mapping at `at` has as many writable bytes as a [`File`], and no other user in this process until
/// [`end`].
pub unsafe fn begin(at: usize, mean_bytes: usize) -> bool {
    if !forked::claim_process() {
        return false;
    }
    let file = at as *mut File;
    sample::set_mean_bytes(mean_bytes);
    // SAFETY: a `File` is plain numbers, for which zero is a value.
    unsafe { (*file).begin(mean_bytes as u64) };
    FROM_START.store(false, Relaxed);
    sample_into(at);
    true
}

fn sample_into(at: usize) {
    FILE.store(at as *mut File, Release);
    observers::register(&OBSERVER);
    observers::set_observes_samples(true);
    sample::start();
}

/// Ends the profile; returns the address of its mapping.
pub fn end() -> Option<usize> {
    take(&LOCK.lock()) // threads that were writing have finished
}

/// Ends the profile under the lock, so that one of several threads gets its address.
fn take(_locked: &Guard) -> Option<usize> {
    sample::stop();
    observers::set_observes_samples(false);
    let file = FILE.swap(core::ptr::null_mut(), Relaxed);
    (!file.is_null()).then_some(file as usize)
}

static OBSERVER: Observer = Observer {
    allocated,
    sample_freed: freed,
    sample_moved: moved,
    tick: |_, _| look_for_end(),
    in_child,
    ..Observer::IDLE
};

/// Ends the profile if the profiler that collected it has left.
fn look_for_end() {
    if FROM_START.load(Relaxed) && attached().is_some_and(|(phase, _)| phase >= ENDED) {
        LENGTH.store(0, Relaxed); // and children begin none
        stop();
    }
}

/// Ends it. A file stays locked, so that programs that this one starts leave it as it is.
fn stop() {
    if let Some(at) = end() {
        os::unmap(at, size_of::<File>());
    }
}

/// Notes that the profiler is there.
pub fn seen() {
    with_file(|file| file.header.seen_ns.store(os::precise_ns(), Relaxed));
}

/// The attached profiler's command, and when it was last seen.
pub fn attached() -> Option<(u64, u64)> {
    with_file(|file| (file.header.phase.load(Relaxed), file.header.seen_ns.load(Relaxed)))
}

fn with_file<T>(change: impl FnOnce(&mut File) -> T) -> Option<T> {
    if FILE.load(Relaxed).is_null() || !forked::is_claimed() {
        return None; // or a child that the C library does not know of, without the mapping
    }
    let guard: Guard = LOCK.lock();
    // SAFETY: null or a mapping that is unmapped after `end`, which takes the lock; the lock makes this the
    // only reference.
    let file = unsafe { FILE.load(Acquire).as_mut() }?;
    let result = change(file);
    // Under the lock: another thread would fail to write it as well, and say so a second time.
    let ended = if profile_memory::write(file) { None } else { take(&guard) };
    drop(guard);
    if let Some(at) = ended {
        warn(format_args!("the profile cannot be written any further; it ends here"));
        os::unmap(at, size_of::<File>());
    }
    Some(result)
}

/// The CPU, or 0 where a filter of system calls may end the process for asking.
fn cpu() -> u32 {
    if files::are_forbidden() { 0 } else { os::cpu() }
}

/// Records a sampled object; without a watch its lifetime cannot be measured.
fn allocated(born: &Allocation) {
    let Some(watched) = born.sampled else { return };
    let call = &born.call;
    let mut stack = unwind::Stack::default();
    os::keep_errno(|| unwind::from(call.caller, &mut stack));
    let now_ns = os::precise_ns();
    with_file(|file| {
        let Some(context) = file.context(stack.frames()) else { return };
        file.changed_context(context);
        file.contexts[context].was_allocated(
            call.size as u64,
            born.alignment as u64,
            1.0 / sample::chance(call.size),
        );
        if !watched {
            file.contexts[context].unwatched += 1;
            return;
        }
        let (thread, cpu) = (born.thread, cpu());
        let live =
            Live { address: born.address as u64, birth_ns: now_ns, context: context as u32 + 1, thread, cpu };
        file.header.lost_live += u64::from(!file.live.insert(live, &mut file.changes));
        file.header.last_ns = now_ns;
        file.changed_header();
    });
}

/// Records the free of the object at `address`, which may be a sample. A thread without a heap has never
/// allocated, so it allocated none of the samples.
fn freed(thread: Option<u32>, address: usize) {
    let now_ns = os::precise_ns();
    if with_file(|file| file.live.has(address as u64)) != Some(true) {
        return; // not sampled: nothing is unwound
    }
    let mut stack = unwind::Stack::default();
    os::keep_errno(|| unwind::beyond_this_module(&mut stack));
    with_file(|file| {
        if file.header.phase.load(Relaxed) >= ENDED {
            return; // the profiler is reading it
        }
        let Some(live) = file.live.remove(address as u64, &mut file.changes) else { return };
        let lifetime_ns = now_ns.saturating_sub(live.birth_ns);
        let class = lifetime_class::of_lifetime_ms(lifetime_ns / 1_000_000);
        file.changed_context(live.context as usize - 1);
        let context: &mut Context = &mut file.contexts[live.context as usize - 1];
        context.was_freed(lifetime_ns, class, Some(live.thread) == thread, live.cpu == cpu());
        if !stack.frames().is_empty() {
            file.freed_in(live.context as usize - 1, stack.frames());
        }
        file.header.last_ns = now_ns;
        file.changed_header();
    });
}

/// Records that the object at `from`, which may be a sample, was moved.
fn moved(from: usize, to: usize) {
    with_file(|file| {
        if let Some(live) = file.live.remove(from as u64, &mut file.changes) {
            file.live.insert(Live { address: to as u64, ..live }, &mut file.changes);
        }
    });
}
