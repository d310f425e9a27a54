//! The lifetime model in this process (LLAMA §7): loads its file, and classifies a call by its calling
//! context.
//!
//! [`load`] maps and checks the file once. A prediction unwinds the stack, finds each return address' module
//! and with it the frame's number, and runs the network, all on the calling thread's stack. It allocates,
//! locks and shares nothing but caches of the modules' build-ids and of return addresses, so several threads
//! predict at once.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use lifetime_model::file::{MAX_FRAMES, UNKNOWN_FRAME};
use lifetime_model::{Kernel, Model};

use crate::lifetime::{model_validation, unwind};
use crate::system::events::{self, Event};
use crate::system::files;
use crate::system::lock::Lock;
use crate::system::os;
use crate::system::paths::PATH_BYTES;
use crate::system::text::warn;
use crate::units::lifetime_class::{self, CLASSES, FOREVER};

struct Loaded {
    model: Model<'static>,
    kernel: Kernel,
    /// The lifetime class of each output.
    classes: [u8; lifetime_model::file::MAX_OUTPUTS],
    bytes: usize,
    id: u64,
}

struct Slot(UnsafeCell<MaybeUninit<Loaded>>);
// SAFETY: written once, before `READY` is set, and only read afterwards.
unsafe impl Sync for Slot {}

static SLOT: Slot = Slot(UnsafeCell::new(MaybeUninit::uninit()));
static READY: AtomicBool = AtomicBool::new(false);

fn loaded() -> Option<&'static Loaded> {
    // SAFETY: see `Slot`.
    READY.load(Acquire).then(|| unsafe { (*SLOT.0.get()).assume_init_ref() })
}

/// Bytes of the model's file; 0 without one. Its used pages are in memory, shared by all its processes.
pub fn bytes() -> usize {
    loaded().map_or(0, |loaded| loaded.bytes)
}

/// The model's checksum, which identifies it; 0 without one.
pub fn id() -> u64 {
    loaded().map_or(0, |loaded| loaded.id)
}

/// Loads the file that `path` names; once, before the first allocation. `false`: the heap runs on without a
/// model, and one line on stderr names the reason.
pub fn load(path: &[u8]) -> bool {
    let shown = core::str::from_utf8(path).unwrap_or("(not UTF-8)");
    let mut with_nul = [0; PATH_BYTES];
    let mapped = match with_nul.get_mut(..path.len()) {
        Some(place) if path.len() < PATH_BYTES => {
            place.copy_from_slice(path);
            files::map_file(&with_nul[..=path.len()])
        }
        _ => None,
    };
    let Some((at, bytes)) = mapped else {
        warn(format_args!("model {shown} cannot be read; learning online"));
        return false;
    };
    // SAFETY: a fresh private mapping of that many bytes; unmapped below only if no part of it is kept.
    let file: &'static [u8] = unsafe { core::slice::from_raw_parts(at as *const u8, bytes) };
    match Model::parse(file) {
        Ok(model) => {
            let mut classes = [FOREVER as u8; lifetime_model::file::MAX_OUTPUTS];
            for (class, &limit) in classes.iter_mut().zip(model.limits) {
                *class = lifetime_class::of_limit_ms(limit) as u8;
            }
            let id = file.get(24..32).and_then(|id| id.try_into().ok()).map_or(0, u64::from_le_bytes);
            // SAFETY: no thread reads it before READY.
            unsafe { (*SLOT.0.get()).write(Loaded { model, kernel: Kernel::best(), classes, bytes, id }) };
            READY.store(true, Release);
            model_validation::begin();
            files::forget_pages(at, bytes); // the checks read all of it; predictions need little
            true
        }
        Err(what) => {
            os::unmap(at, bytes);
            warn(format_args!("model {shown}: {what}; learning online"));
            false
        }
    }
}

/// The model's class for the allocation whose function `caller` returns to; `None` without a model, or if a
/// table model does not know the context.
#[cold]
pub fn predict(caller: usize) -> Option<usize> {
    let loaded = loaded().filter(|_| model_validation::is_trusted())?;
    let (began_ns, began_cpu_ns) = (os::precise_ns(), os::thread_cpu_ns());
    let mut stack = unwind::Stack::of_most(loaded.model.max_frames);
    os::keep_errno(|| unwind::from(caller, &mut stack));
    let mut frames = [UNKNOWN_FRAME; MAX_FRAMES];
    let (mut in_modules, mut in_known) = (0, 0);
    for (frame, &address) in frames.iter_mut().zip(stack.frames()) {
        let place = place_of(&loaded.model, address);
        in_modules += u32::from(place != NO_MODULE);
        if place < FOREIGN_MODULE {
            in_known += 1;
            *frame = place;
        }
    }
    model_validation::looked_at(in_modules, in_known);
    let output = loaded.model.classify(loaded.kernel, &frames[..stack.frames().len()]);
    events::count(Event::ModelRun);
    events::add(Event::ModelCpuNs, os::thread_cpu_ns().saturating_sub(began_cpu_ns));
    events::add(Event::ModelNs, os::precise_ns().saturating_sub(began_ns));
    loaded.classes.get(output?).map(|&class| usize::from(class).min(CLASSES - 1))
}

/// Placeholders for a frame's number: the address is in a module unknown to the model, or in none.
const FOREIGN_MODULE: u32 = u32::MAX - 1;
const NO_MODULE: u32 = u32::MAX;

/// A cache of recent return addresses: a stack has few new ones, and searching a file's functions waits for
/// memory. An entry is a result, and the result combined with the address: a reader of a half-written entry
/// sees that they do not match.
const PLACES: usize = 2048;
static KNOWN_PLACES: [[AtomicUsize; 2]; PLACES] = [const { [const { AtomicUsize::new(0) }; 2] }; PLACES];

/// The number of a return address in the model.
fn place_of(model: &Model, address: usize) -> u32 {
    let hash = (address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - PLACES.ilog2());
    let [combined, found] = &KNOWN_PLACES[hash as usize];
    let known = found.load(Relaxed);
    if combined.load(Relaxed) ^ known.rotate_left(32) == address {
        return known as u32;
    }
    let place = match unwind::module(address) {
        None => return NO_MODULE, // code that was made at run time may become other code
        Some(module) => match module_number(model, &module) {
            None => FOREIGN_MODULE,
            Some(number) => {
                let offset = address.wrapping_sub(module.load_address).wrapping_sub(1);
                model.frame(number, offset as u64)
            }
        },
    };
    found.store(place as usize, Relaxed);
    combined.store((place as usize).rotate_left(32) ^ address, Relaxed);
    place
}

/// The numbers of modules in the model, by where they are mapped.
const KNOWN: usize = 256;
struct KnownModule {
    /// Where it is mapped; 0 for none. Written last.
    start: AtomicUsize,
    end: AtomicUsize,
    /// Its number plus one; 0 if the model does not have it.
    number: AtomicU32,
}
static KNOWN_MODULES: [KnownModule; KNOWN] = [const {
    KnownModule { start: AtomicUsize::new(0), end: AtomicUsize::new(0), number: AtomicU32::new(0) }
}; KNOWN];
static ADDING: Lock = Lock::new();

/// The number of a module in the model. A module that is loaded at the addresses of an unloaded one may be
/// mistaken for it: its objects then get wrong classes, which costs packing only.
fn module_number(model: &Model, found: &unwind::Module) -> Option<u32> {
    let place = |i: usize| {
        &KNOWN_MODULES[((found.start >> 12).wrapping_mul(0x9E37_79B1) >> 8).wrapping_add(i) % KNOWN]
    };
    let known = |entry: &&KnownModule| {
        entry.start.load(Acquire) == found.start && entry.end.load(Relaxed) == found.end
    };
    let entry = match (0..8).map(place).find(known) {
        Some(entry) => entry,
        None => {
            let number =
                unwind::build_id(found).and_then(|id| model.module(id)).map_or(0, |number| number + 1);
            let _guard = ADDING.lock();
            let Some(entry) = (0..8).map(place).find(|entry| entry.start.load(Relaxed) == 0) else {
                return number.checked_sub(1);
            };
            entry.end.store(found.end, Relaxed);
            entry.number.store(number, Relaxed);
            entry.start.store(found.start, Release);
            entry
        }
    };
    entry.number.load(Relaxed).checked_sub(1)
}
