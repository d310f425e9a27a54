//! Every number of the hardware in one place (Table 3), and a switch for each mechanism (Fig. 9).

use serde::{Deserialize, Serialize};

/// How an object is freed by a thread that did not allocate it (§4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NonLocalFree {
    /// BusRdX makes the arena's header exclusive; the local HOT updates it.
    Hardware,
    /// A buffer for each thread, which a software handler empties.
    Batch,
}

/// Parameters of the Memento units; the defaults are the paper's; where it names none, the field gives the
/// reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// obj-alloc in hardware; off: an allocation takes `software_alloc_cycles`.
    pub object_alloc: bool,
    /// obj-free in hardware; off: a free takes `software_free_cycles`.
    pub object_free: bool,
    /// An instruction takes the place of the program's call of malloc or free (§5); off: it is in the
    /// function that the program calls, behind a comparison (§4, the first way).
    pub replaces_calls: bool,
    /// Pages by the page allocator; off: the first touch of a page takes `software_page_fault_cycles`.
    pub page_management: bool,
    /// New lines are instantiated in the LLC and not read from DRAM (§3.3).
    pub bypass: bool,
    /// The next arena is loaded when the last object of the current one is allocated (§3.1).
    pub eager: bool,
    /// Frees that miss the HOT do not stall the program (§6.4).
    pub background_free_misses: bool,
    /// How many of them may be on their way at a time; the next free waits for the first to be done.
    pub background_frees: usize,
    /// Walks' entries are fetched by the page allocator (§3.2), and no cache on the way to it has them; off:
    /// through the core's caches, as those of an ordinary page table.
    pub walks_by_page_allocator: bool,
    /// A page is cleared when the pool hands it out. The paper does not do this: software expects nothing of
    /// a new object (§3.3). But an object that is first read after its arena has left the HOT is read from
    /// DRAM, and that may hold another process's data.
    pub clear_pages: bool,
    /// Lines that the LLC makes are clean, as if DRAM had their zeroes: one that is evicted before it is
    /// written would be read with other contents.
    pub clean_lines: bool,
    /// An arena is as many whole pages as its 256 objects are: the header has the place of the last ones.
    /// Off: it comes before them (§3.1, Fig. 5a), and their last bytes take a page more.
    pub whole_pages: bool,
    /// All 64 classes get an arena when a thread first allocates (§3.1); off: each at its first use.
    pub initialise_all_classes: bool,
    /// Frees of other threads' objects.
    pub non_local_free: NonLocalFree,
    /// A context switch empties the buffer of non-local frees (§4).
    pub drain_at_switch: bool,

    /// An operation that hits in the HOT (Table 3).
    pub hot_cycles: u64,
    /// A look-up in the AAC (Table 3).
    pub aac_cycles: u64,
    /// Entries of the AAC, one for each core (Table 3).
    pub aac_entries: usize,
    /// Pointers in an entry of the AAC, for "a small number of size classes" (§3.2): with 7 of them CACTI's
    /// area and power come closest to the paper's (`bench/sim/cost/run`).
    pub aac_pointers: usize,
    /// A message from a core to the page allocator and back, without its work: as far as the LLC (Table 3).
    pub request_cycles: u64,
    /// Taking a page from the pool, or putting one back.
    pub pool_cycles: u64,
    /// Entries of the paging-structure cache that a walk starts from; as many as of the machine's own walker.
    pub walk_cache_entries: usize,
    /// One core's TLB shootdown, once its message has arrived.
    pub shootdown_cycles: u64,
    /// Pages that the OS puts into the pool when it is empty.
    pub refill_pages: u64,
    /// The OS's time for that: entering the kernel and leaving it.
    pub refill_cycles: u64,
    /// And for each page, from the kernel's free lists in bulk.
    pub refill_page_cycles: u64,
    /// Non-local frees in a thread's buffer.
    pub batch_objects: usize,
    /// Signalling the software handler that the buffer is full: a user interrupt's entry and exit.
    pub batch_signal_cycles: u64,

    /// An allocation in software, for `object_alloc = false`: the mean of a baseline run.
    pub software_alloc_cycles: u64,
    /// A free in software.
    pub software_free_cycles: u64,
    /// A page fault in the kernel.
    pub software_page_fault_cycles: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            object_alloc: true,
            object_free: true,
            replaces_calls: true,
            page_management: true,
            bypass: true,
            eager: true,
            background_free_misses: true,
            background_frees: 8,
            walks_by_page_allocator: true,
            clear_pages: false,
            clean_lines: false,
            whole_pages: false,
            initialise_all_classes: true,
            non_local_free: NonLocalFree::Hardware,
            drain_at_switch: true,
            hot_cycles: 2,
            aac_cycles: 1,
            aac_entries: 32,
            aac_pointers: 7,
            request_cycles: 40,
            pool_cycles: 1,
            walk_cache_entries: 32,
            shootdown_cycles: 40,
            refill_pages: 512,
            refill_cycles: 1500,
            refill_page_cycles: 50,
            batch_objects: 32,
            batch_signal_cycles: 1000,
            software_alloc_cycles: 60,
            software_free_cycles: 40,
            software_page_fault_cycles: 2500,
        }
    }
}
