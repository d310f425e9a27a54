//! Watched objects: some allocations, whose lifetimes are measured until they are freed. They teach their sites.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering::Relaxed};

use super::{LOCK, SITES, Site, add_to, mix};
use crate::system::clock;
use crate::system::events::{self, Event};
use crate::units::lifetime_class;

/// Objects that can be watched at once: groups of slots chosen by address.
const GROUPS: usize = 1 << 10;
const GROUP: usize = 4;

/// A watched object.
#[derive(Default)]
struct Watch {
    address: AtomicU64,
    birth_ms: AtomicU64,
    site: AtomicU16,
    age_class: AtomicU8,
}

static WATCHES: [[Watch; GROUP]; GROUPS] = [const { [const { Watch::new() }; GROUP] }; GROUPS];

impl Watch {
    const fn new() -> Self {
        Self {
            address: AtomicU64::new(0),
            birth_ms: AtomicU64::new(0),
            site: AtomicU16::new(0),
            age_class: AtomicU8::new(0),
        }
    }
}

fn group(address: usize) -> &'static [Watch; GROUP] {
    &WATCHES[(mix(address as u64 >> 4) >> 40) as usize % GROUPS]
}

/// Watches the object at `address`; `false` if there is no room.
pub fn watch(site: &'static Site, address: usize) -> bool {
    let _guard = LOCK.lock();
    let Some(slot) = group(address).iter().find(|slot| slot.address.load(Relaxed) == 0) else { return false };
    slot.address.store(address as u64, Relaxed);
    slot.birth_ms.store(clock::now_ms(), Relaxed);
    slot.site.store(site.number() as u16, Relaxed);
    slot.age_class.store(0, Relaxed);
    add_to(&site.watched, 1);
    site.change_alive(0, 1);
    true
}

/// The watched object at `address` was freed.
pub fn freed(address: usize) {
    let _guard = LOCK.lock();
    let Some(slot) = group(address).iter().find(|slot| slot.address.load(Relaxed) == address as u64) else {
        return;
    };
    let lifetime_ms = clock::now_ms().saturating_sub(slot.birth_ms.load(Relaxed));
    end(slot, lifetime_class::of_lifetime_ms(lifetime_ms));
}

fn end(slot: &Watch, class: usize) {
    let site = &SITES[slot.site.load(Relaxed) as usize];
    slot.address.store(0, Relaxed);
    add_to(&site.watched, -1);
    site.change_alive(slot.age_class.load(Relaxed) as usize, -1);
    events::count(Event::LifetimeMeasured);
    site.record_end(class);
    site.reconsider();
    if let Some(parent) = site.parent() {
        parent.record_end(class);
        parent.reconsider();
    }
}

/// Looks at some of the watched objects and lets their sites know how old they have become; once a tick, by one thread.
pub fn grow_older(now_ms: u64, cursor: usize, groups: usize) -> usize {
    let _guard = LOCK.lock();
    for watch in (cursor..cursor + groups).flat_map(|i| &WATCHES[i % GROUPS]) {
        if watch.address.load(Relaxed) == 0 {
            continue;
        }
        let age = lifetime_class::of_lifetime_ms(now_ms.saturating_sub(watch.birth_ms.load(Relaxed)));
        let before = watch.age_class.swap(age as u8, Relaxed) as usize;
        if age != before {
            let site = &SITES[watch.site.load(Relaxed) as usize];
            site.change_alive(before, -1);
            site.change_alive(age, 1);
            site.reconsider();
        }
    }
    (cursor + groups) % GROUPS
}
