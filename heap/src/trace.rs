//! Recording every allocation and free into a file (docs/trace.md), for replay, for oracles and for evaluation.
//!
//! While a trace is on, predictions are not cached and no span has a matching tag, so each call takes the slow path and is
//! seen here; while it is off, the fast paths know nothing of it.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};

use crate::config::PATH_BYTES;
use crate::heap::{Call, Heap};
use crate::lock::Lock;
use crate::os;
use crate::report;
use crate::text::warn;
use crate::thread;

const RECORD_BYTES: usize = 48;
const HEADER_BYTES: usize = 64;
const BUFFER_BYTES: usize = RECORD_BYTES * 1024;

static ON: AtomicBool = AtomicBool::new(false);
static FD: AtomicI32 = AtomicI32::new(-1);
static START_NS: AtomicU64 = AtomicU64::new(0);
static LOCK: Lock = Lock::new();

struct Buffer(UnsafeCell<([u8; BUFFER_BYTES], usize)>);
// SAFETY: used with LOCK held only.
unsafe impl Sync for Buffer {}
static BUFFER: Buffer = Buffer(UnsafeCell::new(([0; BUFFER_BYTES], 0)));

/// Whether a trace is being recorded.
#[inline]
pub fn on() -> bool {
    ON.load(Relaxed)
}

/// Starts recording into the file that `path` names, `%p` in it being the process id.
pub fn start(path: &[u8]) {
    let mut name = [0; PATH_BYTES];
    let shown = core::str::from_utf8(path).unwrap_or("(not UTF-8)");
    let fd = report::expand_path(path, &mut name).and_then(os::create);
    let Some(fd) = fd else {
        return warn(format_args!("trace file {shown} cannot be created; nothing is recorded"));
    };
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(b"MAYFLYTR");
    header[8..12].copy_from_slice(&1u32.to_le_bytes());
    header[12..16].copy_from_slice(&(RECORD_BYTES as u32).to_le_bytes());
    header[16..20].copy_from_slice(&os::process_id().to_le_bytes());
    header[24..32].copy_from_slice(&os::unix_ns().to_le_bytes());
    if !os::write(fd, &header) {
        return warn(format_args!("trace file {shown} cannot be written; nothing is recorded"));
    }
    START_NS.store(os::precise_ns(), Relaxed);
    FD.store(fd, Relaxed);
    ON.store(true, Relaxed);
    thread::make_frees_slow();
}

/// The object at `address` was allocated.
pub fn allocated(heap: &Heap, call: &Call, address: usize) {
    let sequence = heap.sequence.get();
    let height = heap.stack_base.get().wrapping_sub(call.stack) as u32;
    record([address as u64, call.size as u64, call.caller as u64], [heap.thread.get(), sequence, 1, height]);
}

/// The object at `address` is about to be freed.
pub fn freed(heap: &Heap, address: usize) {
    record([address as u64, 0, 0], [heap.thread.get(), 0, 2, 0]);
}

fn record(long: [u64; 3], short: [u32; 4]) {
    let _guard = LOCK.lock();
    // SAFETY: the lock is held.
    let (buffer, used) = unsafe { &mut *BUFFER.0.get() };
    let time_ns = os::precise_ns() - START_NS.load(Relaxed);
    let record = &mut buffer[*used..*used + RECORD_BYTES];
    record[..8].copy_from_slice(&time_ns.to_le_bytes());
    for (i, value) in long.iter().enumerate() {
        record[8 + i * 8..16 + i * 8].copy_from_slice(&value.to_le_bytes());
    }
    for (i, value) in short.iter().enumerate() {
        record[32 + i * 4..36 + i * 4].copy_from_slice(&value.to_le_bytes());
    }
    *used += RECORD_BYTES;
    if *used == BUFFER_BYTES {
        *used = 0;
        write(&buffer[..]);
    }
}

fn write(bytes: &[u8]) {
    if ON.load(Relaxed) && !os::write(FD.load(Relaxed), bytes) {
        ON.store(false, Relaxed);
        warn(format_args!("the trace file cannot be written any further; it ends here"));
    }
}

/// Writes what is buffered; at the end of the process.
pub fn flush() {
    let _guard = LOCK.lock();
    // SAFETY: the lock is held.
    let (buffer, used) = unsafe { &mut *BUFFER.0.get() };
    write(&buffer[..core::mem::take(used)]);
}

/// Writes what is buffered before the process aborts, unless the aborting thread is just recording.
pub fn flush_before_abort() {
    if on()
        && let Some(guard) = LOCK.try_lock()
    {
        drop(guard);
        flush();
    }
}

/// A forked child does not write into its parent's file.
pub fn stop_in_child() {
    if on() {
        ON.store(false, Relaxed);
        // SAFETY: the gate of `fork` was shut: no thread was recording, and there is one thread.
        unsafe { (*BUFFER.0.get()).1 = 0 };
    }
}
