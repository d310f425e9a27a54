//! `mremap` on advised memory: a private mapping of the store's pages would continue in the store's file, and
//! past its end.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;

use super::{
    ORIGINALS, Originals, active_calls, advised_ranges, each, fail, first_of, is_plain, lock, map_zeros,
};
use crate::base::page::PAGE_BYTES;

pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_bytes: usize,
    new_bytes: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let Some(Some(real)) = ORIGINALS.get() else {
        fail(libc::ENOSYS);
        return libc::MAP_FAILED;
    };
    // SAFETY: the caller's arguments.
    unsafe {
        mremap_over(real, old, old_bytes, new_bytes, flags, to, || {
            (real.mremap)(old, old_bytes, new_bytes, flags, to)
        })
    }
}

/// As [`mremap`]; other memory is left to the original call.
///
/// # Safety
/// As mremap(2).
pub unsafe fn mremap_over(
    real: &Originals,
    old: *mut c_void,
    old_bytes: usize,
    new_bytes: usize,
    flags: c_int,
    to: *mut c_void,
    original: impl Fn() -> *mut c_void,
) -> *mut c_void {
    let at = old as usize;
    let moves = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
    let (have, want) = (old_bytes.next_multiple_of(PAGE_BYTES), new_bytes.next_multiple_of(PAGE_BYTES));
    let _call = active_calls::begin();
    let is_ours = at.is_multiple_of(PAGE_BYTES)
        && have > 0
        && want > 0
        && (want > have || moves)
        && at.checked_add(have).is_some_and(|end| advised_ranges::overlaps(&(at..end)));
    if is_ours {
        // Held until it is done: nothing of it may become shared in between.
        let _held = lock();
        // An advised range may consist of several mappings, which the system call would refuse.
        if !is_plain(&(at..at + have)) {
            // SAFETY: the caller's arguments.
            return unsafe { move_shared(real, at..at + have, want, flags, to as usize) };
        }
        // By system call: another interposer's function might wait for a thread that waits for this one.
        // SAFETY: the caller's arguments.
        return unsafe { (real.syscall)(libc::SYS_mremap, old, old_bytes, new_bytes, flags, to) }
            as *mut c_void;
    }
    let new = original();
    let now = new as usize..(new as usize).saturating_add(want);
    if new != libc::MAP_FAILED && new != old && advised_ranges::overlaps(&now) {
        // The table has this address of memory advised earlier. The memory moved here was not advised, and
        // may be a file's.
        advised_ranges::forget(&now);
    }
    new
}

/// mremap of a range that holds pages of the store: each mapping moves as it is, and added memory is
/// anonymous. Either all of it moves, or nothing has changed. For that it moves one mapping at a time: Linux
/// 6.17 and later move several by one call, but one that fails in the middle leaves the first ones moved and
/// their former addresses free for other threads. Such a call also moves holes, which are refused here.
///
/// # Safety
/// As mremap(2).
unsafe fn move_shared(
    real: &Originals,
    old: Range<usize>,
    want: usize,
    flags: c_int,
    to: usize,
) -> *mut c_void {
    let failed = |errno| {
        fail(errno);
        libc::MAP_FAILED
    };
    let mut rights = libc::PROT_READ | libc::PROT_WRITE;
    let mut covered = old.start;
    let is_known = each(&old, |part| {
        covered = if part.range.start == covered { part.range.end } else { covered };
        rights = part.rights;
    });
    if !is_known {
        return failed(libc::ENOMEM);
    }
    if covered != old.end {
        return failed(libc::EFAULT);
    }
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let stays = flags & libc::MREMAP_DONTUNMAP != 0;
    if (fixed || stays) && flags & libc::MREMAP_MAYMOVE == 0 || stays && want != old.len() {
        return failed(libc::EINVAL);
    }
    if fixed && (!to.is_multiple_of(PAGE_BYTES) || to < old.end && old.start < to.saturating_add(want)) {
        return failed(libc::EINVAL);
    }
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: as the function's; new mappings lie where the kernel finds room, or at the address that the
    // caller passes.
    unsafe {
        if !fixed && !stays {
            let behind = old.end as *mut c_void;
            let more = want - old.len();
            let found = libc::mmap(behind, more, rights, anonymous | libc::MAP_FIXED_NOREPLACE, -1, 0);
            if found == behind {
                return old.start as *mut c_void;
            }
            if found != libc::MAP_FAILED {
                libc::munmap(found, more); // an old kernel ignores the flag
            }
            if flags & libc::MREMAP_MAYMOVE == 0 {
                return failed(libc::ENOMEM);
            }
        }
        let new = libc::mmap(
            if fixed { to as *mut c_void } else { null_mut() },
            want,
            rights,
            anonymous | if fixed { libc::MAP_FIXED } else { 0 },
            -1,
            0,
        );
        if new == libc::MAP_FAILED {
            return new;
        }
        let new = new as usize;
        // Only now: where there was nothing at the caller's address, the kernel could have put these there.
        let Some(spare) = SpareMappings::new() else {
            libc::munmap(new as *mut c_void, want);
            return failed(libc::ENOMEM);
        };
        let moving = old.start..old.end.min(old.start + want);
        let undo = |moved: usize, spare: SpareMappings, errno: c_int| {
            drop(spare);
            move_back(real, new..new + (moved - old.start), old.start);
            libc::munmap(new as *mut c_void, want);
            failed(errno)
        };
        // In the table before anything shared is there, or else not moved at all.
        if !advised_ranges::add(&(new..new + want)) {
            return undo(old.start, spare, libc::ENOMEM);
        }
        let mut next = moving.start;
        while next < moving.end {
            let mut first = None;
            if !first_of(&(next..moving.end), &mut first) {
                return undo(next, spare, libc::ENOMEM);
            }
            let Some(part) = first.filter(|part| part.range.start == next) else {
                return undo(next, spare, libc::EFAULT);
            };
            let target = new + part.range.start - old.start;
            if !move_pages(real, &part.range, target) {
                return undo(next, spare, errno());
            }
            next = part.range.end;
            // The addresses stay taken, so that no other thread's mapping can get there before all is done.
            let is_taken = match stays {
                true => !part.is_store || map_zeros(&part.range, part.rights),
                // Neighbours of this kind are one mapping.
                false => map_zeros(&part.range, libc::PROT_NONE),
            };
            if !is_taken {
                return undo(next, spare, errno());
            }
        }
        if !stays && libc::munmap(old.start as *mut c_void, old.len()) != 0 {
            return undo(next, spare, errno());
        }
        new as *mut c_void
    }
}

fn errno() -> c_int {
    // SAFETY: every thread has an errno.
    unsafe { *libc::__errno_location() }
}

/// Moves the pages of a mapping; what stays is a mapping without pages.
///
/// # Safety
/// A mapping of the caller's; `target` is room for it that no other code uses.
unsafe fn move_pages(real: &Originals, part: &Range<usize>, target: usize) -> bool {
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: as the function's.
    unsafe { (real.syscall)(libc::SYS_mremap, part.start, part.len(), part.len(), how, target) != -1 }
}

/// Moves mappings back to where they were.
///
/// # Safety
/// [`move_pages`] has moved them, and no other code has the addresses yet.
unsafe fn move_back(real: &Originals, moved: Range<usize>, to: usize) {
    let mut next = moved.start;
    while next < moved.end {
        let mut first = None;
        let is_known = first_of(&(next..moved.end), &mut first);
        let part = match first {
            Some(part) => part.range,
            None if is_known => return,
            None => next..next,
        };
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let home = to + (part.start - moved.start);
        // SAFETY: as the function's.
        let is_back = !part.is_empty()
            && unsafe { (real.syscall)(libc::SYS_mremap, part.start, part.len(), part.len(), how, home) }
                != -1;
        if is_back {
            next = part.end;
        } else {
            // Another thread has used the descriptor or the mappings that were just freed for this.
            // SAFETY: takes no arguments.
            unsafe { libc::sched_yield() };
        }
    }
}

/// Mappings that are made before a move and unmapped before it is undone: where a process may have no more
/// mappings, a move fails, and moving back would fail for the same reason.
struct SpareMappings(usize);

impl SpareMappings {
    const PAGES: usize = 16;

    /// None if the process cannot have so many more mappings.
    fn new() -> Option<SpareMappings> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses; every second page of it becomes a
        // mapping of its own.
        unsafe {
            let start = libc::mmap(null_mut(), Self::PAGES * PAGE_BYTES, libc::PROT_NONE, flags, -1, 0);
            if start == libc::MAP_FAILED {
                return None;
            }
            let spare = SpareMappings(start as usize);
            let is_complete = (0..Self::PAGES).step_by(2).all(|page| {
                libc::mprotect(start.byte_add(page * PAGE_BYTES), PAGE_BYTES, libc::PROT_READ) == 0
            });
            is_complete.then_some(spare)
        }
    }
}

impl Drop for SpareMappings {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nothing is in it.
        unsafe { libc::munmap(self.0 as *mut c_void, Self::PAGES * PAGE_BYTES) };
    }
}
