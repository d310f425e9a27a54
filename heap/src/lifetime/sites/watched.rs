//! Watched objects: a sample of allocations whose lifetimes are measured until they are freed, to teach their
//! sites.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::stack_words::{self, Context};
use super::{LOCK, SITES, Site, add_to, mix};
use crate::lifetime::model_validation;
use crate::system::clock;
use crate::system::events::{self, Event};
use crate::units::lifetime_class;

/// Groups of slots for watched objects, chosen by address. A small program uses few groups.
const LEAST_GROUPS: usize = 1 << 5;
const GROUPS: usize = 1 << 10;
const GROUP: usize = 4;
/// The number of groups in use, a power of two; changes only with the lock held.
static IN_USE: AtomicUsize = AtomicUsize::new(LEAST_GROUPS);

/// A watched object.
#[derive(Default)]
struct Watch {
    address: AtomicU64,
    birth_ms: AtomicU64,
    site: AtomicU16,
    age_class: AtomicU8,
    /// The class that online learning would have given it without a model.
    without_model: AtomicU8,
}

static WATCHES: [[Watch; GROUP]; GROUPS] = [const { [const { Watch::new() }; GROUP] }; GROUPS];

impl Watch {
    const fn new() -> Self {
        Self {
            address: AtomicU64::new(0),
            birth_ms: AtomicU64::new(0),
            site: AtomicU16::new(0),
            age_class: AtomicU8::new(0),
            without_model: AtomicU8::new(0),
        }
    }

    fn copy_from(&self, other: &Self) {
        self.birth_ms.store(other.birth_ms.load(Relaxed), Relaxed);
        self.site.store(other.site.load(Relaxed), Relaxed);
        self.age_class.store(other.age_class.load(Relaxed), Relaxed);
        self.without_model.store(other.without_model.load(Relaxed), Relaxed);
        self.address.store(other.address.load(Relaxed), Relaxed);
    }
}

fn group(address: usize) -> &'static [Watch; GROUP] {
    &WATCHES[(mix(address as u64 >> 4) >> 40) as usize & (IN_USE.load(Relaxed) - 1)]
}

/// Finds a free slot for the object at `address`. The caller holds the lock.
fn free_slot(address: usize) -> Option<&'static Watch> {
    loop {
        if let Some(slot) = group(address).iter().find(|slot| slot.address.load(Relaxed) == 0) {
            return Some(slot);
        }
        let groups = IN_USE.load(Relaxed);
        if groups == GROUPS {
            return None;
        }
        // Doubles the groups: an object's slot stays, or moves to the same slot of a group that was not in
        // use.
        IN_USE.store(groups * 2, Relaxed);
        for (watches, moved) in WATCHES[..groups].iter().zip(&WATCHES[groups..]) {
            for (from, to) in watches.iter().zip(moved) {
                let address = from.address.load(Relaxed);
                if address != 0 && !core::ptr::eq(group(address as usize), watches) {
                    to.copy_from(from);
                    from.address.store(0, Relaxed);
                }
            }
        }
    }
}

/// Watches the object at `address`, with its context if its site is studied; `false` if there is no room.
pub fn watch(site: &'static Site, address: usize, context: Option<&Context>) -> bool {
    let _guard = LOCK.lock();
    let Some(slot) = free_slot(address) else { return false };
    slot.address.store(address as u64, Relaxed);
    slot.birth_ms.store(clock::now_ms(), Relaxed);
    slot.site.store(site.number() as u16, Relaxed);
    slot.age_class.store(0, Relaxed);
    if site.trusted_model_class().is_some() {
        slot.without_model.store(site.class_without_model() as u8, Relaxed);
    }
    add_to(&site.watched, 1);
    site.change_alive(0, 1);
    if let Some(context) = context {
        stack_words::born(site, address, context);
    }
    true
}

/// Reassigns a watched object to another site. The caller holds the lock.
fn reassign(address: u64, to: &'static Site) {
    let Some(slot) = group(address as usize).iter().find(|slot| slot.address.load(Relaxed) == address) else {
        return;
    };
    let from = &SITES[slot.site.swap(to.number() as u16, Relaxed) as usize];
    let age = slot.age_class.load(Relaxed) as usize;
    add_to(&from.watched, -1);
    from.change_alive(age, -1);
    add_to(&to.watched, 1);
    to.change_alive(age, 1);
}

/// Records the free of a watched object.
pub fn freed(address: usize) {
    let _guard = LOCK.lock();
    let Some(slot) = group(address).iter().find(|slot| slot.address.load(Relaxed) == address as u64) else {
        return;
    };
    let lifetime_ms = clock::now_ms().saturating_sub(slot.birth_ms.load(Relaxed));
    end(slot, address, lifetime_class::of_lifetime_ms(lifetime_ms));
}

fn end(slot: &Watch, address: usize, class: usize) {
    let site = &SITES[slot.site.load(Relaxed) as usize];
    slot.address.store(0, Relaxed);
    add_to(&site.watched, -1);
    let before = slot.age_class.load(Relaxed) as usize;
    site.change_alive(before, -1);
    site.weigh(slot.without_model.load(Relaxed).into(), before, class, true);
    events::count(Event::LifetimeMeasured);
    site.record_end(class);
    site.reconsider();
    if let Some(parent) = site.parent() {
        parent.record_end(class);
        parent.reconsider();
    }
    stack_words::died(site, address, class, reassign);
    stack_words::consider(site);
}

/// Updates the ages of some watched objects in their sites; once a tick, by one thread.
pub fn grow_older(now_ms: u64, cursor: usize, groups: usize) -> usize {
    let lost = model_validation::report_distrust(); // logs, so not under the lock
    let _guard = LOCK.lock();
    if lost {
        SITES.iter().filter(|site| site.key.load(Relaxed) != 0).for_each(Site::reconsider);
    }
    let in_use = IN_USE.load(Relaxed);
    for watch in (cursor..cursor + groups.min(in_use)).flat_map(|i| &WATCHES[i & (in_use - 1)]) {
        if watch.address.load(Relaxed) == 0 {
            continue;
        }
        let age = lifetime_class::of_lifetime_ms(now_ms.saturating_sub(watch.birth_ms.load(Relaxed)));
        let before = watch.age_class.swap(age as u8, Relaxed) as usize;
        if age != before {
            let site = &SITES[watch.site.load(Relaxed) as usize];
            site.change_alive(before, -1);
            site.change_alive(age, 1);
            site.weigh(watch.without_model.load(Relaxed).into(), before, age, false);
            site.reconsider();
            stack_words::aged(site, reassign);
            stack_words::consider(site);
        }
    }
    (cursor + groups) & (in_use - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn watched_objects_are_found_after_the_groups_have_grown() {
        let site = Site::numbered(9).expect("a site");
        let watched: Vec<usize> = (1..3_000).map(|i| i * 64).filter(|&at| watch(site, at, None)).collect();
        assert!(watched.len() > 2_000, "{} of 4,096 slots", watched.len());
        assert_eq!(IN_USE.load(Relaxed), GROUPS);
        let find = |at: usize| group(at).iter().find(|slot| slot.address.load(Relaxed) == at as u64);
        for &at in &watched {
            assert_eq!(find(at).expect("still watched").site.load(Relaxed), 9);
            freed(at);
        }
        assert!(WATCHES.iter().flatten().all(|slot| slot.address.load(Relaxed) == 0));
    }
}
