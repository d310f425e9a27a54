//! Which objects are watched until they are freed, to learn their lifetimes.

use crate::lifetime::sites::{self, Site};
use crate::pages::region;
use crate::system::observers;
use crate::thread::local::Heap;
use crate::thread::{lines, sample};
use crate::units::call::Call;

/// A placed object.
pub struct Placed {
    /// Its address; 0 if memory ran out.
    pub address: usize,
    /// Bytes to charge to the site.
    pub charged_bytes: usize,
    /// The profile samples it.
    pub sampled: bool,
}

impl Placed {
    /// Whether it has its own mapping.
    pub fn is_direct(&self) -> bool {
        !region::holds(self.address)
    }
}

/// Watches some objects of a site until they are freed.
pub fn watch(heap: &Heap, site: &'static Site, call: &Call, placed: &Placed) {
    if !site.wants_sample(heap.visits.get()) || lines::chosen() || observers::observes_all() {
        return;
    }
    if placed.is_direct() {
        return; // an object with its own mapping shares no page
    }
    // A span can watch two cells: the profile's samples are rarer and take precedence.
    if placed.sampled || sample::sampling() && region::span(placed.address).any_watched() {
        return;
    }
    let context = site.is_studied().then(|| sites::Context::of(call));
    if watch_until_freed(heap, call, placed.address) && !sites::watch(site, placed.address, context.as_ref())
    {
        unwatch(call, placed.address);
    }
}

/// Makes the free of an object of this thread take the slow path; `false` if its span can watch no more
/// cells.
pub fn watch_until_freed(heap: &Heap, call: &Call, address: usize) -> bool {
    let span = region::span(address);
    if span.owner() == heap.id.get() {
        return span.cell_at(address).is_some_and(|cell| span.watch(cell));
    }
    if call.size > lines::max_small_bytes() {
        region::large_object(address).set_watched(true);
    }
    call.size > lines::max_small_bytes()
}

fn unwatch(call: &Call, address: usize) {
    if call.size > lines::max_small_bytes() {
        region::large_object(address).set_watched(false);
    } else if let Some(cell) = region::span(address).cell_at(address) {
        region::span(address).unwatch(cell);
    }
}
