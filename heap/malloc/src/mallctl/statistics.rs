//! The statistics of jemalloc's names. They show one moment, which writing `epoch` renews.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use heap::entry::maintenance_thread;
use heap::observe::stats::{self, Census};
use heap::system::clock;
use heap::system::events::Event;
use heap::system::lock::Lock;
use heap::thread::local::Heap;
use heap::thread::registry;
use heap::units::geometry::PAGE_BYTES;
use heap::units::geometry::{HUGE_PAGE_BYTES, HUGE_PAGE_METADATA_BYTES, SPAN_METADATA_PER_HUGE_PAGE};
use heap::units::size_class;

/// Sizes of the whole heap.
#[derive(Clone, Copy)]
pub enum Total {
    /// Bytes of live objects.
    Allocated,
    /// Bytes of spans and blocks with live objects.
    Active,
    /// As above, in pages.
    ActivePages,
    /// Pages without live objects that may be resident.
    DirtyPages,
    /// Bytes of the heap's own tables.
    Metadata,
    /// Bytes that may be resident.
    Resident,
    /// Bytes mapped for objects.
    Mapped,
    /// Bytes of addresses whose memory was returned.
    Retained,
    /// Threads that have allocated and run.
    Threads,
    /// Nanoseconds since the start.
    Uptime,
    /// The heap's maintenance threads that run.
    BackgroundThreads,
}

/// Statistics of small objects.
#[derive(Clone, Copy)]
pub enum Small {
    /// Their bytes.
    Allocated,
    /// How many were allocated.
    Mallocs,
    /// How many were freed.
    Frees,
}

/// Statistics of large objects.
#[derive(Clone, Copy)]
pub enum Large {
    /// Their bytes.
    Allocated,
    /// How many were allocated.
    Mallocs,
    /// How many were freed.
    Frees,
}

/// One moment of the heap.
struct Moment {
    census: Census,
    unused_cells: u64,
}

struct Shown(UnsafeCell<Option<Moment>>);
// SAFETY: used only with LOCK held.
unsafe impl Sync for Shown {}
static SHOWN: Shown = Shown(UnsafeCell::new(None));
static LOCK: Lock = Lock::new();
static EPOCH: AtomicU64 = AtomicU64::new(1);

fn now() -> Moment {
    let unused =
        |heap: &'static Heap| heap.bins().iter().map(|bin| u64::from(bin.unused_cells())).sum::<u64>();
    Moment { census: stats::census(), unused_cells: registry::heaps().map(unused).sum() }
}

/// The number of the moment that is shown.
pub fn epoch() -> u64 {
    EPOCH.load(Relaxed)
}

/// Shows the present moment from now on.
pub fn renew() {
    let _guard = LOCK.lock();
    // SAFETY: the lock is held.
    unsafe { *SHOWN.0.get() = Some(now()) };
    EPOCH.fetch_add(1, Relaxed);
}

fn shown<T>(read: impl FnOnce(&Moment) -> T) -> T {
    let _guard = LOCK.lock();
    // SAFETY: the lock is held, and `read` does not come here again.
    read(unsafe { (*SHOWN.0.get()).get_or_insert_with(now) })
}

fn metadata() -> usize {
    let pages = stats::used_huge_pages();
    let heaps = registry::heaps().count() * size_of::<Heap>();
    heaps + pages * (SPAN_METADATA_PER_HUGE_PAGE + HUGE_PAGE_METADATA_BYTES)
}

/// A size of the whole heap.
pub fn total(what: Total) -> u64 {
    let of_census = |read: fn(&Census) -> usize| shown(|moment| read(&moment.census));
    let found = match what {
        Total::Allocated => of_census(|census| census.live_bytes),
        Total::Active => of_census(Census::active_bytes),
        Total::ActivePages => of_census(|census| census.active_bytes() / PAGE_BYTES),
        Total::DirtyPages => {
            of_census(|census| census.resident_bytes.saturating_sub(census.active_bytes()) / PAGE_BYTES)
        }
        Total::Metadata => metadata(),
        Total::Resident => of_census(resident) + metadata(),
        Total::Mapped => of_census(Census::mapped_bytes),
        Total::Retained => {
            let addresses = stats::used_huge_pages() * HUGE_PAGE_BYTES;
            addresses.saturating_sub(of_census(|census| resident(census) - census.direct.1))
        }
        Total::Threads => registry::in_use(),
        Total::Uptime => return clock::now_ms() * 1_000_000,
        Total::BackgroundThreads => maintenance_thread::runs() as usize,
    };
    found as u64
}

/// Bytes that may be resident, at least those of spans and blocks in use.
fn resident(census: &Census) -> usize {
    census.resident_bytes.max(census.active_bytes())
}

fn of(event: Event) -> u64 {
    stats::total(event as usize)
}

fn small_objects(census: &Census) -> u64 {
    census.size_classes.objects.iter().sum::<usize>() as u64
}

/// A statistic of small objects.
pub fn small(what: Small) -> u64 {
    shown(|moment| {
        let mallocs = of(Event::CellsTaken).saturating_sub(moment.unused_cells);
        match what {
            Small::Allocated => moment.census.small_bytes as u64,
            Small::Mallocs => mallocs,
            Small::Frees => mallocs.saturating_sub(small_objects(&moment.census)),
        }
    })
}

/// A statistic of large objects.
pub fn large(what: Large) -> u64 {
    shown(|moment| {
        let census = &moment.census;
        let mallocs = of(Event::LargeAllocated) + of(Event::LargeFromCache);
        match what {
            Large::Allocated => (census.live_bytes - census.small_bytes) as u64,
            Large::Mallocs => mallocs,
            Large::Frees => mallocs.saturating_sub(census.objects as u64 - small_objects(census)),
        }
    })
}

/// Live objects of a size class, and spans that have some.
pub fn size_class(class: usize) -> (usize, usize) {
    debug_assert!(class < size_class::COUNT);
    shown(|moment| (moment.census.size_classes.objects[class], moment.census.size_classes.spans[class]))
}
