//! Passes sites to and from the table of earlier runs ([`crate::lifetime::table_entry`]).

use core::sync::atomic::Ordering::Relaxed;

use super::learning::{ENOUGH_ENDS, MANY_ENDS, MOST_DOUBLINGS};
use super::{CAPACITY, COUNT, LOCK, SITES, Site, UNUSED, USED, add, count, find};
use crate::lifetime::table_entry::TableEntry;
use crate::units::lifetime_class::{CLASSES, FOREVER};

/// Sites to keep for the next run, parents first.
pub fn used() -> impl Iterator<Item = &'static Site> {
    SITES[..count() as usize].iter().filter(|site| site.used.load(Relaxed) == USED)
}

/// Whether this process has used the site with this key.
pub fn is_used(key: u64) -> bool {
    find(key).is_some_and(|site| site.used.load(Relaxed) != UNUSED)
}

/// Adds a site of an earlier run; leaves some room for new ones.
pub fn recall(kept: &TableEntry) {
    let _guard = LOCK.lock();
    if COUNT.load(Relaxed) as usize >= CAPACITY / 4 * 3 || find(kept.key).is_some() {
        return;
    }
    let parent = find(kept.parent).filter(|_| kept.parent != 0);
    if parent.is_none() && kept.parent != 0 {
        return;
    }
    let Some(site) = add(kept.key, parent, usize::from(kept.model_class).checked_sub(1)) else { return };
    site.class.store(kept.class, Relaxed);
    site.charged_bytes.store(kept.charged_bytes, Relaxed);
    site.agreed.store(kept.agreed.min(MOST_DOUBLINGS), Relaxed);
    site.word.store(kept.word, Relaxed);
    site.dead.iter().zip(kept.dead).for_each(|(to, from)| to.store(from.min(MANY_ENDS as u16), Relaxed));
}

impl Site {
    /// The site's table entry. At the program's end, live objects older than the site's class count as never
    /// freed.
    pub fn kept(&self, at_end: bool) -> TableEntry {
        let class = self.class.load(Relaxed);
        let model_class = self.trusted_model_class().map_or(0, |class| class as u8 + 1);
        let parent = self.parent().map_or(0, |parent| parent.key.load(Relaxed));
        let mut kept =
            TableEntry::new(self.key.load(Relaxed), parent, class, model_class, self.agreed.load(Relaxed));
        kept.charged_bytes = self.charged_bytes.load(Relaxed);
        kept.word = self.word();
        kept.dead = [const { 0 }; CLASSES];
        kept.dead.iter_mut().zip(&self.dead).for_each(|(to, from)| *to = from.load(Relaxed));
        if at_end {
            let outlived = if self.ends() < ENOUGH_ENDS { 0 } else { usize::from(class) + 1 };
            let old = self.alive.iter().skip(outlived).map(|n| n.load(Relaxed)).sum::<u16>();
            kept.dead[FOREVER] = kept.dead[FOREVER].saturating_add(old);
        }
        kept
    }
}
