//! Bit vectors of 256 blocks (LLAMA §6.5): find a run of free blocks by shifting and masking whole vectors.

/// One bit for each block of a huge page.
pub type Bits = [u64; 4];

/// No block.
pub const NONE: Bits = [0; 4];
/// Every block.
pub const ALL: Bits = [u64::MAX; 4];

/// `a` shifted down: block `i` gets the bit of block `i + by`.
#[inline]
fn shift_down(a: &Bits, by: usize) -> Bits {
    let (words, bits) = (by / 64, by % 64);
    let mut out = NONE;
    for (i, word) in out.iter_mut().enumerate() {
        let low = if i + words < 4 { a[i + words] } else { 0 };
        let high = if i + words + 1 < 4 { a[i + words + 1] } else { 0 };
        *word = if bits == 0 { low } else { low >> bits | high << (64 - bits) };
    }
    out
}

#[inline]
fn and(a: &Bits, b: &Bits) -> Bits {
    [a[0] & b[0], a[1] & b[1], a[2] & b[2], a[3] & b[3]]
}

/// Whether no bit is set.
#[inline(always)]
pub fn is_none(a: &Bits) -> bool {
    a[0] | a[1] | a[2] | a[3] == 0
}

/// One bit.
#[inline]
pub fn get(a: &Bits, i: usize) -> bool {
    a[i / 64] >> (i % 64) & 1 == 1
}

/// Set bits.
#[inline]
pub fn count(a: &Bits) -> usize {
    a.iter().map(|word| word.count_ones() as usize).sum()
}

/// The blocks from which `length` set bits follow, themselves included; no vector has a run of more than 256.
#[inline]
pub fn starts_of_runs(a: &Bits, length: usize) -> Bits {
    if length > 256 {
        return NONE;
    }
    let (mut out, mut have) = (*a, 1);
    while have < length {
        let step = have.min(length - have);
        out = and(&out, &shift_down(&out, step));
        have += step;
    }
    out
}

/// The first block at a multiple of `alignment` blocks (a power of two ≤ 256) from which `length` set bits
/// follow.
#[inline]
pub fn find_run(a: &Bits, length: usize, alignment: usize) -> Option<usize> {
    let runs = if length == 1 { *a } else { starts_of_runs(a, length) };
    let aligned = match alignment {
        1 => u64::MAX,
        2 => 0x5555_5555_5555_5555,
        4 => 0x1111_1111_1111_1111,
        8 => 0x0101_0101_0101_0101,
        16 => 0x0001_0001_0001_0001,
        32 => 0x0000_0001_0000_0001,
        _ => 1,
    };
    for (i, &word) in runs.iter().enumerate() {
        let hit = word & aligned;
        if hit != 0 && (alignment <= 64 || (i * 64).is_multiple_of(alignment)) {
            return Some(i * 64 + hit.trailing_zeros() as usize);
        }
    }
    None
}

/// floor(log2(longest run of set bits)); `None` for no bit.
#[inline]
pub fn log2_longest_run(a: &Bits) -> Option<usize> {
    if is_none(a) {
        return None;
    }
    let (mut runs, mut log2) = (*a, 0);
    while log2 < 8 {
        let doubled = and(&runs, &shift_down(&runs, 1 << log2));
        if is_none(&doubled) {
            break;
        }
        (runs, log2) = (doubled, log2 + 1);
    }
    Some(log2)
}

/// The vector with `length` bits set from `start` on.
#[inline]
pub fn range(start: usize, length: usize) -> Bits {
    let mut out = NONE;
    for (i, word) in out.iter_mut().enumerate() {
        let (from, to) = (start.max(i * 64), (start + length).min(i * 64 + 64));
        if from < to {
            *word = (u64::MAX >> (64 - (to - from))) << (from - i * 64);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bit(a: &Bits, i: usize) -> bool {
        a[i / 64] >> (i % 64) & 1 == 1
    }

    fn sparse() -> impl Strategy<Value = Bits> {
        prop_oneof![
            any::<Bits>(),
            any::<[Bits; 3]>().prop_map(|v| {
                let mut out = NONE;
                for i in 0..4 {
                    out[i] = v[0][i] | v[1][i] | v[2][i];
                }
                out
            }),
            (0usize..256, 1usize..256).prop_map(|(start, length)| range(start, length.min(256 - start)))
        ]
    }

    proptest! {
        #[test]
        fn find_run_is_the_first_aligned_run(a in sparse(), length in 1usize..257, shift in 0u32..9) {
            let alignment = 1usize << shift;
            let plain = (0..256).step_by(alignment)
                .find(|&start| start + length <= 256 && (start..start + length).all(|i| bit(&a, i)));
            prop_assert_eq!(find_run(&a, length, alignment), plain);
        }

        #[test]
        fn longest_run_agrees_with_counting(a in sparse()) {
            let (mut longest, mut run) = (0usize, 0usize);
            for i in 0..256 {
                run = if bit(&a, i) { run + 1 } else { 0 };
                longest = longest.max(run);
            }
            prop_assert_eq!(log2_longest_run(&a), (longest > 0).then(|| longest.ilog2() as usize));
        }

        #[test]
        fn range_sets_exactly_its_bits(start in 0usize..256, length in 0usize..257) {
            let length = length.min(256 - start);
            let a = range(start, length);
            prop_assert_eq!(count(&a), length);
            for i in 0..256 {
                prop_assert_eq!(bit(&a, i), i >= start && i < start + length);
            }
        }
    }
}
