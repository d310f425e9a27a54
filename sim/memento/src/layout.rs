//! Where things lie in a process's Memento region (§3.1, §3.2). Class, lane, arena and object follow from an
//! address by shifts and by divisions through constants. `sim/shim/layout.h` has the same in C; a test
//! compares the two.
//!
//! Left open by the paper, taken here:
//! - Each thread has a *lane* of its own, a range that the hardware knows (§4), with a range of 64 MiB for
//!   each class in it. The bump pointers never hand an address out twice, and functions take "tens of MBs"
//!   (§5), which may all be of one class. A lane is 4 GiB then, which four tables map besides the leaves'; a
//!   wider class would need more. Where a class's addresses are used up, software allocates.
//! - A class's arenas begin some pages into its range, at another distance than its neighbours', or the
//!   classes' first pages would all fall into one set of the TLBs.
//! - An arena's header is one cache line, followed by the objects.

use crate::{Exception, Result};

/// Size classes: 8 to 512 bytes in steps of 8.
pub const CLASSES: usize = 64;
/// Bytes between one size class and the next.
pub const CLASS_STEP_BYTES: u64 = 8;
/// The largest object that the hardware allocates.
pub const LARGEST_BYTES: u64 = CLASSES as u64 * CLASS_STEP_BYTES;
/// Objects in an arena, and bits in its bitmap.
pub const OBJECTS: usize = 256;
/// An arena's header: VA 8 B, bitmap 32, bypass counter 2 (and 6 unused), prev 8, next 8.
pub const HEADER_BYTES: u64 = 64;
/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;
/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
/// Threads of a process that can have arenas of their own.
pub const LANES: usize = 32;
/// log2 of the bytes of one class of one lane.
pub const CLASS_SHIFT: u32 = 26;
/// log2 of the bytes of one lane.
pub const LANE_SHIFT: u32 = CLASS_SHIFT + CLASSES.trailing_zeros();
/// Bytes of a whole region.
pub const REGION_BYTES: u64 = (LANES as u64) << LANE_SHIFT;
/// Where the shim asks the kernel for the region.
pub const REGION_START: u64 = 0x6000_0000_0000;

/// Bytes of a class's objects.
#[inline]
pub const fn object_bytes(class: usize) -> u64 {
    (class as u64 + 1) * CLASS_STEP_BYTES
}

/// Bytes of a class's arenas: header and objects, rounded up to pages.
#[inline]
pub const fn arena_bytes(class: usize) -> u64 {
    (HEADER_BYTES + OBJECTS as u64 * object_bytes(class)).next_multiple_of(PAGE_BYTES)
}

/// How many of an arena's last objects have no room. All have, unless an arena is to be as many whole pages
/// as its objects are: then the header replaces the last ones, whose few bytes would take a page more.
#[inline]
pub const fn absent_objects(class: usize, whole_pages: bool) -> usize {
    let bytes = object_bytes(class);
    let room = ((OBJECTS as u64 * bytes).next_multiple_of(PAGE_BYTES) - HEADER_BYTES) / bytes;
    if whole_pages && room < OBJECTS as u64 { OBJECTS - room as usize } else { 0 }
}

/// The class of a request, by rounding up to the next 8 bytes.
///
/// # Errors
/// [`Exception::Size`]: no class is that large.
#[inline]
pub fn class_of(size: u64) -> Result<usize> {
    if (1..=LARGEST_BYTES).contains(&size) {
        Ok(((size - 1) / CLASS_STEP_BYTES) as usize)
    } else {
        Err(Exception::Size)
    }
}

/// How far into its range a class's arenas begin. Two classes share a distance: C's malloc uses every second.
#[inline]
const fn stagger(class: usize) -> u64 {
    class as u64 / 2 * PAGE_BYTES
}

/// Where a lane's arenas of a class begin and where they must end, from the region's start.
#[inline]
pub const fn class_range(class: usize, lane: usize) -> (u64, u64) {
    let start = (lane as u64) << LANE_SHIFT | (class as u64) << CLASS_SHIFT;
    (start + stagger(class), start + (1 << CLASS_SHIFT))
}

/// The lane and the class that an offset into the region belongs to.
#[inline]
pub const fn lane_and_class(offset: u64) -> (usize, usize) {
    ((offset >> LANE_SHIFT) as usize, (offset >> CLASS_SHIFT) as usize % CLASSES)
}

/// An object's place, as its address encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Its size class.
    pub class: usize,
    /// The thread whose arena it is in.
    pub lane: usize,
    /// The arena's virtual address.
    pub arena: u64,
    /// Which of the arena's objects it is.
    pub index: usize,
}

/// Finds class, lane, arena and index of the object at `address` in the region that starts at `start`.
///
/// # Errors
/// The address is outside the region, or at no object of an arena.
#[inline]
pub fn locate(start: u64, address: u64) -> Result<Location> {
    let offset = address.wrapping_sub(start);
    if offset >= REGION_BYTES {
        return Err(Exception::NotInRegion);
    }
    let (lane, class) = lane_and_class(offset);
    let in_class =
        (offset & ((1 << CLASS_SHIFT) - 1)).checked_sub(stagger(class)).ok_or(Exception::NotAnObject)?;
    let in_arena = in_class % arena_bytes(class);
    let body = in_arena.wrapping_sub(HEADER_BYTES);
    let size = object_bytes(class);
    if in_arena < HEADER_BYTES || !body.is_multiple_of(size) || body / size >= OBJECTS as u64 {
        return Err(Exception::NotAnObject);
    }
    Ok(Location { class, lane, arena: address - in_arena, index: (body / size) as usize })
}
