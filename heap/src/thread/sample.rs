//! Which objects are chosen as samples, for a profile ([`crate::observe::profile`]).
//!
//! Objects are sampled by allocated bytes: the distance to the next one is drawn from an exponential distribution, so what is
//! seen stands for all that was allocated, weighted by size. Each bin counts down cells of its own ([`crate::thread::bin::Bin`]):
//! when it takes cells in hand it takes no more than come before the one to be sampled, and that one finds none at hand and
//! takes the slow path. So the fast paths neither count nor know of it, profile or not.

use core::cell::Cell;
use core::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, Release},
};

use crate::system::os;
use crate::units::geometry::MAX_SMALL_BYTES;
use crate::units::size_class::{self, GRANULE_BYTES};

/// What [`crate::thread::bin::Bin`] counts down from while nothing is sampled.
pub const NEVER: u32 = u32::MAX;
/// Bytes between two samples, on average, unless the configuration says otherwise.
pub const MEAN_BYTES: usize = 512 << 10;

static SAMPLING: AtomicBool = AtomicBool::new(false);
static MEAN: AtomicUsize = AtomicUsize::new(MEAN_BYTES);
static RANDOM: AtomicU64 = AtomicU64::new(0);

/// Whether allocations are sampled.
#[inline]
pub fn sampling() -> bool {
    SAMPLING.load(Relaxed)
}

/// The mean number of bytes between two samples.
pub fn mean_bytes() -> usize {
    MEAN.load(Relaxed)
}

/// Sets it.
pub fn set_mean_bytes(bytes: usize) {
    MEAN.store(bytes, Relaxed);
}

/// Samples from now on.
pub fn start() {
    RANDOM.store(os::precise_ns() ^ u64::from(os::process_id()) << 40, Relaxed);
    SAMPLING.store(true, Release);
}

/// From now on nothing more is sampled.
pub fn stop() {
    SAMPLING.store(false, Relaxed);
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

/// Whether a large object of `size` bytes is sampled; `before`: bytes to the next sample among them, 0: not drawn yet.
pub fn large_is_due(before: &Cell<u64>, size: usize) -> bool {
    if !sampling() {
        return false;
    }
    let draw = || draw_bytes().max(1.0) as u64;
    let left = match before.get() {
        0 => draw(), // the heap's first
        left => left,
    };
    let due = left <= size as u64;
    before.set(if due { draw() } else { left - size as u64 });
    due
}

/// The chance that an object of `size` bytes is sampled.
pub fn chance(size: usize) -> f64 {
    let bytes = if size <= MAX_SMALL_BYTES {
        // In bins, cells are counted.
        size_class::CELL_BYTES[size_class::of_granules(size.div_ceil(GRANULE_BYTES))] as usize
    } else {
        size
    };
    -libm::expm1(-(bytes as f64) / MEAN.load(Relaxed) as f64)
}
