//! Calls to the operating system: address space, huge pages, time, processes.
//!
//! Every function keeps `errno`: free() must not change it, and malloc() sets it itself.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};

use crate::system::filtered;
use crate::system::raw::syscall;
use crate::system::vdso;
use crate::units::geometry::{HUGE_PAGE_BYTES, PAGE_BYTES};

/// The kind of huge pages.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Pages {
    /// Transparent huge pages, requested with MADV_HUGEPAGE.
    Transparent = 0,
    /// Reserved ones (MAP_HUGETLB), and transparent ones when those run out.
    Reserved = 1,
    /// Base pages: for comparison.
    Base = 2,
}

static PAGES: AtomicU8 = AtomicU8::new(Pages::Transparent as u8);
static RESERVED_RAN_OUT: AtomicBool = AtomicBool::new(false);

/// Sets the kind of huge pages; before the first region exists.
pub fn set_pages(pages: Pages) {
    PAGES.store(pages as u8, Relaxed);
}

/// Runs `f` and puts `errno` back.
pub fn keep_errno<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: the C library gives every thread a valid errno.
    let errno = unsafe { *libc::__errno_location() };
    let result = f();
    set_errno(errno);
    result
}

/// Sets `errno`.
pub fn set_errno(errno: i32) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

fn map(address: usize, bytes: usize, protection: i32, flags: i32) -> Option<usize> {
    // A reserved huge page must be set aside now: touching one that is not available is fatal.
    let reserve = if flags & libc::MAP_HUGETLB == 0 { libc::MAP_NORESERVE } else { 0 };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | reserve | flags;
    // SAFETY: callers pass either no fixed address, one that MAP_FIXED_NOREPLACE protects, or one inside
    // a reservation of this heap that holds no object; nothing else can be replaced.
    address_of(unsafe { syscall!(SYS_mmap, address, bytes, protection, flags, -1, 0usize) })
}

/// The address that a call returned, if it is no error.
pub(crate) fn address_of(result: isize) -> Option<usize> {
    usize::try_from(result).ok()
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Maps fresh zeroed memory for an object. It is accounted for: the kernel refuses what no machine can give.
pub fn map_object(bytes: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the mapping is fresh.
    address_of(unsafe { syscall!(SYS_mmap, 0usize, bytes, READ_WRITE, flags, -1, 0usize) })
}

/// Maps fresh zeroed memory anywhere, for data of the heap: on small pages, since adjacent mappings may
/// become one that has room for a huge page.
pub fn map_anywhere(bytes: usize) -> Option<usize> {
    let at = map(0, bytes, READ_WRITE, 0)?;
    advise_small(at, bytes);
    Some(at)
}

/// Whether this much could be mapped now.
pub fn is_room_for(bytes: usize) -> bool {
    map(0, bytes, READ_WRITE, 0).map(|probe| unmap(probe, bytes)).is_some()
}

/// Maps fresh zeroed memory at `address`; `None` if something else is mapped there.
pub fn map_at(address: usize, bytes: usize) -> Option<usize> {
    match map(address, bytes, READ_WRITE, libc::MAP_FIXED_NOREPLACE) {
        Some(at) if at != address => {
            unmap(at, bytes); // a kernel older than 4.17 takes the address as a hint
            None
        }
        other => other,
    }
}

/// Reserves aligned address space without memory, which [`commit`] makes usable.
pub fn reserve(bytes: usize, alignment: usize) -> Option<usize> {
    let whole = map(0, bytes.checked_add(alignment)?, libc::PROT_NONE, 0)?;
    let base = whole.next_multiple_of(alignment);
    unmap(whole, base - whole);
    unmap(base + bytes, whole + alignment - base);
    // A debugger that writes a core dump would write the whole reservation.
    advise(base, bytes, libc::MADV_DONTDUMP);
    Some(base)
}

/// Makes reserved address space readable: untouched metadata reads as zero.
pub fn allow_reads(address: usize, bytes: usize) -> bool {
    protect(address, bytes, libc::PROT_READ)
}

/// Makes reserved address space usable.
pub fn commit(address: usize, bytes: usize) -> bool {
    let committed = protect(address, bytes, READ_WRITE);
    if committed {
        advise(address, bytes, libc::MADV_DODUMP);
    }
    committed
}

/// Makes a part of reserved address space unusable that holds no object and whose memory was returned: then
/// it does not count as the program's data (RLIMIT_DATA).
pub fn decommit(address: usize, bytes: usize) {
    if protect(address, bytes, libc::PROT_NONE) {
        advise(address, bytes, libc::MADV_DONTDUMP);
    }
}

fn protect(address: usize, bytes: usize, protection: i32) -> bool {
    // SAFETY: the range lies in a reservation of this heap.
    unsafe { syscall!(SYS_mprotect, address, bytes, protection) == 0 }
}

/// Backs one huge page of a reservation with a reserved huge page where those are configured.
pub fn back_with_reserved(address: usize) {
    if PAGES.load(Relaxed) != Pages::Reserved as u8 || RESERVED_RAN_OUT.load(Relaxed) {
        return;
    }
    if map(address, HUGE_PAGE_BYTES, READ_WRITE, libc::MAP_FIXED | libc::MAP_HUGETLB).is_none() {
        RESERVED_RAN_OUT.store(true, Relaxed);
        // The kernel may have unmapped the range before it failed.
        map(address, HUGE_PAGE_BYTES, READ_WRITE, libc::MAP_FIXED);
        advise_huge(address, HUGE_PAGE_BYTES);
    }
}

/// Unmaps.
pub fn unmap(address: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: callers pass a mapping that they made and that holds no object any more.
        unsafe { syscall!(SYS_munmap, address, bytes) };
    }
}

/// Moves or resizes a mapping and keeps its contents.
pub fn remap(address: usize, old_bytes: usize, new_bytes: usize) -> Option<usize> {
    mremap(address, old_bytes, new_bytes, libc::MREMAP_MAYMOVE)
}

/// Resizes a mapping where it is and keeps its contents; whether that was possible.
pub fn resize_mapping(address: usize, old_bytes: usize, new_bytes: usize) -> bool {
    mremap(address, old_bytes, new_bytes, 0).is_some()
}

/// By the C library's name, as [`discard`].
fn mremap(address: usize, old_bytes: usize, new_bytes: usize, flags: i32) -> Option<usize> {
    // SAFETY: callers pass a mapping of their own; without a flag it does not move.
    let at =
        keep_errno(|| unsafe { libc::mremap(address as *mut libc::c_void, old_bytes, new_bytes, flags) });
    (at != libc::MAP_FAILED).then_some(at as usize)
}

/// Returns the memory of a range to the operating system; it reads as zero afterwards.
///
/// Unlike other system calls, `madvise` and `mremap` on objects' memory are called by the C library's names.
/// A page store maps its files over that memory once the program has shared it; it interposes these two, so
/// that the memory still reads as zero here, and grows there. The functions are called with a lock held: an
/// interposer may not allocate in them.
pub fn discard(address: usize, bytes: usize) {
    // SAFETY: the range is the heap's and holds no object.
    let discarded = keep_errno(|| unsafe {
        libc::madvise(address as *mut libc::c_void, bytes, libc::MADV_DONTNEED) == 0
    });
    if !discarded {
        // Locked memory (mlock) cannot be given back: it must still read as zero.
        // SAFETY: the range is the heap's, holds no object, and is committed.
        unsafe { core::ptr::write_bytes(address as *mut u8, 0, bytes) };
    }
}

/// Advises the kernel about a range of this heap, or of a file that no process writes to; whether it
/// listened.
pub(crate) fn advise(address: usize, bytes: usize, advice: i32) -> bool {
    // SAFETY: callers advise about ranges of their own, and expect what the advice does to their contents.
    unsafe { syscall!(SYS_madvise, address, bytes, advice) == 0 }
}

/// Asks for huge pages in a range.
pub fn advise_huge(address: usize, bytes: usize) {
    let advice =
        if PAGES.load(Relaxed) == Pages::Base as u8 { libc::MADV_NOHUGEPAGE } else { libc::MADV_HUGEPAGE };
    advise(address, bytes, advice); // a kernel without transparent huge pages refuses, and the heap runs on
}

/// Asks for small pages in a range, whatever the system's setting is: for metadata that is touched sparsely.
pub fn advise_small(address: usize, bytes: usize) {
    advise(address, bytes, libc::MADV_NOHUGEPAGE);
}

/// How many small pages of a range are resident, those of zeros that were only read among them. The range has
/// one huge page at most. `None` if the kernel does not tell, or a filter of system calls may end the process
/// for the question.
pub fn resident_pages(address: usize, bytes: usize) -> Option<usize> {
    if filtered::is_possible() {
        return None;
    }
    let mut found = [0u8; HUGE_PAGE_BYTES / PAGE_BYTES];
    debug_assert!(bytes.div_ceil(PAGE_BYTES) <= found.len());
    // SAFETY: the kernel writes a byte a page of the range, which has no more pages than `found` bytes.
    let told = unsafe { syscall!(SYS_mincore, address, bytes, found.as_mut_ptr()) == 0 };
    told.then(|| found.iter().filter(|&&byte| byte & 1 != 0).count())
}

/// The kind of huge pages.
pub fn pages() -> Pages {
    match PAGES.load(Relaxed) {
        0 => Pages::Transparent,
        1 => Pages::Reserved,
        _ => Pages::Base,
    }
}

/// Whether the heap lies on small pages.
pub fn on_base_pages() -> bool {
    PAGES.load(Relaxed) == Pages::Base as u8
}

/// Monotonic time, a few ms coarse, without a system call.
pub fn coarse_ns() -> u64 {
    vdso::clock_ns(libc::CLOCK_MONOTONIC_COARSE)
}

/// Monotonic time.
pub fn precise_ns() -> u64 {
    vdso::clock_ns(libc::CLOCK_MONOTONIC)
}

/// The calling thread's processor time. A system call.
pub fn thread_cpu_ns() -> u64 {
    vdso::clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Sleeps; a signal may end the sleep early.
pub fn sleep_ms(ms: u64) {
    sleep_us(ms * 1000);
}

/// As above, for microseconds.
pub fn sleep_us(us: u64) {
    let time = libc::timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 };
    // SAFETY: `time` is valid; the remaining time at a signal is not needed.
    unsafe { syscall!(SYS_clock_nanosleep, libc::CLOCK_MONOTONIC, 0, &raw const time, 0usize) };
}

/// Time of day.
pub fn unix_ns() -> u64 {
    vdso::clock_ns(libc::CLOCK_REALTIME)
}

/// Whether the process limits its data (RLIMIT_DATA).
pub fn data_is_limited() -> bool {
    let mut limit = libc::rlimit64 { rlim_cur: libc::RLIM64_INFINITY, rlim_max: libc::RLIM64_INFINITY };
    // SAFETY: the structure is valid, and nothing is set.
    unsafe { syscall!(SYS_prlimit64, 0, libc::RLIMIT_DATA as i32, 0usize, &raw mut limit) };
    limit.rlim_cur != libc::RLIM64_INFINITY
}

/// The calling thread's id.
pub fn thread_id() -> u32 {
    // SAFETY: always allowed.
    unsafe { syscall!(SYS_gettid) as u32 }
}

/// Whether the process has a thread of this id.
pub fn is_thread(id: u32) -> bool {
    // SAFETY: signal 0 only asks.
    unsafe { syscall!(SYS_tgkill, process_id(), id, 0) == 0 }
}

/// Sleeps until the word differs from `value`, some ms have passed, or [`futex_wake`] is called.
pub fn futex_wait(word: &AtomicU32, value: u32, ms: u64) {
    let time = libc::timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as i64 };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel only reads the word and the time.
    unsafe { syscall!(SYS_futex, word.as_ptr(), operation, value, &raw const time) };
}

/// Wakes all threads that wait for the word.
pub fn futex_wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel does not use the word.
    unsafe { syscall!(SYS_futex, word.as_ptr(), operation, i32::MAX) };
}

/// The processors that a thread may run on.
pub type Affinity = [u64; 128];

/// The calling thread's processors, and the bytes that the kernel has of them; 0 if it cannot be known.
pub fn affinity(processors: &mut Affinity) -> usize {
    let bytes = size_of::<Affinity>();
    // SAFETY: the array is valid for its length.
    let known = unsafe { syscall!(SYS_sched_getaffinity, 0, bytes, processors.as_mut_ptr()) };
    known.max(0) as usize
}

/// Makes the calling thread one of the default policy. A filter of system calls may end a process for this
/// call, so it is only for threads of another policy: there the program has made such a call itself.
pub fn set_default_policy() {
    let priority = 0i32;
    // SAFETY: the pointer is valid. A call that fails changes nothing.
    unsafe { syscall!(SYS_sched_setscheduler, 0, libc::SCHED_OTHER, &raw const priority) };
}

/// Moves the calling thread to these processors, if it is elsewhere; a filter may forbid this, too.
pub fn set_affinity(processors: &Affinity, bytes: usize) {
    let mut now: Affinity = [0; 128];
    if affinity(&mut now) == bytes && now != *processors {
        // SAFETY: the array is valid for its length.
        unsafe { syscall!(SYS_sched_setaffinity, 0, bytes, processors.as_ptr()) };
    }
}

/// Names the calling thread.
pub fn name_thread(name_with_nul: &[u8]) {
    debug_assert_eq!(name_with_nul.last(), Some(&0));
    // SAFETY: the name ends in NUL.
    unsafe { syscall!(SYS_prctl, libc::PR_SET_NAME, name_with_nul.as_ptr()) };
}

/// The CPU that the calling thread runs on.
pub fn cpu() -> u32 {
    let mut cpu = 0u32;
    // SAFETY: `cpu` is valid; the node is not needed.
    unsafe { syscall!(SYS_getcpu, &raw mut cpu, 0usize, 0usize) };
    cpu
}

/// Lets another thread run.
pub fn yield_now() {
    // SAFETY: always allowed.
    unsafe { syscall!(SYS_sched_yield) };
}

/// The process id.
pub fn process_id() -> u32 {
    // SAFETY: always allowed.
    unsafe { syscall!(SYS_getpid) as u32 }
}

/// A command of membarrier(2).
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum Membarrier {
    /// Prepares the process for fences.
    Register = 1 << 4,
    /// Every running thread of the process executes a full fence.
    Fence = 1 << 3,
}

/// Runs the command; whether the kernel supports it.
pub fn membarrier(command: Membarrier) -> bool {
    // SAFETY: the command takes no memory.
    unsafe { syscall!(SYS_membarrier, command as i32, 0, 0) == 0 }
}
