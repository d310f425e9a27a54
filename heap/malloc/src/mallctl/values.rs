//! Reading and writing controls.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicIsize, AtomicU32, Ordering::Relaxed};

use heap::entry::{maintenance, maintenance_thread, start, trim};
use heap::pages::{decay, direct, region};
use heap::thread::local::Heap;
use heap::thread::{current, lines};
use heap::units::call::Call;
use heap::units::geometry::BLOCK_BYTES;
use heap::units::size_class;

use crate::mallctl::names::{Control, Found};
use crate::mallctl::statistics;

/// The result of a control: an error number if it failed.
pub type Done = Result<(), c_int>;

/// The number that stands for all arenas.
const ALL_ARENAS: usize = 4096;

static ARENAS: AtomicU32 = AtomicU32::new(1);
static CACHES: AtomicU32 = AtomicU32::new(0);
static MUZZY_DECAY_MS: AtomicIsize = AtomicIsize::new(0);

/// The caller's pointers.
pub struct Access {
    old: *mut u8,
    old_length: *mut usize,
    new: *mut u8,
    new_length: usize,
}

impl Access {
    /// As mallctl got them.
    ///
    /// # Safety
    /// The pointers are null, or valid for the lengths given.
    pub unsafe fn new(old: *mut c_void, old_length: *mut usize, new: *mut c_void, new_length: usize) -> Self {
        Self { old: old.cast(), old_length, new: new.cast(), new_length }
    }

    fn writes(&self) -> bool {
        !self.new.is_null() || self.new_length != 0
    }

    fn reads(&self) -> bool {
        !self.old.is_null() || !self.old_length.is_null()
    }

    /// A control that can only be read.
    fn read_only<T: Copy>(&self, value: T) -> Done {
        if self.writes() { Err(libc::EPERM) } else { self.read(value) }
    }

    /// A control that can be neither read nor written.
    fn neither(&self) -> Done {
        if self.writes() || self.reads() { Err(libc::EPERM) } else { Ok(()) }
    }

    /// Passes the value on. A wrong length gets as much as fits, and is an error.
    fn read<T: Copy>(&self, value: T) -> Done {
        if self.old.is_null() || self.old_length.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's pointers are valid for the length given there.
        unsafe {
            let room = *self.old_length;
            let copied = room.min(size_of::<T>());
            ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), self.old, copied);
            *self.old_length = copied;
            if room == size_of::<T>() { Ok(()) } else { Err(libc::EINVAL) }
        }
    }

    /// What the caller writes, if anything.
    fn written<T: Copy>(&self) -> Result<Option<T>, c_int> {
        if self.new.is_null() {
            return Ok(None);
        }
        if self.new_length != size_of::<T>() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's pointer is valid for that length; it need not be aligned.
        Ok(Some(unsafe { self.new.cast::<T>().read_unaligned() }))
    }
}

/// Reads and writes the control.
pub fn control(found: &Found, access: Access) -> Done {
    let mut chosen = found.chosen();
    match found.control() {
        Control::Text(text) => access.read_only(text.as_ptr()),
        Control::Bool(value) => access.read_only(value),
        Control::Unsigned(value) => access.read_only(value),
        Control::Size(value) => access.read_only(value),
        Control::Signed(value) => access.read_only(value),
        Control::Epoch => {
            if access.written::<u64>()?.is_some() {
                statistics::renew();
            }
            access.read(statistics::epoch())
        }
        Control::BackgroundThread => {
            let new = access.written::<bool>()?;
            access.read(maintenance_thread::is_allowed())?;
            new.map_or(Ok(()), |on| {
                maintenance_thread::allow(on);
                Ok(())
            })
        }
        Control::MaxBackgroundThreads => {
            access.written::<usize>()?;
            access.read(1usize)
        }
        Control::Allocated => of_thread(|heap| access.read_only(heap.bytes.allocated().load(Relaxed))),
        Control::AllocatedAddress => {
            of_thread(|heap| access.read_only(ptr::from_ref(heap.bytes.allocated())))
        }
        Control::Deallocated => of_thread(|heap| access.read_only(heap.bytes.freed().load(Relaxed))),
        Control::DeallocatedAddress => of_thread(|heap| access.read_only(ptr::from_ref(heap.bytes.freed()))),
        Control::ThreadArena => {
            access.read(0u32)?;
            let new = access.written::<u32>()?.unwrap_or(0);
            if new < ARENAS.load(Relaxed) { Ok(()) } else { Err(libc::EFAULT) }
        }
        Control::ThreadCacheEnabled => {
            access.written::<bool>()?;
            access.read(true)
        }
        Control::FlushThreadCache => {
            access.neither()?;
            trim::flush();
            Ok(())
        }
        Control::CreateCache => access.read_only(CACHES.fetch_add(1, Relaxed)),
        Control::UseCache => {
            if access.reads() {
                return Err(libc::EPERM);
            }
            let is_one = |cache| cache < CACHES.load(Relaxed);
            if access.written::<u32>()?.is_some_and(is_one) { Ok(()) } else { Err(libc::EFAULT) }
        }
        // Hooks would have the program map the arena's memory itself.
        Control::CreateArena if access.writes() => Err(libc::EAGAIN),
        Control::CreateArena => access.read(ARENAS.fetch_add(1, Relaxed)),
        Control::Arenas => access.read_only(ARENAS.load(Relaxed)),
        Control::Lookup => {
            let address = access.written::<usize>()?.ok_or(libc::EINVAL)?;
            if !region::holds(address) && direct::size(address).is_none() {
                return Err(libc::EINVAL);
            }
            access.read(0u32)
        }
        Control::Initialized => {
            let arena = chosen.next().unwrap_or(0);
            if arena != ALL_ARENAS {
                is_arena(arena)?;
            }
            access.read_only(true)
        }
        Control::Decay => {
            is_arena(chosen.next().unwrap_or(0))?;
            access.neither()?;
            maintenance::run_now();
            Ok(())
        }
        Control::Purge => {
            is_arena(chosen.next().unwrap_or(0))?;
            access.neither()?;
            trim::trim();
            Ok(())
        }
        Control::Discard => {
            access.neither()?;
            Err(libc::EFAULT)
        }
        Control::DecayMs => {
            is_arena(chosen.next().unwrap_or(0))?;
            access.read(isize::try_from(decay::after_ms()).unwrap_or(-1))?;
            set_ms(access.written()?, |ms| decay::configure(u64::try_from(ms).unwrap_or(decay::NEVER)))
        }
        Control::MuzzyDecayMs => {
            is_arena(chosen.next().unwrap_or(0))?;
            access.read(MUZZY_DECAY_MS.load(Relaxed))?;
            set_ms(access.written()?, |ms| MUZZY_DECAY_MS.store(ms, Relaxed))
        }
        Control::Bins => access.read_only(bins() as u32),
        Control::BinSize => access.read_only(usize::from(size_class::CELL_BYTES[bin(chosen.next())?])),
        Control::BinCells => access.read_only(size_class::cells(bin(chosen.next())?) as u32),
        Control::LargeSize => {
            let size = chosen.next().unwrap_or(0).checked_add(2).ok_or(libc::ENOENT)? * BLOCK_BYTES;
            access.read_only(size)
        }
        Control::Total(what) => access.read_only(statistics::total(what)),
        Control::Arena(what) => {
            let value = of_arena(chosen.next(), || statistics::total(what))?;
            match what {
                statistics::Total::Threads => access.read_only(value as u32),
                _ => access.read_only(value),
            }
        }
        Control::Small(what) => access.read_only(of_arena(chosen.next(), || statistics::small(what))?),
        Control::Large(what) => access.read_only(of_arena(chosen.next(), || statistics::large(what))?),
        Control::BinObjects => {
            let (arena, class) = (chosen.next(), bin(chosen.next())?);
            access.read_only(of_arena(arena, || statistics::size_class(class).0 as u64)?)
        }
        Control::BinSpans => {
            let (arena, class) = (chosen.next(), bin(chosen.next())?);
            access.read_only(of_arena(arena, || statistics::size_class(class).1 as u64)?)
        }
    }
}

fn set_ms(new: Option<isize>, set: impl FnOnce(isize)) -> Done {
    match new {
        Some(ms) if ms < -1 => Err(libc::EFAULT),
        Some(ms) => {
            set(ms);
            Ok(())
        }
        None => Ok(()),
    }
}

fn is_arena(number: usize) -> Done {
    // The number behind the last arena's is the old name for all of them.
    if number <= ARENAS.load(Relaxed) as usize || number == ALL_ARENAS { Ok(()) } else { Err(libc::ENOENT) }
}

/// A statistic of an arena: the first one has all objects.
fn of_arena(arena: Option<usize>, read: impl FnOnce() -> u64) -> Result<u64, c_int> {
    let arena = arena.unwrap_or(0);
    is_arena(arena)?;
    let is_created = (1..ARENAS.load(Relaxed) as usize).contains(&arena);
    Ok(if is_created { 0 } else { read() })
}

fn bin(number: Option<usize>) -> Result<usize, c_int> {
    number.filter(|&class| class < bins()).ok_or(libc::ENOENT)
}

fn bins() -> usize {
    if lines::chosen() { 0 } else { size_class::COUNT }
}

/// Reads a count of the calling thread. The paper's layout counts no bytes.
fn of_thread(read: impl FnOnce(&'static Heap) -> Done) -> Done {
    if lines::chosen() {
        return Err(libc::ENOENT);
    }
    let here = 0u8;
    let call = Call { size: 0, caller: 0, stack: (&raw const here).addr() };
    let visit = start::visit(&call).ok_or(libc::EAGAIN)?;
    current::count_frees(visit.heap);
    visit.heap.bytes.renew(visit.heap.allocated_bytes());
    read(visit.heap)
}
