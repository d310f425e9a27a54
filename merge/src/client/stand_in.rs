//! Three functions of the C library whose meaning would change on advised memory, and what stands in for them. What was
//! anonymous must go on behaving so, whoever allocated it and whoever advised it:
//!
//! | function | what would happen on the store's pages | what happens |
//! |---|---|---|
//! | `madvise` with `MADV_DONTNEED`, `MADV_FREE` | the advised bytes come back | fresh memory of zeros is put in place |
//! | `mremap` to a larger size | goes on in the store's file, and past its end | anonymous memory is put behind it |
//! | `realloc` | the C library's calls its own `mremap`, which nobody can stand in for | a block that is shared is copied |
//!
//! Every loaded object reaches these functions through slots that the loader filled ([`slots`]); they are filled anew before
//! anything is shared, so no preload is needed, and objects that come later are seen by the next call. Memory of whoever
//! makes the system calls without the C library (Go) must not be advised.
//!
//! The functions run inside allocators: they allocate nothing and take only [`lock`], under which nobody else allocates.

pub mod advised;
mod lock;
mod slots;

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::client::memory;
use crate::error::Error;
use crate::page::PAGE_BYTES;
use crate::segment;

pub use lock::{Held, hold};

type Madvise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
type Mremap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type UsableSize = unsafe extern "C" fn(*mut c_void) -> usize;
type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);

/// What the program would have called.
struct Real {
    madvise: Madvise,
    mremap: Mremap,
    realloc: Realloc,
    malloc: Malloc,
    free: Free,
    usable_size: UsableSize,
}

static REAL: OnceLock<Option<Real>> = OnceLock::new();

fn find_real() -> Option<Real> {
    // SAFETY: C strings; the C library's functions of these names have these types, and so have those in front of them.
    unsafe {
        let find = |name: &CStr| {
            let found = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
            (!found.is_null()).then_some(found)
        };
        Some(Real {
            madvise: transmute::<*mut c_void, Madvise>(find(c"madvise")?),
            mremap: transmute::<*mut c_void, Mremap>(find(c"mremap")?),
            realloc: transmute::<*mut c_void, Realloc>(find(c"realloc")?),
            malloc: transmute::<*mut c_void, Malloc>(find(c"malloc")?),
            free: transmute::<*mut c_void, Free>(find(c"free")?),
            usable_size: transmute::<*mut c_void, UsableSize>(find(c"malloc_usable_size")?),
        })
    }
}

/// Looks the functions up: when the library is loaded, and no later.
pub fn look_up() {
    REAL.get_or_init(find_real);
}

/// Stands in, in every object that is loaded now.
///
/// # Errors
/// `ENOTSUP`, with the allocator's name, where that cannot be done: then nothing of its memory may be shared.
pub fn install() -> Result<(), Error> {
    let refuse = |why: String| {
        let line = format!(
            "{why}, so memory of this program's allocator ({}) cannot be shared safely: after MADV_DONTNEED it would not be zero",
            allocator()
        );
        Err(Error::new(libc::ENOTSUP, line))
    };
    if !matches!(REAL.get(), Some(Some(_))) {
        return refuse("the program has no C library that could be stood in front of".to_owned());
    }
    let ours = [
        (c"madvise", madvise as Madvise as usize),
        (c"mremap", mremap as Mremap as usize),
        (c"realloc", realloc as Realloc as usize),
    ];
    match slots::fill(&ours) {
        Ok(()) => Ok(()),
        Err(errno) => {
            refuse(format!("calls of madvise cannot be redirected ({})", std::io::Error::from(errno)))
        }
    }
}

/// The file that `malloc` is in.
fn allocator() -> String {
    let Some(Some(real)) = REAL.get() else { return "unknown".to_owned() };
    // SAFETY: dladdr fills the structure for an address inside a loaded object, or says that it did not.
    unsafe {
        let mut about: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(real.malloc as *const c_void, &mut about) == 0 || about.dli_fname.is_null() {
            return "unknown".to_owned();
        }
        let path = CStr::from_ptr(about.dli_fname).to_string_lossy();
        path.rsplit('/').next().unwrap_or(&path).to_owned()
    }
}

/// A mapping of the store in a range that was anonymous, cut to it.
struct Shared {
    range: Range<usize>,
    rights: c_int,
    is_store: bool,
}

/// Every mapping of a range, in order, without allocating. False if the kernel does not tell.
fn each(range: &Range<usize>, mut act: impl FnMut(Shared)) -> bool {
    memory::each(range, |seen| {
        let mut rights = 0;
        for (has, right) in [
            (seen.readable, libc::PROT_READ),
            (seen.writable, libc::PROT_WRITE),
            (seen.executable, libc::PROT_EXEC),
        ] {
            rights |= if has { right } else { 0 };
        }
        let part = seen.range.start.max(range.start)..seen.range.end.min(range.end);
        let is_store = !seen.shared && segment::is_named(seen.name) && advised::overlaps(&part);
        act(Shared { range: part, rights, is_store });
    })
    .is_ok()
}

/// The first mapping of a range. False if the kernel does not tell.
fn first_of(range: &Range<usize>, first: &mut Option<Shared>) -> bool {
    each(range, |part| {
        first.get_or_insert(part);
    })
}

/// Whether a range is one mapping, and none of the store's.
fn is_plain(range: &Range<usize>) -> bool {
    let (mut mappings, mut plain) = (0, true);
    let is_told = each(range, |part| {
        mappings += 1;
        plain &= !part.is_store && part.range == *range;
    });
    is_told && plain && mappings == 1
}

fn has_store(range: &Range<usize>) -> Option<bool> {
    let mut found = false;
    each(range, |part| found |= part.is_store).then_some(found)
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: every thread has an errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Fresh memory of zeros over a range of the program's.
///
/// # Safety
/// The program gives the contents up.
unsafe fn renew(range: &Range<usize>, rights: c_int) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: as the function's.
    unsafe { libc::mmap(range.start as *mut c_void, range.len(), rights, flags, -1, 0) != libc::MAP_FAILED }
}

const DONTNEED_LOCKED: c_int = 24;

unsafe extern "C" fn madvise(start: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    let Some(Some(real)) = REAL.get() else { return fail(libc::ENOSYS) };
    let at = start as usize;
    let drops = matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | DONTNEED_LOCKED);
    let whole = at.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(PAGE_BYTES));
    let (true, true, Some(end)) = (drops && bytes > 0, at.is_multiple_of(PAGE_BYTES), whole) else {
        // SAFETY: the caller's arguments.
        return unsafe { (real.madvise)(start, bytes, advice) };
    };
    if !advised::overlaps(&(at..end)) {
        // SAFETY: the caller's arguments.
        return unsafe { (real.madvise)(start, bytes, advice) };
    }
    // While a batch is put in place, its old pages must not be dropped.
    let _held = hold();
    let (mut next, mut result) = (at, 0);
    while next < end {
        let mut first = None;
        if !first_of(&(next..end), &mut first) {
            // Better memory that is kept than memory that is not zero.
            return fail(libc::ENOMEM);
        }
        let Some(part) = first else { return fail(libc::ENOMEM) };
        // By its number: not a function in front of the C library's, which might wait for who waits for us.
        // SAFETY: the caller gives the contents of the range up.
        let is_done = unsafe {
            if part.is_store {
                renew(&part.range, part.rights)
            } else {
                libc::syscall(libc::SYS_madvise, part.range.start, part.range.len(), advice) == 0
            }
        };
        if !is_done || part.range.start > next {
            result = -1;
        }
        next = part.range.end;
    }
    result
}

unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_bytes: usize,
    new_bytes: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let Some(Some(real)) = REAL.get() else {
        fail(libc::ENOSYS);
        return libc::MAP_FAILED;
    };
    let at = old as usize;
    let moves = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
    let (have, want) = (old_bytes.next_multiple_of(PAGE_BYTES), new_bytes.next_multiple_of(PAGE_BYTES));
    let is_ours = at.is_multiple_of(PAGE_BYTES)
        && have > 0
        && want > 0
        && (want > have || moves)
        && at.checked_add(have).is_some_and(|end| advised::overlaps(&(at..end)));
    if is_ours {
        let _held = hold();
        // What was advised may be several mappings for good, which the system call would refuse.
        if !is_plain(&(at..at + have)) {
            // SAFETY: the caller's arguments.
            return unsafe { move_shared(at..at + have, want, flags, to as usize) };
        }
    }
    // SAFETY: the caller's arguments.
    unsafe { (real.mremap)(old, old_bytes, new_bytes, flags, to) }
}

/// mremap of a range in which there are pages of the store: each mapping moves as it is, and what is new is anonymous.
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
    // SAFETY: as the function's; new mappings lie where there is room, or where the caller says.
    unsafe {
        if !fixed && !stays {
            let behind = old.end as *mut c_void;
            let more = want - old.len();
            let found = libc::mmap(behind, more, rights, anonymous | libc::MAP_FIXED_NOREPLACE, -1, 0);
            if found == behind {
                return old.start as *mut c_void;
            }
            if found != libc::MAP_FAILED {
                libc::munmap(found, more); // a kernel that does not know the flag
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
        // Known before anything shared is there, or not moved at all.
        if !advised::add(&(new..new + want)) {
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
            // By its number: not the function that this one stands in for.
            let moved =
                libc::syscall(libc::SYS_mremap, part.start, part.len(), part.len(), how, target as usize);
            if moved == -1 {
                // No room for another mapping: the bytes are what counts.
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
            renew(&old, rights);
        } else if moving.end < old.end {
            libc::munmap(moving.end as *mut c_void, old.end - moving.end);
        }
        new as *mut c_void
    }
}

unsafe extern "C" fn realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
    let Some(Some(real)) = REAL.get() else {
        fail(libc::ENOMEM);
        return null_mut();
    };
    let at = block as usize;
    if at == 0 || bytes < PAGE_BYTES || !advised::overlaps(&(at..at + 1)) {
        // SAFETY: the caller's arguments.
        return unsafe { (real.realloc)(block, bytes) };
    }
    // SAFETY: the caller's block.
    let has = unsafe { (real.usable_size)(block) };
    // Only a block of whole mappings is moved by the kernel.
    if bytes <= has || has < PAGE_BYTES || has_store(&(at..at + has)) == Some(false) {
        // SAFETY: the caller's arguments.
        return unsafe { (real.realloc)(block, bytes) };
    }
    // SAFETY: the caller's block, of `has` bytes, and a new one of more.
    unsafe {
        let new = (real.malloc)(bytes);
        if !new.is_null() {
            libc::memcpy(new, block, has);
            (real.free)(block);
        }
        new
    }
}
