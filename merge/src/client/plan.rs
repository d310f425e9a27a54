//! Which pages go where: what is given to the store, what stays private between shared pages, and the extents that are
//! mapped. Pure decisions, no memory is touched.

use crate::base::page::PAGE_BYTES;

/// Private pages in a row that an extent may step over. They are copied into it and stay this process's own, which keeps
/// the extent one mapping; without, every such page would cost two.
pub const LONGEST_BRIDGE: usize = 16;

/// What was found out about a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Page {
    /// Nothing to do: shared, never touched, or private and unchanged.
    #[default]
    Same,
    /// All zero, in anonymous memory: the kernel has a page for that.
    Zero,
    /// In the store.
    Stored {
        /// The segment.
        segment: u32,
        /// The page's place in it.
        page: u32,
    },
    /// The first of its contents.
    New,
    /// The first of its contents, and stays private.
    Kept,
    /// To be given to the store.
    Given,
    /// About to be given to the store by another program.
    Awaited,
    /// In the store, but stays private: a mapping of its own would save too little, and it is one page in an extent.
    Own,
    /// Left alone: it has been written meanwhile, the store is full, or a mapping for it would save too little.
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

/// Decides about new pages: those in short runs inside what is one extent otherwise are kept, all others given.
/// `in_store` says that pages which are `Same` are mapped from the store already.
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
        let keep = end - i <= LONGEST_BRIDGE && (is_extent || is_in_store);
        pages[i..end].fill(if keep { Page::Kept } else { Page::Given });
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
            if bridge - last - 1 > LONGEST_BRIDGE || !continues(pages, last, bridge) {
                break;
            }
            last = bridge;
        }
        i = last + 1;
        Some(Extent { first, pages: i - first, segment, at: page })
    })
}

/// Extents that so many pages may come to: a mapping costs the kernel a quarter of a KiB, every later call time, and a process may
/// have 65,530 of them.
pub fn most_extents(pages: usize) -> usize {
    pages / 16 + 8
}

/// Gives up extents where they save least until there are no more than `most`. A short one inside another stays private
/// and lets that be one; other short ones are left alone. Says how many pages stay private that were in the store.
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

/// Makes one extent of two that continue each other over a gap of less than `least` pages.
fn bridge(pages: &mut [Page], least: usize) {
    let mut i = 0;
    while i < pages.len() {
        let ends = (i + 2..=i + LONGEST_BRIDGE.min(least - 1) + 1).find(|&to| continues(pages, i, to));
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

/// Pages in a row, and one of them that is asked about for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The one.
    pub speaker: usize,
    /// All of them.
    pub pages: std::ops::Range<usize>,
}

/// Divides the runs of pages that are `which` before each page that speaks; the first group of a run begins with the run. Where
/// none speaks the run's first page does.
pub fn groups(pages: &[Page], which: Page, speaks: impl Fn(usize) -> bool) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for run in runs(pages, which) {
        let mut group = Group { speaker: run.start, pages: run.clone() };
        let mut is_spoken_for = false;
        for i in run.clone().filter(|&i| speaks(i)) {
            if is_spoken_for {
                group.pages.end = i;
                groups.push(std::mem::replace(&mut group, Group { speaker: i, pages: i..run.end }));
            }
            (group.speaker, is_spoken_for) = (i, true);
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
    fn a_short_gap_is_bridged() {
        let mut pages = [stored(10), Page::New, Page::New, stored(13), stored(14)];
        decide(&mut pages, false);
        assert_eq!(pages[1..3], [Page::Kept; 2]);
        let all: Vec<_> = extents(&pages).collect();
        assert_eq!(all, [Extent { first: 0, pages: 5, segment: 1, at: 10 }]);
    }

    #[test]
    fn what_is_not_inside_an_extent_is_given() {
        for mut pages in [
            [stored(10), Page::New, stored(99)],
            [Page::New, stored(10), stored(11)],
            [stored(10), stored(11), Page::New],
            [Page::Same, Page::New, Page::Same],
        ] {
            decide(&mut pages, false);
            assert!(pages.contains(&Page::Given) && !pages.contains(&Page::Kept), "{pages:?}");
        }
        let mut long = vec![Page::New; LONGEST_BRIDGE + 3];
        long[0] = stored(0);
        long[LONGEST_BRIDGE + 2] = stored(LONGEST_BRIDGE as u32 + 2);
        decide(&mut long, false);
        assert_eq!(long[1], Page::Given);
    }

    #[test]
    fn changes_within_the_store_stay_private() {
        let mut pages = [Page::Same, Page::New, Page::Same];
        decide(&mut pages, true);
        assert_eq!(pages[1], Page::Kept);
        assert_eq!(extents(&pages).count(), 0);
    }

    #[test]
    fn scattered_pages_of_other_segments_do_not_break_an_extent() {
        // Every 20th page is in another segment, as it is where each program has other private pages.
        let scattered = |i: usize| {
            if i % 20 == 19 { Page::Stored { segment: 9, page: i as u32 / 20 } } else { stored(i as u32) }
        };
        let mut pages: Vec<Page> = (0..4096).map(scattered).collect();
        assert_eq!(extents(&pages).count(), 409);
        let private = economise(&mut pages, most_extents(4096));
        assert_eq!((extents(&pages).count(), private), (1, 204));
    }

    #[test]
    fn pages_in_another_order_are_left_where_the_budget_ends() {
        let mut pages: Vec<Page> = (0..4096u32).map(|i| stored(i * 1021 % 4096)).collect();
        pages[1000..1200].iter_mut().enumerate().for_each(|(i, page)| *page = stored(i as u32));
        economise(&mut pages, most_extents(4096));
        assert_eq!(
            extents(&pages).collect::<Vec<_>>(),
            [Extent { first: 1000, pages: 200, segment: 1, at: 0 }]
        );
        let mut few = vec![stored(7), stored(3), stored(5)];
        assert_eq!(economise(&mut few, most_extents(3)), 0);
        assert_eq!(extents(&few).count(), 3);
    }

    #[test]
    fn a_page_speaks_for_those_that_follow_it() {
        let mut pages = vec![Page::Given; 20];
        pages[8] = Page::Same;
        let group = |speaker, pages| Group { speaker, pages };
        let found = groups(&pages, Page::Given, |i| matches!(i, 2 | 5 | 8 | 19));
        assert_eq!(found, [group(2, 0..5), group(5, 5..8), group(19, 9..20)]);
        let none = groups(&pages, Page::Given, |_| false);
        assert_eq!(none, [group(0, 0..8), group(9, 9..20)]);
        assert_eq!(groups(&pages, Page::Awaited, |_| true), []);
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
        fn extents_hold_every_stored_page_once_and_nothing_else(
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
                let given_up = matches!(page, Page::Own | Page::Left) && matches!(was, Page::Stored { .. } | Page::Left | Page::Kept);
                prop_assert!(page == was || given_up);
            }
            let given: usize = runs(&pages, Page::Given).map(|run| run.len()).sum();
            prop_assert_eq!(given, pages.iter().filter(|page| **page == Page::Given).count());
        }
    }
}
