//! Three functions of the C library whose meaning would change on advised memory, and what stands in for them. What was
//! anonymous must go on behaving so, whoever allocated it and whoever advised it:
//!
//! | function | what would happen on the store's pages | what happens |
//! |---|---|---|
//! | `madvise` with `MADV_DONTNEED`, `MADV_FREE` | the advised bytes come back | fresh memory of zeros is put in place |
//! | `mremap` to a larger size | goes on in the store's file, and past its end | anonymous memory is put behind it |
//! | `realloc` | the C library's calls its own `mremap`, which nobody can stand in for | a block that is shared is copied |
//!
//! Every loaded object reaches these functions through slots that the loader filled ([`got`]); they are filled anew before
//! anything is shared, so no preload is needed, and objects that come later are seen by the next call. Memory of whoever
//! makes the system calls without the C library (Go) must not be advised.
//!
//! The functions run inside allocators: they allocate nothing and take only [`lock`], under which nobody else allocates.

pub mod active_calls;
pub mod advised_ranges;
mod got;
mod lock;
mod mremap;

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::base::error::Error;
use crate::base::page::PAGE_BYTES;
use crate::base::segment;
use crate::client::address_space;

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
    /// Whether the allocator is the C library's own.
    is_libc: bool,
}

static REAL: OnceLock<Option<Real>> = OnceLock::new();

fn find_real() -> Option<Real> {
    // SAFETY: C strings; the C library's functions of these names have these types, and so have those in front of them.
    unsafe {
        let find = |name: &CStr| {
            let found = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
            (!found.is_null()).then_some(found)
        };
        let malloc = find(c"malloc")?;
        Some(Real {
            madvise: transmute::<*mut c_void, Madvise>(find(c"madvise")?),
            mremap: transmute::<*mut c_void, Mremap>(find(c"mremap")?),
            realloc: transmute::<*mut c_void, Realloc>(find(c"realloc")?),
            malloc: transmute::<*mut c_void, Malloc>(malloc),
            free: transmute::<*mut c_void, Free>(find(c"free")?),
            usable_size: transmute::<*mut c_void, UsableSize>(find(c"malloc_usable_size")?),
            is_libc: object_of(malloc)? == object_of(libc::getpid as *const () as *mut c_void)?,
        })
    }
}

/// Where the object begins that an address is in.
fn object_of(address: *mut c_void) -> Option<usize> {
    // SAFETY: dladdr fills the structure for an address inside a loaded object, or says that it did not.
    unsafe {
        let mut about: libc::Dl_info = std::mem::zeroed();
        (libc::dladdr(address, &mut about) != 0).then_some(about.dli_fbase as usize)
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
        (c"mremap", mremap::mremap as Mremap as usize),
        (c"realloc", realloc as Realloc as usize),
    ];
    match got::fill(&ours) {
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
        let is_store = !seen.shared && segment::is_named(seen.name) && advised_ranges::overlaps(&part);
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
    let _visit = active_calls::enter();
    if !advised_ranges::overlaps(&(at..end)) {
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
        if !is_done {
            result = -1;
        } else if part.range.start > next {
            result = fail(libc::ENOMEM);
        }
        next = part.range.end;
    }
    result
}

unsafe extern "C" fn realloc(block: *mut c_void, bytes: usize) -> *mut c_void {
    let Some(Some(real)) = REAL.get() else {
        fail(libc::ENOMEM);
        return null_mut();
    };
    let at = block as usize;
    // SAFETY: the caller's arguments.
    let as_ever = || unsafe { (real.realloc)(block, bytes) };
    if at == 0 || bytes < PAGE_BYTES {
        return as_ever();
    }
    let _visit = active_calls::enter();
    if !advised_ranges::overlaps(&(at..at + 1)) {
        return as_ever();
    }
    // SAFETY: the caller's block.
    let has = unsafe { (real.usable_size)(block) };
    // Only a block of whole mappings is moved by the kernel.
    if bytes <= has || has < PAGE_BYTES {
        return as_ever();
    }
    // Until it is done nothing of it may become shared. The C library waits for nobody who waits for this; others move what they
    // have by calling what stands in for mremap, which takes it.
    let held = real.is_libc.then(hold);
    if has_store(&(at..at + has)) == Some(false) {
        return as_ever();
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
