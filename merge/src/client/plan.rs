//! Decides which pages are uploaded, which stay private between shared pages, and which extents are mapped.
//! Pure decisions: this module touches no memory.

use crate::base::page::PAGE_BYTES;

/// Private pages in a row that an extent may bridge. They are copied into it and stay this process's own,
/// which keeps the extent one mapping; without, every such page would cost two.
pub const MAX_BRIDGE: usize = 16;

/// The state of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Page {
    /// Nothing to do: shared, never touched, or private and unchanged.
    #[default]
    Same,
    /// All zero, in anonymous memory: the kernel has a zero page.
    Zero,
    /// In the store.
    Stored {
        /// The segment.
        segment: u32,
        /// The page's number in it.
        page: u32,
    },
    /// Not in the store yet.
    New,
    /// Not in the store yet, and stays private.
    Kept,
    /// To be uploaded by this process.
    Upload,
    /// Another client is about to upload it.
    AwaitUpload,
    /// In the store, but stays private inside an extent: a mapping of its own would save too little.
    Own,
    /// Left alone: it has been written meanwhile, the store is full, or a mapping for it would save too
    /// little.
    Left,
}

/// Part of a segment that is mapped over a run of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The run's first page.
    pub first: usize,
    /// Its length.
    pub pages: usize,
    /// The segment.
    pub segment: u32,
    /// The segment's page behind the first.
    pub at: u32,
}

impl Extent {
    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.pages * PAGE_BYTES
    }
}

fn continues(pages: &[Page], from: usize, to: usize) -> bool {
    match (pages[from], pages.get(to)) {
        (Page::Stored { segment, page }, Some(&Page::Stored { segment: s, page: p })) => {
            s == segment && p as usize == page as usize + (to - from)
        }
        _ => false,
    }
}

fn run_end(pages: &[Page], from: usize, is: impl Fn(Page) -> bool) -> usize {
    from + pages[from..].iter().take_while(|&&page| is(page)).count()
}

/// Decides about new pages: short runs inside one extent stay private, all others are uploaded. `in_store`:
/// pages that are `Same` are mapped from the store already.
pub fn decide(pages: &mut [Page], in_store: bool) {
    let mut i = 0;
    while i < pages.len() {
        if pages[i] != Page::New {
            i += 1;
            continue;
        }
        let end = run_end(pages, i, |page| page == Page::New);
        let is_inside = i > 0 && end < pages.len();
        let is_extent = is_inside && continues(pages, i - 1, end);
        let is_shared = |page| matches!(page, Page::Same | Page::Stored { .. });
        let is_in_store = is_inside && in_store && is_shared(pages[i - 1]) && is_shared(pages[end]);
        let keep = end - i <= MAX_BRIDGE && (is_extent || is_in_store);
        pages[i..end].fill(if keep { Page::Kept } else { Page::Upload });
        i = end;
    }
}

/// The extents, in order.
pub fn extents(pages: &[Page]) -> impl Iterator<Item = Extent> + '_ {
    let mut i = 0;
    std::iter::from_fn(move || {
        i = run_end(pages, i, |page| !matches!(page, Page::Stored { .. }));
        let &Page::Stored { segment, page } = pages.get(i)? else { return None };
        let first = i;
        let mut last = i;
        loop {
            let bridge = run_end(pages, last + 1, |page| matches!(page, Page::Kept | Page::Own));
            if bridge - last - 1 > MAX_BRIDGE || !continues(pages, last, bridge) {
                break;
            }
            last = bridge;
        }
        i = last + 1;
        Some(Extent { first, pages: i - first, segment, at: page })
    })
}

/// The most extents for so many pages: a mapping costs the kernel a quarter of a KiB and every later call
/// time, and a process may have 65,530 of them.
pub fn max_extents(pages: usize) -> usize {
    pages / 16 + 8
}

/// Gives up the extents that save least until at most `most` are left. A short extent inside another stays
/// private, so that the other remains one; other short ones are left alone. Returns how many pages of the
/// store stay private.
pub fn economise(pages: &mut [Page], most: usize) -> usize {
    let in_store = |pages: &[Page]| pages.iter().filter(|page| matches!(page, Page::Stored { .. })).count();
    let before = in_store(pages);
    let mut least = 2;
    while least <= pages.len() && extents(pages).count() > most {
        bridge(pages, least);
        let short: Vec<Extent> = if extents(pages).count() > most {
            extents(pages).filter(|e| in_store(&pages[e.first..e.first + e.pages]) < least).collect()
        } else {
            Vec::new()
        };
        for extent in short {
            pages[extent.first..extent.first + extent.pages].fill(Page::Left);
        }
        least *= 2;
    }
    before - in_store(pages)
}

/// Joins two extents that continue each other over a gap of less than `least` pages.
fn bridge(pages: &mut [Page], least: usize) {
    let mut i = 0;
    while i < pages.len() {
        let ends = (i + 2..=i + MAX_BRIDGE.min(least - 1) + 1).find(|&to| continues(pages, i, to));
        let is_private =
            |page: &Page| matches!(page, Page::Stored { .. } | Page::Kept | Page::Own | Page::Left);
        let Some(to) =
            ends.filter(|&to| !continues(pages, i, i + 1) && pages[i + 1..to].iter().all(is_private))
        else {
            i += 1;
            continue;
        };
        for page in &mut pages[i + 1..to] {
            if *page != Page::Kept {
                *page = Page::Own;
            }
        }
        i = to;
    }
}

/// The runs of pages that are `which`.
pub fn runs(pages: &[Page], which: Page) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    let mut i = 0;
    std::iter::from_fn(move || {
        let start = run_end(pages, i, |page| page != which);
        i = run_end(pages, start.min(pages.len()), |page| page == which);
        (start < i).then_some(start..i)
    })
}

/// Pages in a row, and one of them whose claim decides for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The page that is claimed.
    pub representative: usize,
    /// All of them.
    pub pages: std::ops::Range<usize>,
}

/// Divides the runs of pages that are `which` before each representative page; the first group of a run
/// begins with the run. In a run without one, its first page represents it.
pub fn groups(pages: &[Page], which: Page, is_representative: impl Fn(usize) -> bool) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for run in runs(pages, which) {
        let mut group = Group { representative: run.start, pages: run.clone() };
        let mut has_representative = false;
        for i in run.clone().filter(|&i| is_representative(i)) {
            if has_representative {
                group.pages.end = i;
                groups.push(std::mem::replace(&mut group, Group { representative: i, pages: i..run.end }));
            }
            (group.representative, has_representative) = (i, true);
        }
        groups.push(group);
    }
    groups
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stored(page: u32) -> Page {
        Page::Stored { segment: 1, page }
    }

    #[test]
    fn bridges_a_short_gap() {
        let mut pages = [stored(10), Page::New, Page::New, stored(13), stored(14)];
        decide(&mut pages, false);
        assert_eq!(pages[1..3], [Page::Kept; 2]);
        let all: Vec<_> = extents(&pages).collect();
        assert_eq!(all, [Extent { first: 0, pages: 5, segment: 1, at: 10 }]);
    }

    #[test]
    fn uploads_new_pages_outside_extents() {
        for mut pages in [
            [stored(10), Page::New, stored(99)],
            [Page::New, stored(10), stored(11)],
            [stored(10), stored(11), Page::New],
            [Page::Same, Page::New, Page::Same],
        ] {
            decide(&mut pages, false);
            assert!(pages.contains(&Page::Upload) && !pages.contains(&Page::Kept), "{pages:?}");
        }
        let mut long = vec![Page::New; MAX_BRIDGE + 3];
        long[0] = stored(0);
        long[MAX_BRIDGE + 2] = stored(MAX_BRIDGE as u32 + 2);
        decide(&mut long, false);
        assert_eq!(long[1], Page::Upload);
    }

    #[test]
    fn keeps_changed_pages_between_shared_ones_private() {
        let mut pages = [Page::Same, Page::New, Page::Same];
        decide(&mut pages, true);
        assert_eq!(pages[1], Page::Kept);
        assert_eq!(extents(&pages).count(), 0);
    }

    #[test]
    fn bridges_scattered_pages_of_other_segments() {
        // Every 20th page is in another segment, as where each program has other private pages.
        let scattered = |i: usize| {
            if i % 20 == 19 { Page::Stored { segment: 9, page: i as u32 / 20 } } else { stored(i as u32) }
        };
        let mut pages: Vec<Page> = (0..4096).map(scattered).collect();
        assert_eq!(extents(&pages).count(), 409);
        let private = economise(&mut pages, max_extents(4096));
        assert_eq!((extents(&pages).count(), private), (1, 204));
    }

    #[test]
    fn leaves_pages_in_another_order_beyond_the_budget() {
        let mut pages: Vec<Page> = (0..4096u32).map(|i| stored(i * 1021 % 4096)).collect();
        pages[1000..1200].iter_mut().enumerate().for_each(|(i, page)| *page = stored(i as u32));
        economise(&mut pages, max_extents(4096));
        assert_eq!(
            extents(&pages).collect::<Vec<_>>(),
            [Extent { first: 1000, pages: 200, segment: 1, at: 0 }]
        );
        let mut few = vec![stored(7), stored(3), stored(5)];
        assert_eq!(economise(&mut few, max_extents(3)), 0);
        assert_eq!(extents(&few).count(), 3);
    }

    #[test]
    fn a_representative_covers_the_pages_after_it() {
        let mut pages = vec![Page::Upload; 20];
        pages[8] = Page::Same;
        let group = |representative, pages| Group { representative, pages };
        let found = groups(&pages, Page::Upload, |i| matches!(i, 2 | 5 | 8 | 19));
        assert_eq!(found, [group(2, 0..5), group(5, 5..8), group(19, 9..20)]);
        let none = groups(&pages, Page::Upload, |_| false);
        assert_eq!(none, [group(0, 0..8), group(9, 9..20)]);
        assert_eq!(groups(&pages, Page::AwaitUpload, |_| true), []);
    }

    fn page() -> impl Strategy<Value = Page> {
        prop_oneof![
            Just(Page::Same),
            Just(Page::Zero),
            Just(Page::Left),
            Just(Page::New),
            (1u32..3, 0u32..5).prop_map(|(segment, page)| Page::Stored { segment, page }),
        ]
    }

    proptest! {
        #[test]
        fn extents_hold_each_stored_page_once_and_no_other(
            mut pages in proptest::collection::vec(page(), 1..60),
            runs_of in proptest::collection::vec((0usize..60, 1usize..30, 1u32..3, 0u32..9), 0..6),
            in_store in any::<bool>(),
        ) {
            for (start, length, segment, at) in runs_of {
                for (i, page) in pages.iter_mut().skip(start).take(length).enumerate() {
                    if *page != Page::New {
                        *page = Page::Stored { segment, page: at + i as u32 };
                    }
                }
            }
            let before = pages.clone();
            decide(&mut pages, in_store);
            let mut covered = vec![false; pages.len()];
            let mut end = 0;
            for extent in extents(&pages) {
                prop_assert!(extent.first >= end && extent.pages > 0);
                end = extent.first + extent.pages;
                for i in extent.first..end {
                    covered[i] = true;
                    match pages[i] {
                        Page::Stored { segment, page } => {
                            prop_assert_eq!(segment, extent.segment);
                            prop_assert_eq!(page as usize, extent.at as usize + i - extent.first);
                        }
                        Page::Kept => prop_assert_eq!(before[i], Page::New),
                        other => prop_assert!(false, "{:?} in an extent", other),
                    }
                }
                let ends_shared = matches!(pages[end - 1], Page::Stored { .. });
                prop_assert!(ends_shared);
            }
            for (i, page) in pages.iter().enumerate() {
                prop_assert_ne!(*page, Page::New);
                if before[i] != Page::New {
                    prop_assert_eq!(*page, before[i]);
                }
                let is_stored = matches!(page, Page::Stored { .. });
                prop_assert!(covered[i] || !is_stored);
            }
            let mut fewer = pages.clone();
            let private = economise(&mut fewer, 2);
            prop_assert!(extents(&fewer).count() <= 2);
            let stored = |pages: &[Page]| pages.iter().filter(|p| matches!(p, Page::Stored { .. })).count();
            prop_assert_eq!(stored(&fewer) + private, stored(&pages));
            for (page, was) in fewer.iter().zip(&pages) {
                let is_given_up = matches!(page, Page::Own | Page::Left) && matches!(was, Page::Stored { .. } | Page::Left | Page::Kept);
                prop_assert!(page == was || is_given_up);
            }
            let uploads: usize = runs(&pages, Page::Upload).map(|run| run.len()).sum();
            prop_assert_eq!(uploads, pages.iter().filter(|page| **page == Page::Upload).count());
        }
    }
}
