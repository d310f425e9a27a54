//! The parts of a prediction's cost (LLAMA Table 1: 396 ns to capture the stack, 22.5 ns to look up its
//! hash), and the cost of sampling (§9.3: about 5% of latency). `cargo bench -p mayfly_heap_core --bench
//! prediction [-- FILE]`; medians in ns, also as JSON in the file.

use std::ffi::c_void;
use std::hint::black_box;
use std::time::Instant;

use heap::entry::{allocate, free, start};
use heap::lifetime::{sites, unwind};
use heap::observe::profile;
use heap::thread::current;
use heap::units::call::{Call, ReturnSlot};

const BATCHES: usize = 51;
const RUNS: usize = 20_000;

/// The median time of one run.
fn time(mut run: impl FnMut(usize)) -> f64 {
    let mut batch = || {
        let began = Instant::now();
        (0..RUNS).for_each(&mut run);
        began.elapsed().as_nanos() as f64 / RUNS as f64
    };
    let mut all: Vec<f64> = (0..BATCHES).map(|_| batch()).collect();
    all.sort_by(f64::total_cmp);
    all[BATCHES / 2]
}

/// Calls `f` with this many frames above it.
#[inline(never)]
fn deep(frames: usize, f: &mut dyn FnMut()) {
    if frames == 0 {
        f()
    } else {
        deep(frames - 1, f)
    }
    black_box(frames);
}

fn call(size: usize, site: usize) -> Call {
    Call { size, caller: 0x40_0000 + site * 64, stack: 0x7FFF_0000_0000 - site % 7 * 32 }
}

unsafe extern "C" {
    fn _Unwind_Backtrace(step: extern "C" fn(*mut c_void, *mut c_void) -> i32, argument: *mut c_void) -> i32;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// The address that [`deep`] returns to, in place of malloc's caller: the last of the innermost frames.
#[inline(never)]
fn an_address_above() -> usize {
    extern "C" fn step(context: *mut c_void, argument: *mut c_void) -> i32 {
        // SAFETY: the context is the unwinder's, the argument the array below.
        let (address, seen) = unsafe { (_Unwind_GetIP(context), &mut *argument.cast::<[usize; 2]>()) };
        *seen = [seen[0] + 1, address];
        if seen[0] < 4 { 0 } else { 5 }
    }
    let mut seen = [0usize; 2];
    // SAFETY: `step` gets the array back while it lives.
    unsafe { _Unwind_Backtrace(step, (&raw mut seen).cast()) };
    seen[1]
}

fn pair(i: usize) {
    let object = allocate::allocate(black_box(call(64, i % 50)));
    free::free(black_box(object as usize), ReturnSlot::NONE);
}

fn main() {
    start::start();
    free::free(allocate::allocate(call(64, 0)) as usize, ReturnSlot::NONE);
    let heap = current::heap();
    let of = |call: &Call| sites::of(&heap.site_cache, call, heap.stack.get()).site;
    let mut rows = String::new();
    let mut row = |key: &str, what: &str, ns: f64| {
        println!("{what:<58} {ns:>9.1} ns");
        rows += &format!(",\n \"{key}_ns\": {ns:.2}");
    };
    for frames in [8, 16, 32] {
        let (mut ns, mut found) = (0.0, 0);
        deep(frames, &mut || {
            let caller = an_address_above();
            ns = time(|_| {
                let mut stack = unwind::Stack::of_most(frames);
                unwind::from(caller, &mut stack);
                found = black_box(stack.frames().len());
            });
        });
        assert_eq!(found, frames, "the whole stack was seen");
        row(&format!("stack.{frames}"), &format!("stack of {frames} frames captured (paper: 396)"), ns);
    }
    row(
        "module",
        "return address to module and offset",
        time(|_| {
            black_box(unwind::module(main as *const () as usize));
        }),
    );
    (0..200).for_each(pair);
    row(
        "table",
        "thread's table looked up (paper: 22.5)",
        time(|i| {
            black_box(heap.predicted_bin(&call(64, i % 50)));
        }),
    );
    row(
        "site.known",
        "site looked up, the thread knows it",
        time(|i| {
            black_box(of(&call(64, i % 50)));
        }),
    );
    row(
        "site.all",
        "site looked up among all",
        time(|i| {
            black_box(of(&call(64 + i % 40 * 16, i % 5000)));
        }),
    );

    let off = time(pair);
    row("pair", "malloc and free of 64 B, not sampled", off);
    let file = std::env::temp_dir().join(format!("mayfly-bench-{}.profile", std::process::id()));
    profile::start(file.to_str().expect("a path of text").as_bytes());
    let on = time(pair);
    row("pair.sampled", "the same, sampled every 512 KiB on average", on);
    profile::end();
    let after = time(pair);
    row("pair.after", "the same, when sampling has ended", after);
    let cost = (on / off.min(after) - 1.0) * 100.0;
    println!("sampling costs {cost:.1}% of malloc and free");
    std::fs::remove_file(file).expect("the profile was written");
    // Cargo adds its own option.
    if let Some(to) = std::env::args().skip(1).find(|argument| !argument.starts_with('-')) {
        let all = format!("{{\"sampling_percent\": {cost:.1}{rows}}}\n");
        std::fs::write(&to, all).unwrap_or_else(|error| panic!("{to}: {error}"));
    }
}
