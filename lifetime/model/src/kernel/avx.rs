//! The product with vector instructions of x86-64.

use core::arch::x86_64::*;

use super::{State, Sums};
use crate::file::MAX_HIDDEN;

cpufeatures::new!(features_avx2, "avx2");
cpufeatures::new!(features_avx512, "avx512f", "avx512bw");

/// Whether this processor has the instructions of [`avx2`].
pub fn has_avx2() -> bool {
    features_avx2::get()
}

/// Whether this processor has the instructions of [`avx512`].
pub fn has_avx512() -> bool {
    features_avx512::get() && has_vnni()
}

fn has_vnni() -> bool {
    const EXTENDED_FEATURES: u32 = 7;
    const AVX512_VNNI: u32 = 1 << 11; // of ecx
    #[allow(unused_unsafe)] // newer compilers know that every x86-64 has the instruction
    // SAFETY: every x86-64 has the instruction, and processors with AVX2 have this leaf.
    let leaf = unsafe { __cpuid_count(EXTENDED_FEATURES, 0) };
    leaf.ecx & AVX512_VNNI != 0
}

/// A row of 64 bytes holds four weights of 16 rows.
const LANES: usize = 16;

/// As [`super::plain`].
#[target_feature(enable = "avx2")]
pub fn avx2(weights: &[i8], hidden: usize, state: &State, sums: &mut Sums) {
    const ACCUMULATORS: usize = 8; // of four rows, each in two halves
    let rows = 4 * hidden;
    let mut wide = [0i16; MAX_HIDDEN];
    wide.iter_mut().zip(state).for_each(|(wide, &unit)| *wide = i16::from(unit));
    for first in (0..rows).step_by(4 * ACCUMULATORS) {
        let mut halves = [_mm256_setzero_si256(); ACCUMULATORS];
        for (quads, state) in weights.chunks_exact(4 * rows).zip(wide.chunks_exact(4)) {
            let state = state.iter().rev().fold(0, |four, &unit| four << 16 | i64::from(unit as u16));
            let state = _mm256_set1_epi64x(state);
            for (half, quads) in halves.iter_mut().zip(quads[4 * first..].chunks_exact(16)) {
                // SAFETY: 16 bytes are there.
                let quads = _mm256_cvtepi8_epi16(unsafe { _mm_loadu_si128(quads.as_ptr().cast()) });
                *half = _mm256_add_epi32(*half, _mm256_madd_epi16(quads, state));
            }
        }
        for (pair, sums) in halves.chunks_exact(2).zip(sums[first..].chunks_exact_mut(8)) {
            let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_hadd_epi32(pair[0], pair[1]));
            // SAFETY: 8 numbers are there.
            unsafe { _mm256_storeu_si256(sums.as_mut_ptr().cast(), both) };
        }
    }
}

/// As [`super::plain`]. The instruction takes the state unsigned: it is counted from 0, and `correction`
/// undoes that.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub fn avx512(weights: &[i8], hidden: usize, state: &State, correction: &Sums, sums: &mut Sums) {
    const ACCUMULATORS: usize = 4;
    let rows = 4 * hidden;
    for first in (0..rows).step_by(LANES * ACCUMULATORS) {
        let mut totals = [_mm512_setzero_si512(); ACCUMULATORS];
        for (total, correction) in totals.iter_mut().zip(correction[first..].chunks_exact(LANES)) {
            // SAFETY: 16 numbers are there.
            *total = unsafe { _mm512_loadu_si512(correction.as_ptr().cast()) };
        }
        for (quads, state) in weights.chunks_exact(4 * rows).zip(state.chunks_exact(4)) {
            let state =
                i32::from_le_bytes([state[0], state[1], state[2], state[3]].map(|unit| unit as u8 ^ 0x80));
            let state = _mm512_set1_epi32(state);
            for (total, quads) in totals.iter_mut().zip(quads[4 * first..].chunks_exact(4 * LANES)) {
                // SAFETY: 64 bytes are there.
                let quads = unsafe { _mm512_loadu_si512(quads.as_ptr().cast()) };
                *total = _mm512_dpbusd_epi32(*total, state, quads);
            }
        }
        for (total, sums) in totals.iter().zip(sums[first..].chunks_exact_mut(LANES)) {
            // SAFETY: 16 numbers are there.
            unsafe { _mm512_storeu_si512(sums.as_mut_ptr().cast(), *total) };
        }
    }
}
