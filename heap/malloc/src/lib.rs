//! `libmayfly_heap.so`: the malloc interface and C++'s operators, over [`heap`].
//!
//! Preloaded or linked, it interposes the C library's malloc. Each allocating entry point passes the address
//! of its return address, by which lifetimes are predicted (LLAMA §7); [`fast`] has those that programs call
//! most.

// In builds whose panics unwind (debug builds, linters) the standard library is linked, and has its own
// handler.
#![cfg_attr(panic = "abort", no_std)]
// Rust 1.99 wants C's functions without unwinding, and C++'s new_handler may throw through these.
#![allow(unknown_lints, reason = "earlier versions do not know the next two")]
#![allow(invalid_runtime_symbol_definitions, suspicious_runtime_symbol_definitions, reason = "as above")]

mod cxx;
mod extended;
mod fast;
mod fast_free;
mod glibc;
mod interface;
mod mallctl;
mod next;
mod restrictions;
mod threads;

#[cfg(panic = "abort")]
use core::fmt::Write;

/// Logs where the panic was, and ends the process: there is no frame to unwind to.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    let mut line = heap::system::text::Text::<512>::default();
    let _ = writeln!(line, "mayfly-heap: internal error, please report: {info}");
    heap::system::process::abort(line.bytes())
}

/// The personality function of the frames here, which the unwinder calls when a C++ exception
/// (std::bad_alloc, or a new_handler's own) passes them: there is nothing to clean up, so it continues. The
/// standard library would define it, but is not linked.
#[cfg(panic = "abort")]
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() -> core::ffi::c_int {
    const URC_CONTINUE_UNWIND: core::ffi::c_int = 8;
    URC_CONTINUE_UNWIND
}

/// Runs when the library is loaded: reads the configuration, even if nothing was allocated yet.
extern "C" fn loaded() {
    heap::entry::start::start();
}

/// Runs at the end of the process: writes the trace, the table of sites and the statistics.
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

/// Ends the process without destructors, like the C library's, but first writes the statistics and the trace:
/// shells end this way.
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
