//! Compares the rules with libgcc's unwinder, on all kinds of frames that compilers make.

use core::ffi::c_void;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::vec::Vec;

use super::*;

const SOURCE: &str = include_str!("frames.c");
/// The compiler for this processor, also under emulation; and its option for guarded returns.
const CC: &str = if cfg!(target_arch = "aarch64") { "aarch64-linux-gnu-gcc" } else { "cc" };
const GUARDED: &str =
    if cfg!(target_arch = "aarch64") { "-mbranch-protection=standard" } else { "-fcf-protection" };
/// Each of its functions, and whether rules alone unwind its stack.
const FUNCTIONS: [(&str, Option<bool>); 9] = [
    ("plain", Some(true)),
    ("deep", Some(true)),
    ("sized_at_run_time", Some(true)),
    ("many_arguments", Some(true)),
    ("aligned", None), // compilers differ
    ("called_by_a_library", Some(true)),
    ("signalled", Some(false)),
    ("threaded", Some(true)),
    ("in_a_fiber", None), // the C library makes its outermost function
];

/// The library has one global callback: one test at a time.
static LOADED: Mutex<()> = Mutex::new(());

struct Library(*mut c_void, PathBuf, #[allow(dead_code)] MutexGuard<'static, ()>);

impl Library {
    fn compiled(flags: &[&str]) -> Library {
        let one = LOADED.lock().unwrap_or_else(|broken| broken.into_inner());
        let folder = std::env::temp_dir();
        let name = std::format!("mayfly-frames-{}", std::process::id());
        let (source, library) =
            (folder.join(&name).with_extension("c"), folder.join(&name).with_extension("so"));
        std::fs::write(&source, SOURCE).unwrap();
        let fixed = ["-shared", "-fPIC", "-pthread", "-fno-optimize-sibling-calls", "-w", "-o"];
        let cc = Command::new(CC).args(flags).args(fixed).arg(&library).arg(&source).status().unwrap();
        assert!(cc.success());
        std::fs::remove_file(&source).unwrap();
        Library(open(&library), library, one)
    }

    fn function(&self, name: &str) -> extern "C" fn(extern "C" fn(*mut c_void), *mut c_void) {
        let name = CString::new(name).unwrap();
        // SAFETY: every function of the library has this type.
        unsafe {
            let found = libc::dlsym(self.0, name.as_ptr());
            assert!(!found.is_null());
            core::mem::transmute::<*mut c_void, extern "C" fn(extern "C" fn(*mut c_void), *mut c_void)>(found)
        }
    }
}

fn open(library: &Path) -> *mut c_void {
    let path = CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: a name that ends in NUL.
    let opened = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!opened.is_null());
    opened
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: opened once, and nothing of it is used any more.
        unsafe { libc::dlclose(self.0) };
        let _ = std::fs::remove_file(&self.1);
    }
}

#[derive(Default)]
struct Seen {
    looks: usize,
    /// How often the rules were not enough.
    others: usize,
}

/// Compares both, from the library's innermost frame outwards.
extern "C" fn look(argument: *mut c_void) {
    let (mut quick, mut full) = (Vec::new(), Vec::new());
    let is_whole = cached_rules::walk(|address, _| {
        quick.push(address);
        quick.len() < MAX_FRAMES
    });
    extern "C" fn step(context: *mut c_void, argument: *mut c_void) -> c_int {
        // SAFETY: the context is the unwinder's, the argument the list below.
        let (address, full) = unsafe { (_Unwind_GetIP(context), &mut *argument.cast::<Vec<usize>>()) };
        if address != 0 {
            full.push(address);
        }
        if full.len() < MAX_FRAMES && address != 0 { NO_REASON } else { END_OF_STACK }
    }
    // SAFETY: `step` gets the list back while it lives.
    unsafe { _Unwind_Backtrace(step, (&raw mut full).cast()) };
    let of_library = |address: &usize| {
        module(*address).is_some_and(|module| module.path.windows(13).any(|part| part == b"mayfly-frames"))
    };
    let from_library = |stack: &[usize]| {
        let first = stack.iter().position(of_library).expect("the library called this");
        stack[first..].to_vec()
    };
    let (quick, full) = (from_library(&quick), from_library(&full));
    // Both start in functions of this test, so one may have room for more of the outermost.
    let both = quick.len().min(full.len());
    assert_eq!(quick[..both], full[..both]);
    assert!(!is_whole || quick.len() + 8 > full.len(), "{} frames of {}", quick.len(), full.len());
    // SAFETY: the test passes this pointer, on this thread or one that it waits for.
    let seen = unsafe { &mut *argument.cast::<Seen>() };
    seen.looks += 1;
    seen.others += usize::from(!is_whole);
}

fn check(flags: &[&str], has_tables: bool) {
    let library = Library::compiled(flags);
    for (name, by_rules) in FUNCTIONS {
        // Twice: the second time the rules come from the cache.
        for _ in 0..2 {
            let mut seen = Seen::default();
            library.function(name)(look, (&raw mut seen).cast());
            assert!(seen.looks > 0, "{name}");
            if let Some(by_rules) = by_rules.filter(|_| has_tables) {
                assert_eq!(
                    seen.others,
                    if by_rules { 0 } else { seen.looks },
                    "{name}, {flags:?}: asked the full unwinder"
                );
            }
        }
    }
}

#[test]
fn rules_find_the_frames_that_libgcc_finds() {
    for flags in [
        &["-O0"][..],
        &["-O1", "-fno-omit-frame-pointer"],
        &["-O2", "-fomit-frame-pointer"],
        &["-O3", GUARDED],
        &["-Os", "-fstack-protector-all"],
    ] {
        // Each library is loaded where the one before was, with other code.
        check(flags, true);
    }
}

#[test]
fn code_without_tables_ends_a_stack_as_it_does_for_the_full_unwinder() {
    let flags = ["-O2", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    check(&flags, false);
}
