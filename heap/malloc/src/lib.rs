//! `libmayfly_heap.so`: the malloc interface and C++'s operators, over [`heap`].
//!
//! Preloaded or linked, it takes the place of the C library's malloc. Each allocating entry passes on
//! where its return address lies, by which lifetimes are predicted (LLAMA §7); [`fast`] has those that programs call most.

// Where panics unwind (debug builds, the linters') the standard library is there for that, and has a handler of its own.
#![cfg_attr(panic = "abort", no_std)]

mod cxx;
mod fast;
mod interface;
mod threads;

#[cfg(panic = "abort")]
use core::fmt::Write;

/// There is nobody to unwind to: says where, and ends the process.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    let mut line = heap::system::text::Text::<512>::default();
    let _ = writeln!(line, "mayfly-heap: internal error, please report: {info}");
    heap::system::os::abort(line.bytes())
}

/// What the unwinder asks of the frames here when a C++ exception (std::bad_alloc, or a new_handler's own) passes them:
/// there is nothing to clean up, go on. The standard library, which is not linked, would define it.
#[cfg(panic = "abort")]
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() -> core::ffi::c_int {
    const URC_CONTINUE_UNWIND: core::ffi::c_int = 8;
    URC_CONTINUE_UNWIND
}

/// Runs when the library is loaded: reads the configuration, even if nothing is allocated yet.
extern "C" fn loaded() {
    heap::entry::start::start();
}

/// Runs at the end of the process: what was recorded and counted is written.
extern "C" fn unloaded() {
    heap::observe::trace::flush_at_end();
    heap::lifetime::table_file::save(true);
    heap::observe::report::write();
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOADED: extern "C" fn() = unloaded;

/// Ends the process without destructors, as the C library's, but leaves the statistics and the trace behind: shells end
/// this way.
#[unsafe(no_mangle)]
extern "C" fn _exit(status: core::ffi::c_int) -> ! {
    unloaded();
    loop {
        // SAFETY: always allowed; does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// C99's name for [`_exit`].
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn _Exit(status: core::ffi::c_int) -> ! {
    _exit(status)
}
