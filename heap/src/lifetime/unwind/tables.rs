//! The exception tables of programs (`.eh_frame_hdr`, `.eh_frame`; DWARF 5 §6.4): finds a function's entry,
//! and reads its numbers. libgcc's unwinder handles entries that linkers do not write.

/// DWARF register numbers.
#[cfg(target_arch = "x86_64")]
pub mod register {
    pub const FRAME: u64 = 6;
    pub const STACK: u64 = 7;
    pub const RETURN: u64 = 16;
}
#[cfg(target_arch = "aarch64")]
pub mod register {
    pub const FRAME: u64 = 29;
    pub const STACK: u64 = 31;
    pub const RETURN: u64 = 30;
}

/// Reads numbers from a table.
#[derive(Clone, Copy)]
pub struct Reader {
    pub at: usize,
    pub end: usize,
}

impl Reader {
    /// The next bytes as a number; `None` behind the end.
    pub fn take<T: Copy>(&mut self) -> Option<T> {
        let next = self.at.checked_add(size_of::<T>()).filter(|&next| next <= self.end)?;
        // SAFETY: `find` sets the end to the end of the linker's table, and only plain numbers are read.
        let value = unsafe { (self.at as *const T).read_unaligned() };
        self.at = next;
        Some(value)
    }

    /// An unsigned LEB128 number.
    pub fn unsigned(&mut self) -> Option<u64> {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = self.take::<u8>()?;
            value |= u64::from(byte & 0x7F).checked_shl(shift)?;
            shift += 7;
            if byte < 0x80 {
                return Some(value);
            }
        }
    }

    /// A signed one.
    pub fn signed(&mut self) -> Option<i64> {
        let (mut value, mut shift) = (0i64, 0);
        loop {
            let byte = self.take::<u8>()?;
            value |= i64::from(byte & 0x7F).checked_shl(shift)?;
            shift += 7;
            if byte < 0x80 {
                let unused = i64::BITS.saturating_sub(shift);
                return Some(value << unused >> unused);
            }
        }
    }

    pub fn skip(&mut self, bytes: u64) -> Option<()> {
        self.at = self.at.checked_add(bytes as usize).filter(|&next| next <= self.end)?;
        Some(())
    }
}

/// Pointers as linkers write them: 32 bits, signed, relative to their own address or to the table.
const FROM_HERE: u8 = 0x1B;
const FROM_TABLE: u8 = 0x3B;
const FOUR_BYTES: u8 = 0x03;

/// A function's entry, and the entry that it shares with others.
pub struct Entry {
    pub function: usize,
    pub code_step: u64,
    pub data_step: i64,
    /// Instructions for all functions, then for this one.
    pub shared: Reader,
    pub own: Reader,
}

/// Finds the entry of the function that contains `place`; the linker's table is sorted.
///
/// # Safety
/// See [`super::instructions::at`].
pub unsafe fn find(place: usize, header: usize) -> Option<Entry> {
    let mut head = Reader { at: header, end: header + 12 };
    let [version, to_table, count, entries] = head.take::<[u8; 4]>()?;
    if (version, to_table, count, entries) != (1, FROM_HERE, FOUR_BYTES, FROM_TABLE) {
        return None;
    }
    head.take::<i32>()?;
    let count = head.take::<u32>()? as usize;
    let entry = |number: usize| {
        let start = header + 12 + 8 * number;
        Reader { at: start, end: start + 8 }.take::<[i32; 2]>().unwrap_or_default()
    };
    let from_table = |offset: i32| header.wrapping_add_signed(offset as isize);
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low.midpoint(high);
        if from_table(entry(middle)[0]) <= place { low = middle + 1 } else { high = middle }
    }
    let own = block(from_table(entry(low.checked_sub(1)?)[1]))?;
    parse(own, place)
}

/// The record at `start`, which begins with its length.
fn block(start: usize) -> Option<Reader> {
    let mut length = Reader { at: start, end: start + 4 };
    let bytes = length.take::<u32>()? as usize;
    (4..0xFFFF_FFF0).contains(&bytes).then(|| Reader { at: length.at, end: length.at + bytes })
}

fn parse(mut own: Reader, place: usize) -> Option<Entry> {
    let back = own.at;
    let mut shared = block(back.checked_sub(own.take::<u32>()? as usize)?)?;
    if shared.take::<u32>()? != 0 {
        return None;
    }
    let version = shared.take::<u8>()?;
    let letters = shared.at;
    while shared.take::<u8>()? != 0 {}
    let mut letters = Reader { at: letters, end: shared.at - 1 };
    let (code_step, data_step) = (shared.unsigned()?, shared.signed()?);
    let return_register = if version == 1 { u64::from(shared.take::<u8>()?) } else { shared.unsigned()? };
    if !matches!(version, 1 | 3) || return_register != register::RETURN || letters.take::<u8>()? != b'z' {
        return None;
    }
    let bytes = shared.unsigned()?;
    let mut more = Reader { at: shared.at, end: shared.at.checked_add(bytes as usize)? };
    shared.skip(bytes)?;
    let mut pointers = None;
    while letters.at < letters.end {
        match letters.take::<u8>()? {
            b'R' => pointers = more.take::<u8>(),
            b'L' => _ = more.take::<u8>()?,
            b'P' => {
                let bytes = match more.take::<u8>()? & 0xF {
                    0 | 4 | 12 => 8,
                    3 | 11 => 4,
                    _ => return None,
                };
                more.skip(bytes)?;
            }
            _ => return None, // `S` marks a signal's frame
        }
    }
    let here = own.at;
    let function = here.wrapping_add_signed(own.take::<i32>()? as isize);
    let bytes = own.take::<u32>()? as usize;
    if pointers != Some(FROM_HERE) || !(function..function + bytes).contains(&place) {
        return None;
    }
    let more = own.unsigned()?;
    own.skip(more)?;
    Some(Entry { function, code_step, data_step, shared, own })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_the_tables_have_them() {
        let read =
            |bytes: &[u8]| Reader { at: bytes.as_ptr() as usize, end: bytes.as_ptr() as usize + bytes.len() };
        assert_eq!(read(&[0xE5, 0x8E, 0x26]).unsigned(), Some(624_485));
        assert_eq!(read(&[0x78]).signed(), Some(-8));
        assert_eq!(read(&[0x80, 0x7F]).signed(), Some(-128));
        assert_eq!(read(&[0x80]).unsigned(), None, "it ends within a number");
        assert_eq!(read(&[0xFF; 20]).unsigned(), None, "more than 64 bits");
    }
}
