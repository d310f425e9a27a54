//! Which pieces of a profile's file changed since it was last written: few, and neighbours are one.

/// How many pieces of the file one sample changes at most; neighbours are one.
const CHANGES: usize = 16;
/// Unchanged bytes between two changed pieces that are not worth a call of their own.
const GAP_BYTES: usize = 256;

/// Pieces of the file that changed: where they begin and end.
#[repr(C)]
pub struct Changes {
    pieces: [(u32, u32); CHANGES],
    count: usize,
}

impl Changes {
    /// Notes that these bytes of the file changed.
    pub fn add(&mut self, at: usize, bytes: usize) {
        let (from, to) = (at as u32, (at + bytes) as u32);
        let gap = GAP_BYTES as u32;
        let near = |&(start, end): &(u32, u32)| from <= end + gap && start <= to + gap;
        let full = self.count == CHANGES;
        let place = match self.pieces[..self.count].iter().position(near) {
            Some(place) => place,
            None if full => CHANGES - 1,
            None => {
                self.pieces[self.count] = (from, to);
                self.count += 1;
                return;
            }
        };
        let piece = &mut self.pieces[place];
        *piece = (piece.0.min(from), piece.1.max(to));
    }

    /// The pieces, in the order in which they changed; a reader then never finds what names something that is
    /// not there.
    pub fn pieces(&self) -> impl Iterator<Item = core::ops::Range<usize>> {
        self.pieces[..self.count].iter().map(|&(from, to)| from as usize..to as usize)
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.count = 0;
    }
}
