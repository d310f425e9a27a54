//! How the machine gets what the guest does: at once, in QEMU's own thread, or in a thread of its own, by
//! chunks of a queue. The results are the same to the bit, since the machine asks nothing of a guest that has
//! gone on: what it reads of the guest's memory, page tables, is in the queue as well
//! ([`tables`](crate::tables)).

use crate::model::{Event, Model};
use crate::qemu;
use sim::Access;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

/// Items of a chunk, and chunks that may wait: less than a core's L2 cache, each.
const CHUNK: usize = 2048;
const WAITING: usize = 16;

/// What the guest does.
enum Item {
    /// A block is entered, by its number.
    Enter(u32),
    /// Memory is accessed.
    Access(Access),
    /// A word of a page table is written: where, and what.
    Word(u64, u64),
    /// Anything else.
    Event(Box<Event>),
    /// The other thread waits until all before this is done.
    Wait,
}

/// The machine, here or in another thread.
pub enum Engine {
    /// Here.
    Own(Box<Model>),
    /// There.
    Other(Queue),
}

/// The way to the other thread.
pub struct Queue {
    chunk: Vec<Item>,
    full: SyncSender<Vec<Item>>,
    /// Chunks come back, to be used again.
    empty: Receiver<Vec<Item>>,
    done: Receiver<()>,
}

impl Engine {
    /// A block is entered.
    #[inline]
    pub fn enter(&mut self, number: usize) {
        match self {
            Engine::Own(model) => model.enter(number),
            Engine::Other(queue) => queue.push(Item::Enter(number as u32)),
        }
    }

    /// Memory is accessed.
    #[inline]
    pub fn access(&mut self, access: Access) {
        match self {
            Engine::Own(model) => model.access(access),
            Engine::Other(queue) => queue.push(Item::Access(access)),
        }
    }

    /// A word of a page table is written.
    pub fn word(&mut self, address: u64, value: u64) {
        match self {
            Engine::Own(model) => model.tables.set_word(address, value),
            Engine::Other(queue) => queue.push(Item::Word(address, value)),
        }
    }

    /// Anything else happens.
    pub fn happens(&mut self, event: Event) {
        match self {
            Engine::Own(model) => model.happens(event),
            Engine::Other(queue) => queue.push(Item::Event(Box::new(event))),
        }
    }

    /// Returns when the machine has all.
    pub fn wait(&mut self) {
        if let Engine::Other(queue) = self {
            queue.push(Item::Wait);
            queue.send();
            // An error means that the other thread ends the process.
            let _ = queue.done.recv();
        }
    }

    /// The machine continues in a thread of its own.
    pub fn of_thread(model: Model) -> Engine {
        let (full, items) = sync_channel(WAITING);
        let (back, empty) = channel();
        let (done, is_done) = channel();
        std::thread::spawn(move || consume(model, &items, &back, &done));
        Engine::Other(Queue { chunk: Vec::with_capacity(CHUNK), full, empty, done: is_done })
    }
}

impl Queue {
    #[inline]
    fn push(&mut self, item: Item) {
        self.chunk.push(item);
        if self.chunk.len() == CHUNK {
            self.send();
        }
    }

    #[inline(never)]
    fn send(&mut self) {
        let next = self.empty.try_recv().unwrap_or_else(|_| Vec::with_capacity(CHUNK));
        let chunk = std::mem::replace(&mut self.chunk, next);
        // An error means that the other thread ends the process.
        let _ = self.full.send(chunk);
    }
}

/// A panic of the machine's thread ends the process, as one of QEMU's does.
struct Whole;

impl Drop for Whole {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

fn consume(mut model: Model, items: &Receiver<Vec<Item>>, back: &Sender<Vec<Item>>, done: &Sender<()>) {
    qemu::take_no_signals();
    let _whole = Whole;
    while let Ok(mut chunk) = items.recv() {
        for item in chunk.drain(..) {
            match item {
                Item::Enter(number) => model.enter(number as usize),
                Item::Access(access) => model.access(access),
                Item::Word(address, value) => model.tables.set_word(address, value),
                Item::Event(event) => model.happens(*event),
                Item::Wait => drop(done.send(())),
            }
        }
        let _ = back.send(chunk);
    }
}
