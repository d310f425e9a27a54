//! Records every allocation and free into a file (docs/trace.md), for replay, oracles and evaluation.
//!
//! While a trace is on, predictions are not cached and no span has a matching tag, so every call takes the
//! slow path and is recorded here; while it is off, the fast paths do not check for it.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

use crate::system::claim;
use crate::system::files;
use crate::system::forked;
use crate::system::lock::Lock;
use crate::system::observers::{self, Allocation, Observer};
use crate::system::os;
use crate::system::text::warn;
use crate::thread::current;

const RECORD_BYTES: usize = 48;
const HEADER_BYTES: usize = 64;
/// Offsets in the header: of the process id, and of whether the trace is whole.
const PID_AT: usize = 16;
const STATE_AT: usize = 20;
/// The process records, or ended before it could say more; and the trace has all until the process's end.
const OPEN: u32 = 1;
const WHOLE: u32 = 2;
const BUFFER_BYTES: usize = RECORD_BYTES * 1024;

static FD: AtomicI32 = AtomicI32::new(-1);
/// Device and inode of the trace file.
static FILE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static START_NS: AtomicU64 = AtomicU64::new(0);
static LOCK: Lock = Lock::new();

struct Buffer(UnsafeCell<([u8; BUFFER_BYTES], usize)>);
// SAFETY: used only with LOCK held.
unsafe impl Sync for Buffer {}
static BUFFER: Buffer = Buffer(UnsafeCell::new(([0; BUFFER_BYTES], 0)));

/// Starts recording into the file that `path` names; `%p` in it is replaced by the process id.
pub fn start(path: &[u8]) {
    let shown = core::str::from_utf8(path).unwrap_or("(not UTF-8)");
    let claimed = match claim::claim(path, PID_AT) {
        Ok(claimed) => claimed,
        Err(refusal) => return claim::explain(refusal, "trace file", path, "nothing is recorded"),
    };
    let fd = claimed.fd;
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(b"MAYFLYTR");
    header[8..12].copy_from_slice(&1u32.to_le_bytes());
    header[12..16].copy_from_slice(&(RECORD_BYTES as u32).to_le_bytes());
    header[STATE_AT..24].copy_from_slice(&OPEN.to_le_bytes());
    header[PID_AT..20].copy_from_slice(&os::process_id().to_le_bytes());
    header[24..32].copy_from_slice(&os::unix_ns().to_le_bytes());
    if !files::write(fd, &header) || !forked::claim_process() {
        // It stays locked: programs that this one starts are silent.
        return warn(format_args!("trace file {shown} cannot be written; nothing is recorded"));
    }
    START_NS.store(os::precise_ns(), Relaxed);
    FILE.iter().zip(claimed.identity).for_each(|(known, number)| known.store(number, Relaxed));
    FD.store(fd, Relaxed);
    observers::register(&OBSERVER);
    observers::set_observes_all(true);
    current::make_frees_slow();
}

static OBSERVER: Observer = Observer { allocated, freed, in_child, before_abort, ..Observer::IDLE };

fn allocated(born: &Allocation) {
    if !observers::observes_all() {
        return; // a sample, for another observer
    }
    let call = &born.call;
    let long = [born.address as u64, call.size as u64, call.caller as u64];
    record(long, [born.thread, born.sequence, 1, born.height as u32]);
}

fn freed(thread: Option<u32>, address: usize) {
    record([address as u64, 0, 0], [thread.unwrap_or(0), 0, 2, 0]);
}

fn record(long: [u64; 3], short: [u32; 4]) {
    if !forked::is_claimed() {
        return; // a child that the C library does not know of
    }
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
    if !observers::observes_all() {
        return;
    }
    let fd = FD.load(Relaxed);
    if !is_there() || !files::write(fd, bytes) {
        observers::set_observes_all(false);
        warn(format_args!("the trace file cannot be written any further; it ends here"));
    }
}

/// Whether the descriptor is still the trace's. Programs such as daemons close descriptors that they did not
/// open, and may then reuse the number for their own file.
fn is_there() -> bool {
    files::identity(FD.load(Relaxed)) == Some([0, 1].map(|i| FILE[i].load(Relaxed)))
}

/// Writes the buffer at the end of the process, after waiting for other threads that are recording. A thread
/// that ends the process from a signal handler may have interrupted its own recording: then the buffer is
/// lost, and the process ends.
pub fn flush_at_end() {
    const PATIENCE: u32 = 1000;
    if !observers::observes_all() {
        return;
    }
    for _ in 0..PATIENCE {
        if let Some(_guard) = LOCK.try_lock() {
            flush_locked();
            if observers::observes_all() && is_there() {
                let whole = WHOLE.to_le_bytes();
                // SAFETY: the piece is an array. A pipe has no such place, and needs none.
                unsafe {
                    let piece = (whole.as_ptr().addr(), whole.len(), STATE_AT);
                    files::write_at(FD.load(Relaxed), core::iter::once(piece));
                }
            }
            return;
        }
        os::sleep_ms(1);
    }
}

/// The caller holds the lock.
fn flush_locked() {
    // SAFETY: the lock is held.
    let (buffer, used) = unsafe { &mut *BUFFER.0.get() };
    write(&buffer[..core::mem::take(used)]);
}

/// Writes the buffer before the process aborts, unless the aborting thread was recording.
fn before_abort() {
    if observers::observes_all()
        && let Some(_guard) = LOCK.try_lock()
    {
        flush_locked();
    }
}

/// A forked child does not write into its parent's file.
fn in_child() {
    if observers::observes_all() {
        observers::set_observes_all(false);
        if is_there() {
            files::close(FD.load(Relaxed));
        }
        // SAFETY: the forking thread held the fork guard exclusively: no other thread was recording, and the
        // child has one thread.
        unsafe { (*BUFFER.0.get()).1 = 0 };
    }
}
