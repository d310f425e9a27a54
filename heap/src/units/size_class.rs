//! The cell sizes of small objects, for block spans that are divided by size (`spans = cells`).
//!
//! Steps of 16 B up to 256 B, then about an eighth of the size up to 1 KiB, then sizes that divide a 16 KiB
//! span without a rest. The paper has no size classes (its spans mix sizes, see [`crate::thread::lines`]).
//! Cells of one size let any object of the same lifetime class reuse a freed cell at once.

use crate::units::geometry::{MAX_SMALL_BYTES, SPAN_BYTES};

/// Cell sizes in bytes.
pub const CELL_BYTES: [u16; COUNT] = [
    16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320, 352, 384, 416, 448,
    480, 512, 576, 640, 704, 768, 832, 896, 960, 1024, 1088, 1168, 1248, 1360, 1488, 1632, 1808, 2048, 2336,
    2720, 3264, 4096, 5456, 8192, 16384,
];

/// The number of size classes.
pub const COUNT: usize = 47;

/// From this class on a span has at most [`FEW`] cells.
pub const FIRST_OF_FEW: usize = {
    let mut class = 0;
    while cells(class) > FEW {
        class += 1;
    }
    class
};
/// So few cells that a search for a free one rather finds none.
pub const FEW: usize = 25;

/// Sizes are rounded up to multiples of this before the class is looked up.
pub const GRANULE_BYTES: usize = 16;

const GRANULES: usize = MAX_SMALL_BYTES / GRANULE_BYTES + 1;

static CLASS_OF_GRANULES: [u8; GRANULES] = {
    let mut table = [0u8; GRANULES];
    let (mut granules, mut class) = (0, 0);
    while granules < GRANULES {
        if granules * GRANULE_BYTES > CELL_BYTES[class] as usize {
            class += 1;
        }
        table[granules] = class as u8;
        granules += 1;
    }
    table
};

/// The class of objects of `granules` × 16 B; `granules` is at most 1024.
#[inline(always)]
pub fn of_granules(granules: usize) -> usize {
    CLASS_OF_GRANULES[granules] as usize
}

/// The smallest class whose cells hold `size` bytes and all begin at multiples of `alignment`
/// (a power of two); `None` where a block of its own serves better.
pub fn of_aligned(size: usize, alignment: usize) -> Option<usize> {
    if size > MAX_SMALL_BYTES || alignment > MAX_SMALL_BYTES {
        return None;
    }
    (of_granules(size.div_ceil(GRANULE_BYTES))..COUNT)
        .find(|&class| (CELL_BYTES[class] as usize).is_multiple_of(alignment))
}

/// Cells in a span of this class.
#[inline(always)]
pub const fn cells(class: usize) -> usize {
    SPAN_BYTES / CELL_BYTES[class] as usize
}

/// `offset / cell size` is `(offset * reciprocal) >> 32` for every offset within a span.
pub const fn reciprocal(class: usize) -> u32 {
    ((1u64 << 32).div_ceil(CELL_BYTES[class] as u64)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_fits_its_cell_and_not_the_one_below() {
        for size in 1..=MAX_SMALL_BYTES {
            let class = of_granules(size.div_ceil(GRANULE_BYTES));
            assert!(size <= CELL_BYTES[class] as usize, "{size}");
            assert!(class == 0 || size > CELL_BYTES[class - 1] as usize, "{size}");
        }
        assert_eq!(of_granules(0), 0);
    }

    #[test]
    fn the_reciprocal_divides_exactly() {
        for (class, &bytes) in CELL_BYTES.iter().enumerate() {
            for offset in 0..SPAN_BYTES {
                let quotient = (offset as u64 * reciprocal(class) as u64) >> 32;
                assert_eq!(quotient as usize, offset / bytes as usize);
            }
        }
    }

    #[test]
    fn cells_waste_at_most_a_twentieth_of_a_span_and_fit_the_bits() {
        for (class, &bytes) in CELL_BYTES.iter().enumerate() {
            let used = cells(class) * bytes as usize;
            assert!(SPAN_BYTES - used <= SPAN_BYTES / 20, "class {class} uses {used}");
            assert!(cells(class) <= 1024);
        }
    }

    #[test]
    fn aligned_classes_are_aligned() {
        for shift in 4..=13 {
            for size in [1, 17, 100, 1000, 4097, 8192] {
                let class = of_aligned(size, 1 << shift).expect("8192 is a multiple of all of them");
                assert_eq!(CELL_BYTES[class] as usize % (1 << shift), 0);
            }
        }
        assert_eq!(of_aligned(MAX_SMALL_BYTES + 1, 16), None);
    }
}
