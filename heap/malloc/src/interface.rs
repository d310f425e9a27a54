//! The C functions: malloc's family, as POSIX, C23 and glibc define it, and a few of Mayfly's own.
//! [`crate::fast`] has malloc and free.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use heap::entry::{allocate, extent, free, trim};
use heap::system::os::{keep_errno, set_errno};
use heap::units::call::ReturnSlot;
use heap::units::geometry::{MIN_ALIGNMENT, round_up};

const PAGE_BYTES: usize = 4096;

/// An entry point that calls `$inner` with its own arguments and then, in `$slot`, the address of its return
/// address.
macro_rules! entry {
    ($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $result:ty, $slot:literal, $inner:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            naked_asm!(concat!("mov ", $slot, ", rsp"), "jmp {inner}", inner = sym $inner)
        }
    };
}
pub(crate) use entry;

entry!(/// C's calloc.
    calloc(_count: usize, _size: usize) -> *mut c_void, "rdx", calloc_from);
entry!(/// C's realloc.
    realloc(_object: *mut c_void, _size: usize) -> *mut c_void, "rdx", realloc_from);
entry!(/// glibc's reallocarray.
    reallocarray(_object: *mut c_void, _count: usize, _size: usize) -> *mut c_void, "rcx", reallocarray_from);
entry!(/// C's aligned_alloc.
    aligned_alloc(_alignment: usize, _size: usize) -> *mut c_void, "rdx", aligned_from);
entry!(/// SunOS's memalign.
    memalign(_alignment: usize, _size: usize) -> *mut c_void, "rdx", aligned_from);
entry!(/// POSIX's posix_memalign.
    posix_memalign(_out: *mut *mut c_void, _alignment: usize, _size: usize) -> c_int, "rcx", posix_memalign_from);
entry!(/// BSD's valloc.
    valloc(_size: usize) -> *mut c_void, "rsi", valloc_from);
entry!(/// valloc of whole pages.
    pvalloc(_size: usize) -> *mut c_void, "rsi", pvalloc_from);
entry!(/// An object of a lifetime class that the program knows: 0 (10 ms) to 6 (for ever).
    mayfly_malloc(_size: usize, _class: c_int) -> *mut c_void, "rdx", mayfly_malloc_from);

fn no_memory() -> *mut c_void {
    set_errno(libc::ENOMEM);
    ptr::null_mut()
}

pub(crate) extern "C-unwind" fn calloc_from(count: usize, size: usize, from: ReturnSlot) -> *mut c_void {
    let Some(size) = count.checked_mul(size) else { return no_memory() };
    let object = allocate::allocate_from(size, from);
    if !object.is_null() && !extent::reads_as_zero(object as usize) {
        // SAFETY: the object has at least this size.
        unsafe { ptr::write_bytes(object, 0, size) };
    }
    object.cast()
}

pub(crate) extern "C-unwind" fn realloc_from(
    object: *mut c_void,
    size: usize,
    from: ReturnSlot,
) -> *mut c_void {
    if object.is_null() {
        return allocate::allocate_from(size, from).cast();
    }
    let address = object as usize;
    if size == 0 {
        free::free(address, from);
        return ptr::null_mut();
    }
    if let Some(resized) = extent::resize_in_place(address, &from.call_for(size)) {
        return resized.cast();
    }
    let kept = extent::usable_size(address, from.caller()).min(size);
    let new = allocate::allocate_from(size, from);
    if !new.is_null() {
        // SAFETY: both objects have at least `kept` bytes, and they are distinct.
        unsafe { ptr::copy_nonoverlapping(object.cast::<u8>(), new, kept) };
        free::free(address, from);
    }
    new.cast()
}

extern "C-unwind" fn reallocarray_from(
    object: *mut c_void,
    count: usize,
    size: usize,
    from: ReturnSlot,
) -> *mut c_void {
    match count.checked_mul(size) {
        Some(size) => realloc_from(object, size, from),
        None => no_memory(),
    }
}

/// As glibc does, an alignment that is not a power of two is rounded up to one.
pub(crate) extern "C-unwind" fn aligned_from(alignment: usize, size: usize, from: ReturnSlot) -> *mut c_void {
    match alignment.max(MIN_ALIGNMENT).checked_next_power_of_two().filter(|&a| a <= isize::MAX as usize) {
        Some(alignment) => allocate::allocate_aligned(from.call_for(size), alignment).cast(),
        None => {
            set_errno(libc::EINVAL);
            ptr::null_mut()
        }
    }
}

extern "C-unwind" fn posix_memalign_from(
    out: *mut *mut c_void,
    alignment: usize,
    size: usize,
    from: ReturnSlot,
) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let object = keep_errno(|| allocate::allocate_aligned(from.call_for(size), alignment.max(MIN_ALIGNMENT)));
    if object.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's pointer, as POSIX demands.
    unsafe { out.write(object.cast()) };
    0
}

pub(crate) extern "C-unwind" fn valloc_from(size: usize, from: ReturnSlot) -> *mut c_void {
    aligned_from(PAGE_BYTES, size, from)
}

pub(crate) extern "C-unwind" fn pvalloc_from(size: usize, from: ReturnSlot) -> *mut c_void {
    match round_up(size.max(1), PAGE_BYTES) {
        Some(size) => aligned_from(PAGE_BYTES, size, from),
        None => no_memory(),
    }
}

extern "C-unwind" fn mayfly_malloc_from(size: usize, class: c_int, from: ReturnSlot) -> *mut c_void {
    allocate::allocate_with_class(from.call_for(size), class.max(0) as usize).cast()
}

/// Bytes that the object may use.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_usable_size(object: *mut c_void) -> usize {
    extent::usable_size(object as usize, 0)
}

/// Returns free memory to the operating system; 1 if there was any. Whole huge pages are returned, whatever
/// `keep` says.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_keep: usize) -> c_int {
    trim::trim() as c_int
}

/// Accepts and ignores glibc's options: 1 for success.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(_parameter: c_int, _value: c_int) -> c_int {
    1
}

/// glibc's `struct mallinfo2`.
#[repr(C)]
#[derive(Default)]
pub struct MallocInfo {
    arena: usize,
    ordblks: usize,
    smblks: usize,
    hblks: usize,
    hblkhd: usize,
    usmblks: usize,
    fsmblks: usize,
    uordblks: usize,
    fordblks: usize,
    keepcost: usize,
}

/// glibc's mallinfo2: mapped bytes (arena), direct objects (hblks, hblkhd), live and free bytes (uordblks,
/// fordblks).
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> MallocInfo {
    let census = heap::observe::stats::census();
    let pages = census.pages.iter().sum::<usize>() + census.retained_pages;
    let arena = pages * heap::units::geometry::HUGE_PAGE_BYTES;
    let live = census.live_bytes - census.direct.1.min(census.live_bytes);
    MallocInfo {
        arena,
        ordblks: pages,
        hblks: census.direct.0,
        hblkhd: census.direct.1,
        uordblks: live,
        fordblks: arena.saturating_sub(live),
        keepcost: census.retained_pages * heap::units::geometry::HUGE_PAGE_BYTES,
        ..MallocInfo::default()
    }
}

/// glibc's older `struct mallinfo`, whose numbers end at 2 GiB.
#[repr(C)]
pub struct OldMallocInfo([c_int; 10]);

/// glibc's mallinfo.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> OldMallocInfo {
    let now = mallinfo2();
    let all =
        [now.arena, now.ordblks, 0, now.hblks, now.hblkhd, 0, 0, now.uordblks, now.fordblks, now.keepcost];
    OldMallocInfo(all.map(|n| n.min(c_int::MAX as usize) as c_int))
}

unsafe extern "C" {
    fn fwrite(bytes: *const c_void, size: usize, count: usize, file: *mut c_void) -> usize;
}

/// glibc's malloc_info: the state of the heap as XML, one `heap` element by lifetime class; -1 and EINVAL for
/// options.
///
/// # Safety
/// `file` is an open C stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, file: *mut c_void) -> c_int {
    use core::fmt::Write;
    if options != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    let census = heap::observe::stats::census();
    let mut xml = heap::system::text::Text::<4096>::default();
    let _ = writeln!(xml, "<malloc version=\"mayfly-1\">");
    for (name, pages) in heap::units::lifetime_class::NAMES.iter().zip(census.pages) {
        let _ =
            writeln!(xml, "<heap class=\"{name}\"><system type=\"huge_pages\" count=\"{pages}\"/></heap>");
    }
    let mapped =
        (census.pages.iter().sum::<usize>() + census.retained_pages) * heap::units::geometry::HUGE_PAGE_BYTES;
    let (direct, direct_bytes) = census.direct;
    let _ =
        writeln!(xml, "<total type=\"live\" count=\"{}\" size=\"{}\"/>", census.objects, census.live_bytes);
    let _ = writeln!(xml, "<total type=\"mmap\" count=\"{direct}\" size=\"{direct_bytes}\"/>");
    let _ = writeln!(xml, "<system type=\"current\" size=\"{}\"/>\n</malloc>", mapped + direct_bytes);
    let bytes = xml.bytes();
    // SAFETY: the caller's stream; the bytes are valid.
    let written = unsafe { fwrite(bytes.as_ptr().cast(), 1, bytes.len(), file) };
    if written == bytes.len() { 0 } else { -1 }
}

/// glibc's malloc_stats: the report on stderr.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    heap::system::files::write(2, heap::observe::report::json().bytes());
}

/// Writes the report, a JSON object, with a final NUL if it fits; returns the bytes it needs without the NUL.
///
/// # Safety
/// `buffer` has room for `length` bytes, or is null with length 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mayfly_heap_stats(buffer: *mut c_char, length: usize) -> c_int {
    let report = heap::observe::report::json();
    let bytes = report.bytes();
    if !buffer.is_null() && length > bytes.len() {
        // SAFETY: there is room for the bytes and the NUL.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), bytes.len());
            buffer.add(bytes.len()).write(0);
        }
    }
    bytes.len() as c_int
}

/// Notes that the program has started: with `MAYFLY_HEAP_CLOCK=settled` the clock stood still until now.
#[unsafe(no_mangle)]
pub extern "C" fn mayfly_heap_settled() {
    heap::system::clock::settled();
}

/// Makes the heap's clock show `ns` since its start until it is set again, and runs maintenance up to that
/// time; 0 returns to real time. For replaying traces.
#[unsafe(no_mangle)]
pub extern "C" fn mayfly_heap_set_clock(ns: u64) {
    heap::entry::maintenance::set_clock(ns);
}
