//! The names of all controls, and the numbers that stand for them.

use crate::mallctl::statistics::{Large, Small, Total};

/// What a control is.
#[derive(Clone, Copy)]
pub enum Control {
    /// A text that never changes, with its NUL.
    Text(&'static [u8]),
    /// A truth value that never changes.
    Bool(bool),
    /// A number that never changes.
    Unsigned(u32),
    /// As above.
    Size(usize),
    /// As above.
    Signed(isize),
    /// Writing renews the statistics.
    Epoch,
    /// Whether the heap's maintenance thread may run.
    BackgroundThread,
    /// How many such threads may run: one.
    MaxBackgroundThreads,
    /// Bytes that the calling thread allocated.
    Allocated,
    /// The address of that number.
    AllocatedAddress,
    /// Bytes that it freed since it first asked.
    Deallocated,
    /// The address of that number.
    DeallocatedAddress,
    /// The arena of the calling thread.
    ThreadArena,
    /// Whether it has a cache: always.
    ThreadCacheEnabled,
    /// Releases the calling thread's caches.
    FlushThreadCache,
    /// Makes a thread cache for flags: a number.
    CreateCache,
    /// Flushes or destroys such a cache.
    UseCache,
    /// Makes an arena for flags: a number.
    CreateArena,
    /// The number of arenas.
    Arenas,
    /// The arena of an address.
    Lookup,
    /// Whether an arena exists.
    Initialized,
    /// Runs maintenance.
    Decay,
    /// Returns all memory that can be returned.
    Purge,
    /// Frees all objects of an arena, which this heap cannot.
    Discard,
    /// After how many ms free memory is returned.
    DecayMs,
    /// The second step of returning memory, which this heap does not have.
    MuzzyDecayMs,
    /// The number of size classes; none in the paper's layout.
    Bins,
    /// A size class.
    BinSize,
    /// Its cells in a span.
    BinCells,
    /// A size of large objects.
    LargeSize,
    /// A statistic of the whole heap.
    Total(Total),
    /// A statistic of an arena.
    Arena(Total),
    /// A statistic of its small objects.
    Small(Small),
    /// A statistic of its large objects.
    Large(Large),
    /// Objects of a size class that are in use.
    BinObjects,
    /// Spans of a size class that are in use.
    BinSpans,
}

/// The most parts that a name has.
pub const MOST_SEGMENTS: usize = 6;

const VERSION: &[u8] = concat!("5.3.0-0-g0 (Mayfly ", env!("CARGO_PKG_VERSION"), ")\0").as_bytes();

/// The controls, `#` in place of a number.
#[rustfmt::skip]
static CONTROLS: &[(&str, Control)] = &[
    ("version", Control::Text(VERSION)),
    ("epoch", Control::Epoch),
    ("background_thread", Control::BackgroundThread),
    ("max_background_threads", Control::MaxBackgroundThreads),
    ("config.cache_oblivious", Control::Bool(false)),
    ("config.debug", Control::Bool(false)),
    ("config.fill", Control::Bool(false)),
    ("config.lazy_lock", Control::Bool(false)),
    ("config.malloc_conf", Control::Text(b"\0")),
    ("config.opt_safety_checks", Control::Bool(true)),
    ("config.prof", Control::Bool(false)),
    ("config.prof_libgcc", Control::Bool(false)),
    ("config.prof_libunwind", Control::Bool(false)),
    ("config.stats", Control::Bool(true)),
    ("config.utrace", Control::Bool(false)),
    ("config.xmalloc", Control::Bool(false)),
    ("opt.abort", Control::Bool(false)),
    ("opt.abort_conf", Control::Bool(false)),
    ("opt.confirm_conf", Control::Bool(false)),
    ("opt.cache_oblivious", Control::Bool(false)),
    ("opt.metadata_thp", Control::Text(b"disabled\0")),
    ("opt.trust_madvise", Control::Bool(true)),
    ("opt.retain", Control::Bool(true)),
    ("opt.dss", Control::Text(b"disabled\0")),
    ("opt.narenas", Control::Unsigned(1)),
    ("opt.percpu_arena", Control::Text(b"disabled\0")),
    ("opt.oversize_threshold", Control::Size(0)),
    ("opt.background_thread", Control::Bool(true)),
    ("opt.max_background_threads", Control::Size(1)),
    ("opt.dirty_decay_ms", Control::Signed(heap::pages::decay::DECAY_MS as isize)),
    ("opt.muzzy_decay_ms", Control::Signed(0)),
    ("opt.stats_print", Control::Bool(false)),
    ("opt.stats_print_opts", Control::Text(b"\0")),
    ("opt.stats_interval", Control::Signed(-1)),
    ("opt.junk", Control::Text(b"false\0")),
    ("opt.zero", Control::Bool(false)),
    ("opt.tcache", Control::Bool(true)),
    ("opt.tcache_max", Control::Size(heap::units::geometry::MAX_SMALL_BYTES)),
    ("opt.thp", Control::Text(b"always\0")),
    ("opt.zero_realloc", Control::Text(b"free\0")),
    ("thread.arena", Control::ThreadArena),
    ("thread.allocated", Control::Allocated),
    ("thread.allocatedp", Control::AllocatedAddress),
    ("thread.deallocated", Control::Deallocated),
    ("thread.deallocatedp", Control::DeallocatedAddress),
    ("thread.idle", Control::FlushThreadCache),
    ("thread.tcache.enabled", Control::ThreadCacheEnabled),
    ("thread.tcache.flush", Control::FlushThreadCache),
    ("tcache.create", Control::CreateCache),
    ("tcache.flush", Control::UseCache),
    ("tcache.destroy", Control::UseCache),
    ("arenas.narenas", Control::Arenas),
    ("arenas.dirty_decay_ms", Control::DecayMs),
    ("arenas.muzzy_decay_ms", Control::MuzzyDecayMs),
    ("arenas.quantum", Control::Size(heap::units::geometry::MIN_ALIGNMENT)),
    ("arenas.page", Control::Size(heap::units::geometry::PAGE_BYTES)),
    ("arenas.tcache_max", Control::Size(heap::units::geometry::MAX_SMALL_BYTES)),
    ("arenas.nbins", Control::Bins),
    ("arenas.nhbins", Control::Bins),
    ("arenas.bin.#.size", Control::BinSize),
    ("arenas.bin.#.nregs", Control::BinCells),
    ("arenas.bin.#.slab_size", Control::Size(heap::units::geometry::SPAN_BYTES)),
    ("arenas.bin.#.nshards", Control::Unsigned(1)),
    ("arenas.nlextents", Control::Unsigned(heap::units::geometry::BLOCKS_PER_HUGE_PAGE as u32 - 1)),
    ("arenas.lextent.#.size", Control::LargeSize),
    ("arenas.create", Control::CreateArena),
    ("arenas.lookup", Control::Lookup),
    ("arena.#.initialized", Control::Initialized),
    ("arena.#.decay", Control::Decay),
    ("arena.#.purge", Control::Purge),
    ("arena.#.reset", Control::Discard),
    ("arena.#.destroy", Control::Discard),
    ("arena.#.dss", Control::Text(b"disabled\0")),
    ("arena.#.dirty_decay_ms", Control::DecayMs),
    ("arena.#.muzzy_decay_ms", Control::MuzzyDecayMs),
    ("stats.allocated", Control::Total(Total::Allocated)),
    ("stats.active", Control::Total(Total::Active)),
    ("stats.metadata", Control::Total(Total::Metadata)),
    ("stats.metadata_thp", Control::Size(0)),
    ("stats.resident", Control::Total(Total::Resident)),
    ("stats.mapped", Control::Total(Total::Mapped)),
    ("stats.retained", Control::Total(Total::Retained)),
    ("stats.background_thread.num_threads", Control::Total(Total::BackgroundThreads)),
    ("stats.arenas.#.nthreads", Control::Arena(Total::Threads)),
    ("stats.arenas.#.uptime", Control::Arena(Total::Uptime)),
    ("stats.arenas.#.dss", Control::Text(b"disabled\0")),
    ("stats.arenas.#.dirty_decay_ms", Control::DecayMs),
    ("stats.arenas.#.muzzy_decay_ms", Control::MuzzyDecayMs),
    ("stats.arenas.#.pactive", Control::Arena(Total::ActivePages)),
    ("stats.arenas.#.pdirty", Control::Arena(Total::DirtyPages)),
    ("stats.arenas.#.pmuzzy", Control::Size(0)),
    ("stats.arenas.#.mapped", Control::Arena(Total::Mapped)),
    ("stats.arenas.#.retained", Control::Arena(Total::Retained)),
    ("stats.arenas.#.base", Control::Arena(Total::Metadata)),
    ("stats.arenas.#.internal", Control::Size(0)),
    ("stats.arenas.#.resident", Control::Arena(Total::Resident)),
    ("stats.arenas.#.small.allocated", Control::Small(Small::Allocated)),
    ("stats.arenas.#.small.nmalloc", Control::Small(Small::Mallocs)),
    ("stats.arenas.#.small.ndalloc", Control::Small(Small::Frees)),
    ("stats.arenas.#.small.nrequests", Control::Small(Small::Mallocs)),
    ("stats.arenas.#.large.allocated", Control::Large(Large::Allocated)),
    ("stats.arenas.#.large.nmalloc", Control::Large(Large::Mallocs)),
    ("stats.arenas.#.large.ndalloc", Control::Large(Large::Frees)),
    ("stats.arenas.#.large.nrequests", Control::Large(Large::Mallocs)),
    ("stats.arenas.#.bins.#.curregs", Control::BinObjects),
    ("stats.arenas.#.bins.#.curslabs", Control::BinSpans),
];

/// A control that a name or numbers led to, with the numbers of the name's parts.
pub struct Found {
    row: usize,
    numbers: [usize; MOST_SEGMENTS],
    length: usize,
}

fn segments(row: usize) -> impl Iterator<Item = &'static str> {
    CONTROLS[row].0.split('.')
}

/// The number of a part of a name: the first row whose name begins in the same way.
fn number(row: usize, segment: usize) -> usize {
    let alike = |&other: &usize| segments(other).take(segment + 1).eq(segments(row).take(segment + 1));
    (0..row).find(alike).unwrap_or(row)
}

impl Found {
    /// The control.
    pub fn control(&self) -> Control {
        CONTROLS[self.row].1
    }

    /// Whether the name is that of the control, and not only its first parts.
    pub fn is_whole(&self) -> bool {
        segments(self.row).count() == self.length
    }

    /// The numbers of the name's parts.
    pub fn numbers(&self) -> &[usize] {
        &self.numbers[..self.length]
    }

    /// The numbers that choose an arena, a bin or a thread cache.
    pub fn chosen(&self) -> impl Iterator<Item = usize> {
        segments(self.row)
            .zip(self.numbers())
            .filter(|(segment, _)| *segment == "#")
            .map(|(_, &number)| number)
    }
}

/// The control of a name, or the first one that begins with it.
pub fn find(name: &[u8]) -> Option<Found> {
    (0..CONTROLS.len()).find_map(|row| {
        let (mut numbers, mut length) = ([0; MOST_SEGMENTS], 0);
        let mut pattern = segments(row);
        for segment in name.split(|&byte| byte == b'.') {
            numbers[length] = match pattern.next()? {
                "#" => core::str::from_utf8(segment).ok()?.parse().ok()?,
                literal if literal.as_bytes() == segment => number(row, length),
                _ => return None,
            };
            length += 1;
        }
        Some(Found { row, numbers, length })
    })
}

/// The control of these numbers.
pub fn find_numbers(numbers: &[usize]) -> Option<Found> {
    (0..CONTROLS.len()).find_map(|row| {
        let is_this = |(i, segment): (usize, &str)| {
            numbers.get(i).is_some_and(|&n| segment == "#" || n == number(row, i))
        };
        let all = segments(row).count() == numbers.len() && segments(row).enumerate().all(is_this);
        all.then(|| {
            let mut copy = [0; MOST_SEGMENTS];
            copy[..numbers.len()].copy_from_slice(numbers);
            Found { row, numbers: copy, length: numbers.len() }
        })
    })
}
