//! Pages to replace: how writers are held off, and how it is known that no device writes to them.

use std::ops::Range;

use rustix::io::Errno;
use rustix::mm::{Advice, ProtFlags, madvise};

use super::pointer;
use crate::base::page::PAGE_BYTES;
use crate::client::address_space;
use crate::client::device_writers;
use crate::client::freeze::Registered;
use crate::client::interpose;
use crate::client::move_aside::{PageSet, Refusal, Room};
use crate::client::plan::Page;

/// How often pages are touched, so that they are present and can be protected.
const FREEZE_ATTEMPTS: usize = 3;

/// A run of pages to replace, and how writers are held off.
pub struct Site<'a> {
    /// Where the pages are.
    pub start: usize,
    /// Their states.
    pub pages: &'a [Page],
    /// The protection of the mapping.
    pub protection: ProtFlags,
    /// None if nothing writes.
    pub writers: Option<&'a Registered<'a>>,
    /// How it is known that no device writes.
    pub devices: Devices<'a>,
}

/// How it is known that no device writes to pages.
#[derive(Clone, Copy)]
pub enum Devices<'a> {
    /// There are no pages of this process's own, or the caller promises it.
    None,
    /// The kernel moves pages that are not pinned.
    Moved(&'a Room),
    /// The process's descriptors tell.
    ByDescriptors,
}

/// The result of [`Site::exclude_devices`].
pub enum Verdict {
    /// No device writes to the frozen pages.
    Unpinned,
    /// So it is, and they are aside: who touches them waits, until other pages are there.
    Aside,
    /// A device may write to some of them. They are in place, and may be written.
    Busy,
}

impl Site<'_> {
    /// The states of a piece.
    pub fn pages_of(&self, piece: &Range<usize>) -> &[Page] {
        &self.pages[(piece.start - self.start) / PAGE_BYTES..(piece.end - self.start) / PAGE_BYTES]
    }

    /// Lets threads continue that wait at a piece which [`Site::exclude_devices`] has examined and left.
    pub fn end(&self, piece: &Range<usize>) {
        if let (Devices::Moved(_), Some(writers)) = (self.devices, self.writers) {
            writers.admit(piece);
        }
    }

    /// As [`Site::end`]; the piece can be frozen again.
    pub fn end_and_register(&self, piece: &Range<usize>) -> rustix::io::Result<()> {
        self.end(piece);
        self.writers.map_or(Ok(()), |writers| writers.register_again(piece))
    }

    /// Moves a piece aside that is not frozen. No thread can write what is aside, and one that touches it
    /// waits. True if all of it is aside; from here to [`Site::end`] this thread must not touch it. Else it
    /// is as it was, or its first page is frozen: some pages cannot be moved at once, or other memory may be
    /// there.
    pub fn take_aside(&self, piece: &Range<usize>) -> rustix::io::Result<bool> {
        let (Devices::Moved(room), Some(writers)) = (self.devices, self.writers) else { return Ok(false) };
        // If the first page of a mapping is registered, all of it is: nothing else has taken its place.
        self.freeze(&(piece.start..piece.start + PAGE_BYTES))?;
        if !self.is_one_mapping(piece) || writers.hold_absent(piece).is_err() {
            return Ok(false);
        }
        if room.take(writers, piece, &PageSet::EMPTY).is_ok() {
            return Ok(true);
        }
        room.put_back(writers, piece);
        // While absent pages are held this thread must not read: if another drops some, it waits for itself.
        let _ = self.end_and_register(piece); // if that fails, freezing does
        Ok(false)
    }

    fn is_one_mapping(&self, piece: &Range<usize>) -> bool {
        let mut is_whole = false;
        let found = address_space::each(piece, |view| {
            is_whole = view.range.start <= piece.start && piece.end <= view.range.end && view.file.is_none();
        });
        found.is_ok() && is_whole
    }

    /// Determines whether a device may write to a piece, which is frozen. From here to [`Site::end`] this
    /// thread must not touch it: it may have pages that are not there, and would wait for itself.
    pub fn exclude_devices(&self, piece: &Range<usize>, elsewhere: &PageSet) -> Verdict {
        let by_descriptors = || match device_writers::find(piece) {
            None => Verdict::Unpinned,
            Some(_) => {
                self.thaw(piece);
                Verdict::Busy
            }
        };
        match (self.devices, self.writers) {
            (Devices::Moved(_), Some(writers)) if writers.hold_absent(piece).is_err() => by_descriptors(),
            (Devices::Moved(room), Some(writers)) => match room.take(writers, piece, elsewhere) {
                Ok(()) => Verdict::Aside,
                Err(Refusal::Unsuited) => by_descriptors(),
                Err(Refusal::Busy(_)) => {
                    room.put_back(writers, piece);
                    self.thaw(piece);
                    Verdict::Busy
                }
            },
            (Devices::ByDescriptors, Some(_)) => by_descriptors(),
            _ => Verdict::Unpinned,
        }
    }

    /// The pages of a frozen piece that another process maps as well. They stay where they are, and may be
    /// read only before [`Site::exclude_devices`].
    pub fn mapped_elsewhere(&self, piece: &Range<usize>) -> PageSet {
        match self.devices {
            Devices::Moved(room) => room.mapped_elsewhere(piece),
            _ => PageSet::EMPTY,
        }
    }

    /// Where the contents of the page at `address` are.
    pub fn contents(&self, address: usize, verdict: &Verdict) -> usize {
        match (self.devices, verdict) {
            (Devices::Moved(room), Verdict::Aside) => room.place(address),
            _ => address,
        }
    }

    /// Puts the pages of a piece back that are aside, if the piece is where it was.
    pub fn put_back(&self, piece: &Range<usize>) {
        if let (Devices::Moved(room), Some(writers)) = (self.devices, self.writers) {
            room.put_back(writers, piece);
        }
    }

    /// Frees the pages of a piece that are aside.
    pub fn free_aside(&self, piece: &Range<usize>) {
        if let Devices::Moved(room) = self.devices {
            room.clear(piece);
        }
    }

    /// The pages of a piece that stay busy although they are this process's alone. The piece is not frozen.
    pub fn survey(&self, piece: &Range<usize>) -> Option<PageSet> {
        let (Devices::Moved(room), Some(writers)) = (self.devices, self.writers) else { return None };
        // Absent pages are not held meanwhile: if another thread drops some, this one would wait for itself.
        self.end_and_register(piece).ok()?;
        make_exclusive(piece);
        let busy = {
            let _signals = BlockedSignals::new();
            let _interposed = interpose::lock();
            writers.hold_absent(piece).ok()?;
            room.survey(writers, piece)
        };
        self.end_and_register(piece).ok()?;
        Some(busy)
    }

    pub(super) fn freeze(&self, piece: &Range<usize>) -> rustix::io::Result<()> {
        let Some(writers) = self.writers else { return Ok(()) };
        let mut result = writers.freeze(piece);
        for _ in 0..FREEZE_ATTEMPTS {
            if result != Err(Errno::AGAIN) {
                break;
            }
            for page in piece.clone().step_by(PAGE_BYTES) {
                // SAFETY: a readable page of the caller's.
                unsafe { (page as *const u8).read_volatile() };
            }
            result = writers.freeze(piece);
        }
        result
    }

    pub(super) fn thaw(&self, piece: &Range<usize>) {
        if let Some(writers) = self.writers {
            let _ = writers.thaw(piece);
        }
    }

    pub(super) fn wake(&self, piece: &Range<usize>) {
        if let Some(writers) = self.writers {
            writers.wake(piece);
        }
    }
}

/// Makes pages that a fork has shared this process's alone. They must not be frozen, nor absent ones held.
pub fn make_exclusive(piece: &Range<usize>) {
    // SAFETY: changes no contents.
    let _ = unsafe { madvise(pointer(piece.start), piece.len(), Advice::LinuxPopulateWrite) };
}

/// Signals stay blocked as long as this lives.
pub struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    /// Blocks all signals.
    pub fn new() -> BlockedSignals {
        // SAFETY: both sets are initialised by the calls; this thread's mask only.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            BlockedSignals(before)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the mask from before `new`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}
