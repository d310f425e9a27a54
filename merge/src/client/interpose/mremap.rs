//! `mremap` on advised memory: a private mapping of the store's pages would continue in the store's file, and
//! past its end.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;

use super::{ORIGINALS, active_calls, advised_ranges, each, fail, first_of, is_plain, lock, map_zeros};
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
            return unsafe { move_shared(at..at + have, want, flags, to as usize) };
        }
        // By system call: another interposer's function might wait for a thread that waits for this one.
        // SAFETY: the caller's arguments.
        return unsafe { libc::syscall(libc::SYS_mremap, old, old_bytes, new_bytes, flags, to) }
            as *mut c_void;
    }
    // SAFETY: the caller's arguments.
    let new = unsafe { (real.mremap)(old, old_bytes, new_bytes, flags, to) };
    let now = new as usize..(new as usize).saturating_add(want);
    if new != libc::MAP_FAILED && new != old && advised_ranges::overlaps(&now) {
        // The table has this address of memory advised earlier. The memory moved here was not advised, and
        // may be a file's.
        advised_ranges::forget(&now);
    }
    new
}

/// mremap of a range that holds pages of the store: each mapping moves as it is, and added memory is
/// anonymous.
///
/// # Safety
/// As mremap(2).
unsafe fn move_shared(old: Range<usize>, want: usize, flags: c_int, to: usize) -> *mut c_void {
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
        // In the table before anything shared is there, or else not moved at all.
        if !advised_ranges::add(&(new..new + want)) {
            libc::munmap(new as *mut c_void, want);
            return failed(libc::ENOMEM);
        }
        let moving = old.start..old.end.min(old.start + want);
        let mut next = moving.start;
        while next < moving.end {
            let mut first = None;
            first_of(&(next..moving.end), &mut first);
            let part = match first {
                Some(part) => part.range,
                None => next..moving.end,
            };
            let target = (new + part.start - old.start) as *mut c_void;
            let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // By system call: not the function that this one interposes.
            let moved =
                libc::syscall(libc::SYS_mremap, part.start, part.len(), part.len(), how, target as usize);
            if moved == -1 {
                // No room for another mapping: copies the contents instead.
                let there = libc::mmap(
                    target,
                    part.len(),
                    libc::PROT_READ | libc::PROT_WRITE,
                    anonymous | libc::MAP_FIXED,
                    -1,
                    0,
                );
                if there == libc::MAP_FAILED {
                    return failed(libc::ENOMEM);
                }
                libc::memcpy(target, part.start as *const c_void, part.len());
                libc::munmap(part.start as *mut c_void, part.len());
            }
            next = part.end;
        }
        if stays {
            map_zeros(&old, rights);
        } else if moving.end < old.end {
            libc::munmap(moving.end as *mut c_void, old.end - moving.end);
        }
        new as *mut c_void
    }
}
