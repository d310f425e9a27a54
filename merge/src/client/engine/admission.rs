//! Which memory may be shared, and how it is known that no device writes to it.

use std::ops::Range;

use mappings::Area;

use super::{Engine, Kind};
use crate::base::error::{Error, While};
use crate::client::flags::Flags;
use crate::client::move_aside::Room;
use crate::client::page_map::{Entry, PageMap};
use crate::client::remap::Devices;
use crate::client::{address_space, interpose};

impl Engine {
    /// The mappings of the ranges; an error if one must not be merged.
    pub(super) fn areas(&self, ranges: &[Range<usize>], flags: Flags) -> Result<Vec<Area>, Error> {
        let mut areas = Vec::new();
        for range in ranges {
            areas.extend(address_space::areas(range)?);
        }
        areas.iter().try_for_each(|area| self.check(area, flags))?;
        Ok(areas)
    }

    /// The parts that may have a property which shared pages would not: memory that was not advised before,
    /// and all where such a property may have come since.
    pub(super) fn unchecked(&self, areas: &[Area]) -> Vec<Range<usize>> {
        let may_have_changed = address_space::any_is_locked() || interpose::may_have_properties();
        let is_new = |area: &&Area| {
            self.kind(area) == Kind::Anonymous && !interpose::advised_ranges::contains(&area.range)
        };
        areas.iter().filter(|area| may_have_changed || is_new(area)).map(|area| area.range.clone()).collect()
    }

    /// Room for pages that are moved aside, where the kernel can do that and no system call fails by it.
    pub(super) fn room(&self) -> Result<Option<Room>, Error> {
        let Some(freezer) = self.freezer.as_ref().filter(|freezer| freezer.can_move) else { return Ok(None) };
        if !freezer.holds_system_calls && address_space::threads() > 1 {
            return Ok(None);
        }
        let room = Room::new(PageMap::open()?).while_doing("room to move pages aside")?;
        freezer.register_room(&room.range()).while_doing("room to move pages aside (userfaultfd)")?;
        Ok(Some(room))
    }

    /// How it is known of pages of a mapping that no device writes to them.
    pub(super) fn devices<'a>(&self, area: &Area, room: Option<&'a Room>, entries: &[Entry]) -> Devices<'a> {
        match (self.kind(area), room) {
            (Kind::Anonymous, Some(room)) if is_movable(area) => Devices::Moved(room),
            (Kind::File, _) if !entries.iter().any(|entry| entry.is_own()) => Devices::None,
            _ => Devices::ByDescriptors,
        }
    }

    /// Refuses what must not be merged.
    pub(super) fn check(&self, area: &Area, flags: Flags) -> Result<(), Error> {
        let refuse = |what: String| {
            let (start, end) = (area.range.start, area.range.end);
            Err(Error::new(libc::ENOTSUP, format!("{start:#x}-{end:#x}: {what}")))
        };
        if area.shared {
            return refuse("a shared mapping, whose pages are shared already".into());
        }
        // Thread stacks have no name. An area that is nothing but stack is refused; of larger areas the
        // stacks are excluded.
        let is_stack = |range: &Range<usize>| range.start <= area.range.start && area.range.end <= range.end;
        if area.name.starts_with("[stack") || self.excluded.ranges().iter().any(is_stack) {
            return refuse("a stack, which its thread is writing to".into());
        }
        if area.name.starts_with("[v") {
            return refuse(format!("{}, the kernel's own", area.name));
        }
        if area.name.starts_with("/dev/") && !area.name.starts_with("/dev/shm/") {
            return refuse(format!("device memory, {}", area.name));
        }
        if area.name.starts_with("/anon_hugepage") || area.name.contains("hugetlbfs") {
            return refuse("reserved huge pages, which cannot be shared by the page".into());
        }
        if !area.readable {
            return refuse("not readable, so there is nothing to compare".into());
        }
        if self.kind(area) == Kind::File && area.writable && !flags.quiet {
            return refuse(format!(
                "a writable private mapping of {}: its writers cannot be held off. Advise it with \
                 MAYFLY_ADVISE_QUIET while no thread writes to it, or make it read-only first",
                if area.name.is_empty() { "a file" } else { &area.name }
            ));
        }
        Ok(())
    }
}

/// Whether the kernel moves pages of anonymous memory like this: only where it is as the room is.
pub(super) fn is_movable(area: &Area) -> bool {
    area.readable && area.writable && !area.executable
}
