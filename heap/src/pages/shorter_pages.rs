//! Pages of shorter classes for objects that outlive them, in place of new pages.
//!
//! A new page costs a page until its objects die. A page of a shorter class costs nothing now, since it is
//! held anyway. Its own objects die first, and their blocks then serve the longer class as well: it costs the
//! room of its live blocks until then. So before a class opens a page, it takes one of a shorter class that
//! has enough free blocks. The page gets the longer class and its deadline. The rule is the same for all
//! sources of lifetimes, since it has only classes (docs/decisions/shorter-pages.md has measurements).

use crate::pages::huge_page::{HugePage, State};
use crate::pages::page_life::{self, Extra, Request};
use crate::pages::{pool, region};
use crate::system::events::{self, Event};
use crate::units::bits;
use crate::units::geometry::BLOCKS_PER_HUGE_PAGE;

/// Free blocks of a page that is taken: a quarter.
const LEAST_FREE: usize = BLOCKS_PER_HUGE_PAGE / 4;

/// Takes blocks of an active page of a shorter class, the next one first, and gives the page the request's
/// class.
pub(crate) fn take(request: &Request, extra: &mut Extra) -> Option<usize> {
    (0..request.class).rev().find_map(|from| take_from(from, request, extra))
}

fn take_from(from: usize, request: &Request, extra: &mut Extra) -> Option<usize> {
    pool::search(from, request.blocks, |id| {
        let address = region::address(id);
        let page = region::huge_page(address);
        let _guard = page.lock.try_lock()?; // another thread holds this page: the next one is as good
        if page.state() != State::Active || page.class() != from || !has_room(page) {
            return None;
        }
        let find = || bits::find_run(&page.free_blocks(), request.blocks, request.alignment);
        let first = find()?;
        page_life::lengthen_to(page, id, request.class);
        let blocks = page_life::mark(page, address, first, request, request.class);
        while extra.wanted > 0
            && let Some(first) = find()
        {
            extra.wanted -= 1;
            (extra.keep)(page_life::mark(page, address, first, request, request.class));
        }
        events::count(Event::BlocksRecycled);
        Some(blocks)
    })
}

fn has_room(page: &HugePage) -> bool {
    bits::count(&page.free_blocks()) >= LEAST_FREE
}
