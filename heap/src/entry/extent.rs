//! The usable size of an object, and resizing in place.

use core::sync::atomic::Ordering::Relaxed;

use crate::pages::{direct, large_blocks, region};
use crate::span::cells::Role;
use crate::span::large_object::LargeObject;
use crate::system::text::misuse;
use crate::system::{glibc_heap, observers};
use crate::thread::{current, fork_guard, large, lines};
use crate::units::call::Call;
use crate::units::geometry::*;
use crate::units::size_class::{self, GRANULE_BYTES};

/// The bytes that the object at `address` may use; 0 for null.
pub fn usable_size(address: usize, caller: usize) -> usize {
    if address == 0 {
        return 0;
    }
    if let Some(bytes) = cell_bytes(address) {
        return bytes;
    }
    let _guard = fork_guard::enter(current::heap());
    match extent(address, caller) {
        Extent::Cell(bytes) | Extent::Direct(bytes) | Extent::Glibc(bytes) => bytes,
        Extent::Lines => lines::usable_size(address, caller),
        Extent::Blocks(count) => count * BLOCK_BYTES,
    }
}

/// The size of the live cell that begins at `address`, which covers nearly all objects. Servers ask at each
/// call.
#[inline]
fn cell_bytes(address: usize) -> Option<usize> {
    let span = region::span_if_plain(address).filter(|span| span.owner() != 0)?;
    let cell = span.cell_at(address)?;
    span.is_live(cell).then(|| span.cell_bytes.load(Relaxed) as usize)
}

/// Reports a pointer that is of no object here.
#[cold]
pub(crate) fn not_of_this_heap(address: usize, caller: usize) -> ! {
    match direct::size_around(address) {
        Some(size) => misuse("invalid pointer, inside an object", address, size, caller),
        None => misuse("invalid pointer, not of this heap or freed already", address, 0, caller),
    }
}

enum Extent {
    Cell(usize),
    Lines,
    Blocks(usize),
    Direct(usize),
    /// An object of the C library's own heap.
    Glibc(usize),
}

fn extent(address: usize, caller: usize) -> Extent {
    if !region::holds(address) {
        let glibc = || glibc_heap::usable_size(address).map(Extent::Glibc);
        let found = direct::size(address).map(Extent::Direct).or_else(glibc);
        return found.unwrap_or_else(|| not_of_this_heap(address, caller));
    }
    let span = region::span(address);
    match span.owner() {
        0 if span.role() == Role::Lines => Extent::Lines,
        0 => Extent::Blocks(large::blocks(address).unwrap_or_else(|| large::not_live(address, caller))),
        _ => match span.cell_at(address) {
            Some(cell) if span.is_live(cell) => Extent::Cell(span.cell_bytes.load(Relaxed) as usize),
            _ => {
                let cell_bytes = span.cell_bytes.load(Relaxed) as usize;
                misuse("invalid pointer, no live object begins here", address, cell_bytes, caller);
            }
        },
    }
}

/// Resizes the object at `address`, which is not null, in place or by moving its pages; `None` if the caller
/// must copy it.
pub fn resize_in_place(address: usize, call: &Call) -> Option<*mut u8> {
    if observers::observes_all() {
        return None; // a trace has allocations and frees only
    }
    let size = call.size;
    // The smallest cells hold the smallest objects: there is no better place for those.
    let is_worth_it = |bytes: usize| size >= bytes / 2 || bytes == MIN_ALIGNMENT;
    let fits = |bytes: usize| (size <= bytes && is_worth_it(bytes)).then_some(address as *mut u8);
    if let Some(bytes) = cell_bytes(address) {
        return fits(bytes);
    }
    let _guard = fork_guard::enter(current::heap());
    match extent(address, call.caller) {
        Extent::Cell(bytes) => fits(bytes),
        Extent::Lines => lines::resize(address, size, call.caller).then_some(address as *mut u8),
        Extent::Blocks(count) => {
            if size <= lines::max_small_bytes() || size >= MIN_DIRECT_BYTES {
                return None;
            }
            let wanted = size.div_ceil(BLOCK_BYTES);
            let resized = || large_blocks::resize(address, count, wanted);
            (large::fits(count, wanted) || resized()).then_some(address as *mut u8)
        }
        Extent::Glibc(_) => None,
        Extent::Direct(_) if size < MIN_DIRECT_BYTES || size > isize::MAX as usize => None,
        Extent::Direct(_) => direct::resize(address, size).map(|moved| {
            if observers::observes_samples() && moved != address {
                observers::sample_moved(address, moved);
            }
            moved as *mut u8
        }),
    }
}

/// Whether the object at `address`, which was just allocated, reads as zero: its memory is fresh from the
/// operating system.
pub fn reads_as_zero(address: usize) -> bool {
    !region::holds(address) || large_blocks::object_at(address).is_some_and(LargeObject::is_untouched)
}

/// Resizes the object at `address` where it lies, to `size` bytes if there is room; returns the bytes that it
/// may use afterwards.
pub fn resize_unmoved(address: usize, size: usize, caller: usize) -> usize {
    let _guard = fork_guard::enter(current::heap());
    if observers::observes_all() {
        return usable_size(address, caller); // a trace has allocations and frees only
    }
    match extent(address, caller) {
        Extent::Blocks(count) if size > lines::max_small_bytes() && size < MIN_DIRECT_BYTES => {
            let wanted = size.div_ceil(BLOCK_BYTES);
            if !large::fits(count, wanted) {
                large_blocks::resize(address, count, wanted);
            }
        }
        Extent::Direct(_) if size >= MIN_DIRECT_BYTES && size <= isize::MAX as usize => {
            direct::resize_unmoved(address, size);
        }
        Extent::Lines => {
            lines::resize(address, size, caller);
        }
        _ => {}
    }
    usable_size(address, caller)
}

/// The bytes that an object of `size` bytes, aligned to `alignment`, may use; 0 if none can be that large. A
/// call's cell may be larger where its key equals another call's.
pub fn size_in_use(size: usize, alignment: usize) -> usize {
    if size > isize::MAX as usize || alignment > isize::MAX as usize {
        return 0;
    }
    if lines::chosen() && size <= MAX_LINES_BYTES && alignment < BLOCK_BYTES / 2 {
        return size;
    }
    let cell = if alignment <= MIN_ALIGNMENT {
        (size <= lines::max_small_bytes()).then(|| size_class::of_granules(size.div_ceil(GRANULE_BYTES)))
    } else {
        size_class::of_aligned(size, alignment)
    };
    match cell {
        Some(class) => usize::from(size_class::CELL_BYTES[class]),
        None if size >= MIN_DIRECT_BYTES || alignment > HUGE_PAGE_BYTES => {
            round_up(size.max(1), PAGE_BYTES).unwrap_or(0)
        }
        None => size.max(1).next_multiple_of(BLOCK_BYTES),
    }
}
