//! Chooses which objects to sample for a profile ([`crate::observe::profile`]).
//!
//! Objects are sampled by allocated bytes: the distance to the next sample is drawn from an exponential
//! distribution, so samples represent all allocations, weighted by size. Each bin counts down its own cells
//! ([`crate::thread::bin::Bin`]): it caches only the cells before the next sample, so the sampled allocation
//! finds none cached and takes the slow path. The fast paths neither count nor check for a profile.

use core::cell::Cell;
use core::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, Release},
};

use crate::system::os;
use crate::thread::lines;
use crate::units::size_class::{self, GRANULE_BYTES};

/// The counter of [`crate::thread::bin::Bin`] while nothing is sampled.
pub const NEVER: u32 = u32::MAX;
/// Mean bytes between two samples, by default.
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

/// Sets the mean number of bytes between two samples.
pub fn set_mean_bytes(bytes: usize) {
    MEAN.store(bytes, Relaxed);
}

/// Starts sampling.
pub fn start() {
    RANDOM.store(os::precise_ns() ^ u64::from(os::process_id()) << 40, Relaxed);
    SAMPLING.store(true, Release);
}

/// Stops sampling.
pub fn stop() {
    SAMPLING.store(false, Relaxed);
}

/// Draws the bytes to the next sample from an exponential distribution.
fn draw_bytes() -> f64 {
    let mut bits = RANDOM.fetch_add(0x9E37_79B9_7F4A_7C15, Relaxed); // SplitMix64
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    let uniform = ((bits ^ bits >> 31) >> 11) as f64 / (1u64 << 53) as f64;
    -libm::log(1.0 - uniform) * MEAN.load(Relaxed) as f64
}

/// Cells of `cell_bytes` to allocate before the next sample; [`NEVER`] while sampling is off.
pub fn cells_before_sample(cell_bytes: usize) -> u32 {
    if !sampling() {
        return NEVER;
    }
    let cells = draw_bytes() / cell_bytes as f64;
    cells.min(f64::from(NEVER - 1)) as u32
}

/// Whether to sample a large object of `size` bytes; `before`: bytes to the next sample, 0 if not drawn yet.
pub fn samples_large(before: &Cell<u64>, size: usize) -> bool {
    if !sampling() {
        return false;
    }
    let draw = || draw_bytes().max(1.0) as u64;
    let left = match before.get() {
        0 => draw(), // the heap's first
        left => left,
    };
    let sampled = left <= size as u64;
    before.set(if sampled { draw() } else { left - size as u64 });
    sampled
}

/// The chance that an object of `size` bytes is sampled.
pub fn chance(size: usize) -> f64 {
    let bytes = if size <= lines::max_small_bytes() {
        // Bins count cells.
        size_class::CELL_BYTES[size_class::of_granules(size.div_ceil(GRANULE_BYTES))] as usize
    } else {
        size
    };
    -libm::expm1(-(bytes as f64) / MEAN.load(Relaxed) as f64)
}
