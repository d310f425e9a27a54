//! The product of the recurrent weights with the hidden state, in integers, so that it is the same on every
//! processor: AVX-512 with VNNI, AVX2, or neither.
//!
//! Weights lie as four of one row beside the same four of the next row (docs/lifetime.md): one instruction
//! multiplies four units of the state with four weights each of 16 rows, and nothing is summed across lanes.

#[cfg(target_arch = "x86_64")]
pub mod avx;

use crate::file::MAX_HIDDEN;

/// The instructions that a kernel uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// AVX-512F, BW and VNNI.
    Avx512,
    /// AVX2.
    Avx2,
    /// The instructions that every processor has.
    Plain,
}

impl Kernel {
    /// The best one that this processor can run.
    pub fn best() -> Self {
        match () {
            () if Kernel::Avx512.works() => Kernel::Avx512,
            () if Kernel::Avx2.works() => Kernel::Avx2,
            () => Kernel::Plain,
        }
    }

    /// Whether this processor can run it.
    pub fn works(self) -> bool {
        match self {
            Kernel::Plain => true,
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => avx::has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512 => avx::has_avx512(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }
}

/// The hidden state in steps of 1/127.
pub type State = [i8; MAX_HIDDEN];
/// The product for each row.
pub type Sums = [i32; 4 * MAX_HIDDEN];

/// `sums[row]` = the weights of the row times the state. `weights` has `4 * hidden` rows of `hidden`,
/// `hidden` a multiple of 16.
#[inline(always)]
pub fn plain(weights: &[i8], hidden: usize, state: &State, sums: &mut Sums) {
    let sums = &mut sums[..4 * hidden];
    sums.fill(0);
    for (quads, state) in weights.chunks_exact(4 * 4 * hidden).zip(state.chunks_exact(4)) {
        for (sum, quad) in sums.iter_mut().zip(quads.chunks_exact(4)) {
            for (&weight, &unit) in quad.iter().zip(state) {
                *sum += i32::from(weight) * i32::from(unit);
            }
        }
    }
}
