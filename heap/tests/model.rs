//! Compares the allocator with a model: random allocations, resizes and frees by two threads, under a set
//! clock, and every invariant of `heap::observe::check` after each step. The model knows the owner and
//! contents of each byte.
//!
//! `MODEL_SEED=N` tries other cases, `MODEL_CASES=N` more of them, and `MODEL_LOG=1` prints each step before
//! it is taken, in case the heap ends the process.

#![cfg(not(loom))]

use heap::entry::{allocate, extent, free, start, trim};
use heap::observe::{check, report};
use heap::pages::page_life::{self, Recycle};
use heap::pages::{region, retained};
use heap::system::{clock, events};
use heap::thread::lines;
use heap::units::call::{Call, ReturnSlot};
use heap::units::geometry::{BLOCK_BYTES, HUGE_PAGE_BYTES, MIN_ALIGNMENT, MIN_DIRECT_BYTES, block_index};
use heap::units::lifetime_class::CLASSES;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

/// The thread that makes a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Caller {
    Main,
    Helper,
}

/// `FreeSome`: one in this many objects, by address. `FreeTogether`: each thread frees half of some objects,
/// at the same time, and allocates. `ReplaceHelper`: the helper thread ends, and another begins.
#[derive(Clone, Debug)]
enum Step {
    Allocate { caller: Caller, size: usize, site: usize },
    AllocateAligned { caller: Caller, size: usize, alignment: usize },
    AllocateWithClass { caller: Caller, size: usize, class: usize, count: usize },
    Free { caller: Caller, object: usize },
    FreeSome { caller: Caller, of: usize },
    FreeTogether { of: usize, size: usize },
    Resize { caller: Caller, object: usize, size: usize },
    Trim { caller: Caller },
    PassTime { ms: u64 },
    ReplaceHelper,
}

fn sizes() -> impl Strategy<Value = usize> {
    let near = |center: usize, by: usize| center.saturating_sub(by)..=center + by;
    let borders = prop::sample::select(&heap::units::size_class::CELL_BYTES[..]);
    prop_oneof![
        1 => Just(0),
        6 => 0usize..=300,
        8 => borders.prop_flat_map(move |bytes| near(bytes as usize, 1)),
        3 => near(BLOCK_BYTES, 20),
        3 => (1usize..40).prop_flat_map(move |blocks| near(blocks * BLOCK_BYTES, 1)),
        1 => near(HUGE_PAGE_BYTES, 2 * BLOCK_BYTES),
        1 => (1usize..4).prop_flat_map(move |pages| near(pages * HUGE_PAGE_BYTES, 1)),
        1 => near(MIN_DIRECT_BYTES, 2 * BLOCK_BYTES),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let caller = || prop_oneof![2 => Just(Caller::Main), 1 => Just(Caller::Helper)];
    let object = any::<prop::sample::Index>().prop_map(|index| index.index(1 << 20));
    let many = prop_oneof![4 => Just(1usize), 2 => 2usize..100, 1 => 100usize..1500];
    let step = prop_oneof![
        4 => (caller(), sizes(), 0usize..6)
            .prop_map(|(caller, size, site)| Step::Allocate { caller, size, site }),
        1 => (caller(), sizes(), 0u32..23)
            .prop_map(|(caller, size, log2)| Step::AllocateAligned { caller, size, alignment: 1 << log2 }),
        5 => (caller(), sizes(), 0..CLASSES, many)
            .prop_map(|(caller, size, class, count)| Step::AllocateWithClass { caller, size, class, count }),
        4 => (caller(), object.clone()).prop_map(|(caller, object)| Step::Free { caller, object }),
        3 => (caller(), 1usize..6).prop_map(|(caller, of)| Step::FreeSome { caller, of }),
        1 => (1usize..6, sizes()).prop_map(|(of, size)| Step::FreeTogether { of, size }),
        3 => (caller(), object, sizes()).prop_map(|(caller, object, size)| Step::Resize { caller, object, size }),
        1 => caller().prop_map(|caller| Step::Trim { caller }),
        3 => prop::sample::select(&[1u64, 11, 21, 101, 201, 2_001, 20_001][..])
            .prop_map(|ms| Step::PassTime { ms }),
        1 => Just(Step::ReplaceHelper),
    ];
    prop::collection::vec(step, 20..120)
}

type Work = Box<dyn FnOnce() + Send>;

/// A thread that runs the work that it receives.
struct Helper {
    sender: Option<mpsc::Sender<Work>>,
    done: mpsc::Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    fn new() -> Self {
        let (sender, receiver) = mpsc::channel::<Work>();
        let (finished, done) = mpsc::channel();
        let work = move || receiver.into_iter().for_each(|work| (work(), finished.send(()).unwrap()).1);
        Self { sender: Some(sender), done, thread: Some(thread::spawn(work)) }
    }

    fn begin(&self, work: impl FnOnce() + Send + 'static) {
        self.sender.as_ref().unwrap().send(Box::new(work)).unwrap();
    }

    fn wait(&self) {
        self.done.recv().expect("the helper thread runs its work");
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.sender = None;
        let _ = self.thread.take().unwrap().join();
    }
}

/// A live object: its requested and its usable size.
struct Object {
    size: usize,
    usable: usize,
    tag: u64,
    /// The lifetime class, if the caller chose it.
    class: Option<usize>,
}

struct Model {
    /// By address.
    objects: BTreeMap<usize, Object>,
    live_bytes: usize,
    helper: Helper,
    tags: u64,
    now_ms: u64,
}

/// The most bytes that are kept live.
const MOST_LIVE_BYTES: usize = 192 << 20;

/// The places of an object that are written: all words of a small one; the ends and one word a page of a
/// large one.
fn marked_places(size: usize) -> impl Iterator<Item = usize> {
    let words = size / 8;
    let step = if size <= 2 * BLOCK_BYTES { 1 } else { 512 };
    (0..words).step_by(step).chain(words.checked_sub(1)).map(|word| word * 8)
}

fn write(address: usize, size: usize, tag: u64) {
    for at in marked_places(size) {
        // SAFETY: within the object, which is live and the caller's.
        unsafe { ((address + at) as *mut u64).write_unaligned(tag ^ at as u64) };
    }
    for at in size / 8 * 8..size {
        // SAFETY: as above.
        unsafe { ((address + at) as *mut u8).write(tag as u8) };
    }
}

fn check_contents(address: usize, size: usize, tag: u64) {
    for at in marked_places(size) {
        // SAFETY: as in `write`.
        let found = unsafe { ((address + at) as *const u64).read_unaligned() };
        assert_eq!(found, tag ^ at as u64, "{address:#x} + {at} of {size} bytes was overwritten");
    }
    for at in size / 8 * 8..size {
        // SAFETY: as in `write`.
        assert_eq!(unsafe { ((address + at) as *const u8).read() }, tag as u8, "{address:#x} + {at}");
    }
}

fn call(size: usize, site: usize) -> Call {
    Call { size, caller: 0x40_0000 + site * 64, stack: 0x7000_0000 }
}

impl Model {
    fn new(now_ms: u64) -> Self {
        Self { objects: BTreeMap::new(), live_bytes: 0, helper: Helper::new(), tags: 0, now_ms }
    }

    /// Runs `f` in one of the threads.
    fn by<T: Send + 'static>(&self, caller: Caller, f: impl FnOnce() -> T + Send + 'static) -> T {
        if caller == Caller::Main {
            return f();
        }
        let (give, result) = mpsc::channel();
        self.helper.begin(move || give.send(f()).unwrap());
        let result = result.recv().expect("the helper thread runs its work");
        self.helper.wait();
        result
    }

    /// Checks a new object: it is aligned, large enough, and overlaps no other.
    fn add(&mut self, address: usize, size: usize, alignment: usize, class: Option<usize>) {
        assert_ne!(address, 0, "there is memory for {size} bytes");
        assert!(address.is_multiple_of(alignment.max(MIN_ALIGNMENT)), "{address:#x} for {alignment}");
        let usable = extent::usable_size(address, 0);
        assert!(usable >= size, "{usable} bytes for {size}");
        let end = address + usable.max(1);
        if let Some((&before, object)) = self.objects.range(..end).next_back() {
            assert!(before + object.usable.max(1) <= address, "{address:#x} overlaps {before:#x}");
        }
        self.tags += 1;
        let tag = self.tags.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        write(address, size, tag);
        self.live_bytes += usable;
        self.objects.insert(address, Object { size, usable, tag, class });
    }

    /// Checks that an object kept its contents, and removes it before it is freed.
    fn remove(&mut self, address: usize) {
        let object = self.objects.remove(&address).unwrap();
        self.live_bytes -= object.usable;
        check_contents(address, object.size, object.tag);
    }

    fn free(&mut self, caller: Caller, addresses: Vec<usize>) {
        addresses.iter().for_each(|&address| self.remove(address));
        self.by(caller, move || {
            addresses.into_iter().for_each(|address| free::free(address, ReturnSlot::NONE))
        });
    }

    /// The n-th object, counted around.
    fn nth(&self, n: usize) -> Option<usize> {
        let count = self.objects.len();
        (count > 0).then(|| *self.objects.keys().nth(n % count).unwrap())
    }

    fn one_of(&self, of: usize) -> Vec<usize> {
        self.objects.keys().copied().step_by(of).collect()
    }

    fn allocate(
        &mut self,
        caller: Caller,
        size: usize,
        alignment: usize,
        class: Option<usize>,
        f: impl FnOnce() -> *mut u8 + Send + 'static,
    ) {
        if self.live_bytes + size <= MOST_LIVE_BYTES {
            let address = self.by(caller, move || f() as usize);
            if address != 0 && extent::reads_as_zero(address) {
                let size = extent::usable_size(address, 0);
                let some = [0, size / 4, size / 2, size / 4 * 3, size - 1];
                // SAFETY: all of these bytes are the new object's.
                let read = unsafe { some.map(|at| (address as *const u8).add(at).read()) };
                assert_eq!(read, [0; 5], "it was never written");
            }
            self.add(address, size, alignment, class);
        }
    }

    /// LLAMA §6.1, 2), as `heap::observe::check` checks it for spans: here for all objects of known class.
    fn check_classes(&self) {
        for (&address, object) in &self.objects {
            let Some(class) = object.class.filter(|_| region::holds(address)) else { continue };
            let page = region::huge_page(address);
            assert!(
                class <= page.class(),
                "{address:#x} of class {class} is on a page of class {}",
                page.class()
            );
            let residual = page.residual.get(block_index(address));
            assert!(residual || class < page.class(), "{address:#x} of class {class} is not residual");
        }
    }

    /// As realloc does it.
    fn resize(&mut self, caller: Caller, address: usize, size: usize) {
        if self.live_bytes + size > MOST_LIVE_BYTES || size == 0 {
            return;
        }
        let Object { size: old_size, tag, .. } = self.objects.remove(&address).unwrap();
        check_contents(address, old_size, tag);
        let kept = size.min(old_size);
        let (moved, usable_before) = self.by(caller, move || {
            let usable = extent::usable_size(address, 0);
            if let Some(resized) = extent::resize_in_place(address, &call(size, 8)) {
                return (resized as usize, usable);
            }
            let new = allocate::allocate(call(size, 8));
            // SAFETY: both objects are live and at least this large; they are not the same.
            unsafe { std::ptr::copy_nonoverlapping(address as *const u8, new, kept) };
            free::free(address, ReturnSlot::NONE);
            (new as usize, usable)
        });
        self.live_bytes -= usable_before;
        for at in marked_places(old_size).filter(|at| at + 8 <= kept) {
            // SAFETY: within the part that is kept.
            let found = unsafe { ((moved + at) as *const u64).read_unaligned() };
            assert_eq!(found, tag ^ at as u64, "realloc to {size} keeps the contents");
        }
        self.add(moved, size, 1, None);
    }

    /// Time passes, and slow paths read the clock now and then.
    fn pass_time(&mut self, ms: u64) {
        self.now_ms += ms;
        clock::set(self.now_ms * 1_000_000);
        for caller in [Caller::Main, Caller::Helper] {
            self.by(caller, || {
                for _ in 0..8 {
                    free::free(allocate::allocate_with_class(call(16, 9), 0) as usize, ReturnSlot::NONE);
                }
            });
        }
    }

    fn free_together(&mut self, of: usize, size: usize) {
        let all = self.one_of(of);
        all.iter().for_each(|&address| self.remove(address));
        let (own, others): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(i, _)| i % 2 == 0);
        let (give, result) = mpsc::channel();
        let size = size.min(HUGE_PAGE_BYTES);
        let churn = move |addresses: Vec<(usize, usize)>| {
            let mut new = Vec::new();
            for (i, address) in addresses {
                free::free(address, ReturnSlot::NONE);
                if i % 16 < 2 {
                    new.push(allocate::allocate_with_class(call(size, 10), i % CLASSES) as usize);
                }
            }
            // Frees all but a few at once.
            new.drain(4.min(new.len())..).for_each(|address| free::free(address, ReturnSlot::NONE));
            new
        };
        self.helper.begin(move || give.send(churn(others)).unwrap());
        let mut new = churn(own);
        new.extend(result.recv().expect("the helper thread runs its work"));
        self.helper.wait();
        new.into_iter().for_each(|address| self.add(address, size, 1, None));
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Allocate { caller, size, site } => {
                self.allocate(caller, size, 1, None, move || allocate::allocate(call(size, site)));
            }
            Step::AllocateAligned { caller, size, alignment } => {
                let aligned = move || allocate::allocate_aligned(call(size, 7), alignment);
                self.allocate(caller, size, alignment, None, aligned);
            }
            Step::AllocateWithClass { caller, size, class, count } => {
                for _ in 0..count.min((64 << 20) / (size + 1)).max(1) {
                    let classed = move || allocate::allocate_with_class(call(size, 6), class);
                    self.allocate(caller, size, 1, Some(class), classed);
                }
            }
            Step::Free { caller, object } => {
                let objects = self.nth(object).into_iter().collect();
                self.free(caller, objects);
            }
            Step::FreeSome { caller, of } => {
                let objects = self.one_of(of);
                self.free(caller, objects);
            }
            Step::FreeTogether { of, size } => self.free_together(of, size),
            Step::Resize { caller, object, size } => {
                if let Some(address) = self.nth(object) {
                    self.resize(caller, address, size);
                }
            }
            Step::Trim { caller } => {
                self.by(caller, trim::trim);
            }
            Step::PassTime { ms } => self.pass_time(ms),
            Step::ReplaceHelper => self.helper = Helper::new(),
        }
    }

    /// All objects are freed: what remains is cached, and after a flush nothing does.
    fn finish(mut self) -> u64 {
        let objects = self.one_of(1);
        self.free(Caller::Main, objects);
        assert_eq!(check::invariants(), Ok(()), "when all is freed");
        for caller in [Caller::Main, Caller::Helper, Caller::Main] {
            self.by(caller, trim::trim);
        }
        assert_eq!(check::invariants(), Ok(()), "when all is given back");
        assert_eq!((events::pages(), retained::count()), (0, 0), "pages are left when all is given back");
        self.now_ms
    }
}

/// Checks that the steps have reached all paths: otherwise the test covers less than it seems.
fn check_that_all_happened() {
    let report = report::json();
    let report = std::str::from_utf8(report.bytes()).unwrap();
    let both = ["blocks_recycled", "deadlines_expired", "pages_promoted", "pages_demoted", "pages_returned"];
    let by_layout = match lines::chosen() {
        true => ["spans_reopened", "overflow_spans", "blocks_recycled"],
        false => ["remote_words_collected", "lifetimes_measured", "blocks_refilled"],
    };
    for event in both.iter().chain(&by_layout) {
        assert!(!report.contains(&format!("\"heap.{event}\":0")), "{event} did not happen: {report}");
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect(name))
}

#[test]
fn the_heap_agrees_with_the_model() {
    let config = Config {
        cases: number("MODEL_CASES", 100) as u32,
        max_shrink_iters: 0, // a broken heap stays broken
        failure_persistence: None,
        ..Config::default()
    };
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number("MODEL_SEED", 1).to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let log = number("MODEL_LOG", 0) > 0;
    start::start(); // which reads the configuration: the layout is chosen there
    let now_ms = std::cell::Cell::new(1_000);
    clock::set(now_ms.get() * 1_000_000);
    let policies = [Recycle::Fill, Recycle::Longest];
    let cases = (steps(), 0..policies.len(), prop::sample::select(vec![0, 2, retained::IN_PROPORTION]));
    let result = runner.run(&cases, |(steps, policy, retain)| {
        page_life::configure(policies[policy], 2);
        retained::configure(retain);
        let mut model = Model::new(now_ms.get());
        for step in &steps {
            if log {
                eprintln!("{step:?}");
            }
            model.take(step);
            assert_eq!(check::invariants(), Ok(()), "after {step:?}");
            model.check_classes();
        }
        now_ms.set(model.finish());
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
    check_that_all_happened();
}

/// The same with spans divided by lines, in its own process: the layout is chosen once.
#[test]
fn the_heap_by_lines_agrees_with_the_model() {
    if std::env::var_os("MAYFLY_HEAP_SPANS").is_some() {
        return;
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_heap_agrees_with_the_model", "--nocapture"])
        .env("MAYFLY_HEAP_SPANS", "lines")
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}
