//! The table of large allocations, and which threads may use each now.
//!
//! The table has a fixed size and its lock never allocates, because malloc and free take it. A block that is
//! *held* is being hashed or merged: it stays mapped, and `free` and its like wait until it is released.

use std::cell::UnsafeCell;
use std::sync::atomic::Ordering;

use mappings::per_process::PerProcess;

use crate::block::{Block, Contents, PAGE, RIGHTS};
use crate::freed::FreedBlocks;

const MAX_BLOCKS: usize = 4096;

struct Table {
    blocks: [Block; MAX_BLOCKS],
    count: usize,
    freed: FreedBlocks,
    next_number: u64,
    held: Option<u64>,
    /// Threads that are about to fork: until they have, no block can be held.
    forking: usize,
}

struct Shared {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    released: UnsafeCell<libc::pthread_cond_t>,
    table: UnsafeCell<Table>,
}

// SAFETY: `table` is reached only through `Guard`, which has the lock; the lock and the condition are made
// for sharing.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    released: UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER),
    table: UnsafeCell::new(Table {
        blocks: [Block::NONE; MAX_BLOCKS],
        count: 0,
        freed: FreedBlocks::NONE,
        next_number: 1,
        held: None,
        forking: 0,
    }),
};

/// Whether the lock and the table's threads are this process's.
static BEGUN: PerProcess<1> = PerProcess::new();
const BEGINS: usize = 1;
const HAS_BEGUN: usize = 2;

/// In a new process: no thread has the lock, holds a block or is about to fork. A child that was forked by
/// clone has run no handlers.
fn begin() {
    let word = &BEGUN.words()[0];
    while word.load(Ordering::Acquire) != HAS_BEGUN {
        if word.compare_exchange(0, BEGINS, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            // SAFETY: other threads of this process wait below for the end of this; its parent's do not exist
            // here.
            unsafe {
                *SHARED.lock.get() = libc::PTHREAD_MUTEX_INITIALIZER;
                *SHARED.released.get() = libc::PTHREAD_COND_INITIALIZER;
                (*SHARED.table.get()).held = None;
                (*SHARED.table.get()).forking = 0;
                // The parent's would stay here when it takes or unmaps them.
                (*SHARED.table.get()).freed.close();
            }
            word.store(HAS_BEGUN, Ordering::Release);
        } else {
            std::thread::yield_now();
        }
    }
}

/// The lock, and with it the table.
struct Guard;

impl Guard {
    fn take() -> Guard {
        begin();
        // SAFETY: initialised statically, never moved or destroyed; a thread that has it does not take it
        // again.
        unsafe { libc::pthread_mutex_lock(SHARED.lock.get()) };
        Guard
    }

    fn table(&mut self) -> &mut Table {
        // SAFETY: the guard has the lock, and lends the table for as long as it is itself borrowed.
        unsafe { &mut *SHARED.table.get() }
    }

    /// Waits while the table satisfies the condition.
    fn wait_while(&mut self, condition: impl Fn(&Table) -> bool) {
        while condition(self.table()) {
            // SAFETY: the guard has the lock.
            unsafe { libc::pthread_cond_wait(SHARED.released.get(), SHARED.lock.get()) };
        }
    }

    /// Wakes all waiting threads.
    fn wake_all(&self) {
        // SAFETY: initialised statically.
        unsafe { libc::pthread_cond_broadcast(SHARED.released.get()) };
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: the guard has the lock.
        unsafe { libc::pthread_mutex_unlock(SHARED.lock.get()) };
    }
}

impl Table {
    fn blocks(&mut self) -> &mut [Block] {
        &mut self.blocks[..self.count]
    }

    fn position(&mut self, start: usize) -> Option<usize> {
        self.blocks().iter().position(|block| block.start == start)
    }

    fn add(&mut self, start: usize, bytes: usize, contents: Contents) {
        let number = self.next_number;
        self.blocks[self.count] = Block { start, bytes, number, contents, is_advised: false };
        self.count += 1;
        self.next_number += 1;
    }
}

/// A block: one that was freed, or a new mapping. None when the table is full or there is no memory.
pub fn allocate(bytes: usize, contents: Contents) -> Option<usize> {
    let bytes = bytes.checked_next_multiple_of(PAGE)?;
    let mut guard = Guard::take();
    let table = guard.table();
    if table.count == MAX_BLOCKS {
        return None;
    }
    if let Some(block) = table.freed.take(bytes, contents) {
        if contents == Contents::Any || block.empty() {
            table.add(block.start, block.bytes, contents);
            return Some(block.start);
        }
        block.unmap();
    }
    let start = mapped(bytes).or_else(|| if table.freed.unmap_all() { mapped(bytes) } else { None })?;
    table.add(start, bytes, contents);
    Some(start)
}

fn mapped(bytes: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, RIGHTS, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start as usize)
}

/// Unmaps all freed blocks, for memory is short. Whether there were any.
pub fn unmap_freed() -> bool {
    Guard::take().table().freed.unmap_all()
}

/// The block that begins at an address. Quick for addresses that cannot be one, which are nearly all.
pub fn find(start: usize) -> Option<Block> {
    if !start.is_multiple_of(PAGE) || start == 0 {
        return None;
    }
    let mut guard = Guard::take();
    let table = guard.table();
    table.position(start).map(|at| table.blocks[at])
}

/// What [`release`] did.
pub enum Release {
    /// No block begins there.
    None,
    Kept,
    Unmapped,
}

/// Keeps or unmaps the block that begins at an address, once it is not held.
pub fn release(start: usize) -> Release {
    let Some(Block { number, .. }) = find(start) else { return Release::None };
    let mut guard = Guard::take();
    // Another thread may have unmapped it meanwhile.
    guard.wait_while(|table| table.held == Some(number));
    let table = guard.table();
    let Some(at) = table.position(start) else { return Release::None };
    let block = table.blocks[at];
    // In this order: a child may be forked in between by clone, and must know all other blocks.
    table.blocks[at] = table.blocks[table.count - 1];
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    table.count -= 1;
    // Who wrote to what is the store's would copy it first.
    if !block.is_advised && table.freed.keep(block) {
        return Release::Kept;
    }
    block.unmap();
    Release::Unmapped
}

/// Keeps freed blocks for the next allocations until this is dropped.
pub struct KeepsFreed(());

/// The caller calls [`unmap_unused`] at intervals.
pub fn keep_freed() -> KeepsFreed {
    Guard::take().table().freed.open();
    KeepsFreed(())
}

impl Drop for KeepsFreed {
    fn drop(&mut self) {
        Guard::take().table().freed.close();
    }
}

/// Whether freed blocks are kept.
pub fn keeps_any() -> bool {
    !Guard::take().table().freed.is_empty()
}

/// Unmaps the freed blocks that were kept before the last call of this, and have not been taken since.
pub fn unmap_unused() {
    Guard::take().table().freed.end_round();
}

/// Lists the present blocks, in no order. Returns their number.
pub fn list(into: &mut [Block; MAX_BLOCKS]) -> usize {
    let mut guard = Guard::take();
    let table = guard.table();
    into[..table.count].copy_from_slice(table.blocks());
    table.count
}

/// An empty list for [`list`].
pub fn empty_list() -> Box<[Block; MAX_BLOCKS]> {
    vec![Block::NONE; MAX_BLOCKS].into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!())
}

/// A block that stays mapped until this is dropped.
pub struct Held(());

impl Held {
    /// From now on some of it may be the store's.
    pub fn will_be_advised(&self) {
        let mut guard = Guard::take();
        let table = guard.table();
        let held = table.held;
        table
            .blocks()
            .iter_mut()
            .filter(|block| Some(block.number) == held)
            .for_each(|b| b.is_advised = true);
    }
}

/// Holds a block, if it still exists.
pub fn hold(block: &Block) -> Option<Held> {
    let mut guard = Guard::take();
    guard.wait_while(|table| table.forking > 0);
    let table = guard.table();
    debug_assert!(table.held.is_none());
    table.position(block.start).filter(|&at| table.blocks[at].number == block.number)?;
    table.held = Some(block.number);
    Some(Held(()))
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut guard = Guard::take();
        guard.table().held = None;
        guard.wake_all();
    }
}

/// Keeps blocks from being held until after the fork.
pub extern "C" fn pause() {
    let mut guard = Guard::take();
    guard.table().forking += 1;
    guard.wait_while(|table| table.held.is_some());
}

/// Ends [`pause`] in the process that forked.
pub extern "C" fn resume() {
    let mut guard = Guard::take();
    guard.table().forking -= 1;
    guard.wake_all();
}

/// Ends [`pause`] and [`lock`] in the child, in which there is no other thread.
pub extern "C" fn begin_in_child() {
    BEGUN.words()[0].store(0, Ordering::Relaxed);
    begin();
}

extern "C" fn lock() {
    std::mem::forget(Guard::take()); // unlocked after the fork; the child begins with an unlocked one
}

extern "C" fn unlock() {
    drop(Guard);
}

/// Keeps the table whole across fork.
pub fn survive_forks() {
    BEGUN.map();
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(begin_in_child)) };
}
