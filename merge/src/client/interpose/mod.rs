//! Interposes functions of the C library whose semantics would change on advised memory. Anonymous memory
//! must keep anonymous semantics, under any allocator and whichever code advised it:
//!
//! | function | without interposing | with it |
//! |---|---|---|
//! | `madvise` and `process_madvise` with an advice that empties memory, such as `MADV_DONTNEED` | the advised bytes come back | fresh zeroed memory replaces them |
//! | `mremap` to a larger size | continues in the store's file, and past its end | anonymous memory is mapped behind it |
//! | `realloc` | the C library's calls its own `mremap`, which cannot be interposed | a shared block is copied |
//! | `syscall` | makes these calls by number | passes them to the functions above |
//! | `_Fork` and `clone`, which run no handlers | the child misses pages that are being replaced | waits for the batch |
//!
//! Every loaded object calls these functions through GOT entries that the loader filled. [`got`] patches them
//! before anything is shared, so no preload is needed, and the next call of `advise` patches objects loaded
//! later. Memory of programs that make these system calls without the C library (Go) must not be advised.
//!
//! The functions run inside allocators: they allocate nothing and take only [`lock()`]; no thread allocates
//! while it holds that.

pub mod active_calls;
pub mod advised_ranges;
mod definition;
mod forks;
mod got;
mod lock;
mod madvise;
mod mremap;
mod syscall;

use std::ffi::{CStr, c_int, c_long, c_void};
use std::mem::transmute;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::base::error::Error;
use crate::base::page::PAGE_BYTES;
use crate::base::segment;
use crate::client::address_space;

use advised_ranges::Noted;
pub use lock::{Guard, lock};
pub use madvise::may_have_properties;

type Madvise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
type Mremap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;
type ProcessMadvise = unsafe extern "C" fn(c_int, *const libc::iovec, usize, c_int, u32) -> isize;
type Syscall = unsafe extern "C" fn(c_long, ...) -> c_long;
type SyscallOfSix = unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;
type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type UsableSize = unsafe extern "C" fn(*mut c_void) -> usize;
type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);

/// The functions that the program would have called.
struct Originals {
    madvise: Madvise,
    mremap: Mremap,
    syscall: Syscall,
    /// `_Fork`, of glibc 2.34 and later.
    bare_fork: Option<forks::BareFork>,
    clone: Option<forks::Clone>,
    realloc: Realloc,
    malloc: Malloc,
    free: Free,
    usable_size: UsableSize,
    /// Whether the allocator is the C library's own.
    is_libc: bool,
}

static ORIGINALS: OnceLock<Option<Originals>> = OnceLock::new();

fn find_originals() -> Option<Originals> {
    // SAFETY: the C library's functions of these names have these types, and so have other interposers'.
    unsafe {
        let find = definition::of;
        let malloc = find(c"malloc")?;
        Some(Originals {
            madvise: transmute::<*mut c_void, Madvise>(find(c"madvise")?),
            mremap: transmute::<*mut c_void, Mremap>(find(c"mremap")?),
            syscall: transmute::<*mut c_void, Syscall>(find(c"syscall")?),
            bare_fork: find(c"_Fork").map(|at| transmute::<*mut c_void, forks::BareFork>(at)),
            clone: find(c"clone").map(|at| transmute::<*mut c_void, forks::Clone>(at)),
            realloc: transmute::<*mut c_void, Realloc>(find(c"realloc")?),
            malloc: transmute::<*mut c_void, Malloc>(malloc),
            free: transmute::<*mut c_void, Free>(find(c"free")?),
            usable_size: transmute::<*mut c_void, UsableSize>(find(c"malloc_usable_size")?),
            is_libc: definition::object_of(malloc)? == definition::object_of(find(c"getpid")?)?,
        })
    }
}

/// Resolves the original functions: when the library is loaded, and no later.
pub fn resolve_originals() {
    ORIGINALS.get_or_init(find_originals);
}

/// Interposes the functions in every object loaded now.
///
/// # Errors
/// `ENOTSUP`, with the allocator's name, where that is impossible: then none of its memory may be shared.
pub fn install() -> Result<(), Error> {
    let refuse = |why: String| {
        let line = format!(
            "{why}, so memory of this program's allocator ({}) cannot be shared safely: after MADV_DONTNEED it would not be zero",
            allocator()
        );
        Err(Error::new(libc::ENOTSUP, line))
    };
    if !matches!(ORIGINALS.get(), Some(Some(_))) {
        return refuse("the program has no C library that can be interposed".to_owned());
    }
    let ours = [
        (c"madvise", madvise::madvise as Madvise as usize),
        (c"process_madvise", madvise::process_madvise as ProcessMadvise as usize),
        (c"mremap", mremap::mremap as Mremap as usize),
        (c"syscall", syscall::syscall as SyscallOfSix as usize),
        (c"realloc", realloc as Realloc as usize),
        (c"_Fork", forks::bare_fork as forks::BareFork as usize),
        (c"clone", forks::clone as forks::Clone as usize),
    ];
    match got::patch(&ours) {
        Ok(()) => Ok(()),
        Err(errno) => {
            refuse(format!("calls of madvise cannot be redirected ({})", std::io::Error::from(errno)))
        }
    }
}

/// The file of the program's `malloc`.
fn allocator() -> String {
    let Some(Some(real)) = ORIGINALS.get() else { return "unknown".to_owned() };
    // SAFETY: dladdr fills the structure for an address inside a loaded object, or returns 0.
    unsafe {
        let mut about: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(real.malloc as *const c_void, &mut about) == 0 || about.dli_fname.is_null() {
            return "unknown".to_owned();
        }
        let path = CStr::from_ptr(about.dli_fname).to_string_lossy();
        path.rsplit('/').next().unwrap_or(&path).to_owned()
    }
}

/// Notes memory of a process that is about to be taken: restored, it is a private mapping of a file, and must
/// keep the semantics of anonymous memory.
///
/// # Errors
/// The functions cannot be interposed, or there are too many ranges.
pub fn keep_anonymous(range: &Range<usize>) -> Result<(), Error> {
    install()?;
    match advised_ranges::note(range) {
        Noted::Already | Noted::Added => Ok(()),
        Noted::TableFull => Err(Error::new(libc::ENOMEM, "too many separate ranges".to_owned())),
    }
}

/// The part of a mapping that lies in a range.
struct Part {
    range: Range<usize>,
    rights: c_int,
    is_store: bool,
}

/// Visits every mapping of a range, in order, without allocating. False if the kernel does not report them
/// all.
fn each(range: &Range<usize>, mut act: impl FnMut(Part)) -> bool {
    address_space::each(range, |seen| {
        let mut rights = 0;
        for (has, right) in [
            (seen.readable, libc::PROT_READ),
            (seen.writable, libc::PROT_WRITE),
            (seen.executable, libc::PROT_EXEC),
        ] {
            rights |= if has { right } else { 0 };
        }
        let part = seen.range.start.max(range.start)..seen.range.end.min(range.end);
        let is_ours = segment::is_named(seen.name) || mappings::is_of_snapshot(seen.name);
        let is_store = !seen.shared && is_ours && advised_ranges::overlaps(&part);
        act(Part { range: part, rights, is_store });
    })
    .is_ok()
}

/// The first mapping of a range. False if the kernel does not report it.
fn first_of(range: &Range<usize>, first: &mut Option<Part>) -> bool {
    each(range, |part| {
        first.get_or_insert(part);
    })
}

/// Whether a range is one mapping, and not of the store's.
fn is_plain(range: &Range<usize>) -> bool {
    let (mut mappings, mut plain) = (0, true);
    let is_complete = each(range, |part| {
        mappings += 1;
        plain &= !part.is_store && part.range == *range;
    });
    is_complete && plain && mappings == 1
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

/// Fresh zeroed memory over a range of the program's.
///
/// # Safety
/// The program gives the contents up.
unsafe fn map_zeros(range: &Range<usize>, rights: c_int) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: as the function's.
    unsafe { libc::mmap(range.start as *mut c_void, range.len(), rights, flags, -1, 0) != libc::MAP_FAILED }
}

unsafe extern "C" fn realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
    let Some(Some(real)) = ORIGINALS.get() else {
        fail(libc::ENOMEM);
        return null_mut();
    };
    let at = block as usize;
    // SAFETY: the caller's arguments.
    let unchanged = || unsafe { (real.realloc)(block, bytes) };
    if at == 0 || bytes < PAGE_BYTES {
        return unchanged();
    }
    let _call = active_calls::begin();
    if !advised_ranges::overlaps(&(at..at + 1)) {
        return unchanged();
    }
    // SAFETY: the caller's block.
    let has = unsafe { (real.usable_size)(block) };
    // The kernel moves only blocks that are whole mappings.
    if bytes <= has || has < PAGE_BYTES {
        return unchanged();
    }
    // Until it is done nothing of it may become shared. The C library waits for no thread that waits for this
    // one; other allocators move their memory through our mremap, which takes the lock.
    let held = real.is_libc.then(lock);
    if has_store(&(at..at + has)) == Some(false) {
        return unchanged();
    }
    drop(held);
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
