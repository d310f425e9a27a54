//! Arenas (§3.1, Fig. 5a): a header of one line, and 256 objects of one size. Headers live in memory, at the
//! start of the arena's first page; the HOT holds copies. Arenas of a class are linked in two lists,
//! available and full, by physical addresses (0: none). The arena in the HOT is in neither.

use crate::layout::{HEADER_BYTES, LINE_BYTES, OBJECTS, PAGE_BYTES, object_bytes};

/// The most that the bypass counter's 11 bits hold.
pub const BYPASS_COUNTER_MAX: u16 = (1 << 11) - 1;

/// An arena's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The arena's virtual address.
    pub address: u64,
    /// One bit for each object: set while it is allocated.
    pub bitmap: [u64; OBJECTS / 64],
    /// Lines after this one, the header being line 0, have not been accessed since their objects were new
    /// (§3.3).
    pub bypass_counter: u16,
    /// The arena before this one in its list.
    pub prev: u64,
    /// The arena after this one in its list.
    pub next: u64,
    /// How many of the last objects have no room: their bits are always set. Known by the class, and in no
    /// header.
    pub absent: u8,
}

impl Header {
    /// A fresh arena's, whose last `absent` objects have no room.
    pub fn new(address: u64, absent: usize) -> Header {
        let mut header = Header { address, absent: absent as u8, ..Header::default() };
        header.bitmap[OBJECTS / 64 - 1] = header.absent_bits();
        header
    }

    /// Of the bitmap's last word.
    #[inline]
    fn absent_bits(&self) -> u64 {
        !(u64::MAX >> self.absent)
    }

    /// The lowest free object.
    #[inline]
    pub fn first_free(&self) -> Option<usize> {
        let word = self.bitmap.iter().position(|&bits| bits != u64::MAX)?;
        Some(word * 64 + self.bitmap[word].trailing_ones() as usize)
    }

    /// Whether an object is allocated.
    #[inline]
    pub fn is_allocated(&self, index: usize) -> bool {
        self.bitmap[index / 64] >> (index % 64) & 1 == 1 && index + usize::from(self.absent) < OBJECTS
    }

    /// Sets an object's bit.
    #[inline]
    pub fn set(&mut self, index: usize) {
        self.bitmap[index / 64] |= 1 << (index % 64);
    }

    /// Clears an object's bit.
    #[inline]
    pub fn clear(&mut self, index: usize) {
        self.bitmap[index / 64] &= !(1 << (index % 64));
    }

    /// Whether every object is allocated.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.bitmap == [u64::MAX; OBJECTS / 64]
    }

    /// Whether no object is.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bitmap == [0, 0, 0, self.absent_bits()]
    }

    /// Allocated objects.
    pub fn live(&self) -> u64 {
        let set: u64 = self.bitmap.iter().map(|bits| u64::from(bits.count_ones())).sum();
        set - u64::from(self.absent)
    }

    /// The highest allocated object.
    pub fn last_allocated(&self) -> Option<usize> {
        let mut bitmap = self.bitmap;
        bitmap[OBJECTS / 64 - 1] &= !self.absent_bits();
        let word = bitmap.iter().rposition(|&bits| bits != 0)?;
        Some(word * 64 + 63 - bitmap[word].leading_zeros() as usize)
    }
}

/// The first and the last line of an object, counted from the arena's header.
#[inline]
pub fn lines_of(class: usize, index: usize) -> (u64, u64) {
    let start = HEADER_BYTES + index as u64 * object_bytes(class);
    (start / LINE_BYTES, (start + object_bytes(class) - 1) / LINE_BYTES)
}

/// The headers in memory, by the physical page that they are at the start of.
#[derive(Debug)]
pub struct Headers {
    first_page: u64,
    headers: Vec<Header>,
}

impl Headers {
    /// No header yet; `pool_start` is the pool's first physical address.
    pub fn new(pool_start: u64) -> Headers {
        Headers { first_page: pool_start / PAGE_BYTES, headers: Vec::new() }
    }

    fn slot(&self, physical: u64) -> usize {
        (physical / PAGE_BYTES - self.first_page) as usize
    }

    /// The header in memory at `physical`.
    pub fn read(&self, physical: u64) -> Header {
        self.headers.get(self.slot(physical)).copied().unwrap_or_default()
    }

    /// Writes a header, as the HOT's write-back does.
    pub fn write(&mut self, physical: u64, header: Header) {
        *self.at(physical) = header;
    }

    /// The header at `physical`, to be updated in place.
    pub fn at(&mut self, physical: u64) -> &mut Header {
        let slot = self.slot(physical);
        if slot >= self.headers.len() {
            self.headers.resize((slot + 1).next_power_of_two(), Header::default());
        }
        &mut self.headers[slot]
    }

    /// Puts an arena at the head of a list; returns the arena that was the head, whose header changed as
    /// well.
    pub fn push(&mut self, head: &mut u64, physical: u64) -> Option<u64> {
        let next = *head;
        let header = self.at(physical);
        header.prev = 0;
        header.next = next;
        *head = physical;
        if next == 0 {
            return None;
        }
        self.at(next).prev = physical;
        Some(next)
    }

    /// Takes an arena out of the list it is in; returns its neighbours, whose headers changed as well.
    pub fn unlink(&mut self, head: &mut u64, physical: u64) -> [Option<u64>; 2] {
        let Header { prev, next, .. } = self.read(physical);
        if prev == 0 {
            *head = next;
        } else {
            self.at(prev).next = next;
        }
        if next != 0 {
            self.at(next).prev = prev;
        }
        let header = self.at(physical);
        header.prev = 0;
        header.next = 0;
        [prev, next].map(|neighbour| Some(neighbour).filter(|&n| n != 0))
    }
}
