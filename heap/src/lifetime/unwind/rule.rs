//! Rules to unwind a function, from the exception tables of programs (`.eh_frame`, DWARF 5 §6.4): the
//! caller's stack pointer, return address and frame pointer. libgcc's unwinder handles unusual frames, such
//! as a signal's or one with a computed size.

/// DWARF register numbers.
#[cfg(target_arch = "x86_64")]
mod register {
    pub const FRAME: u64 = 6;
    pub const STACK: u64 = 7;
    pub const RETURN: u64 = 16;
}
#[cfg(target_arch = "aarch64")]
mod register {
    pub const FRAME: u64 = 29;
    pub const STACK: u64 = 31;
    pub const RETURN: u64 = 30;
}

/// Where the caller's frame pointer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Saved {
    /// Still in its register.
    InPlace,
    /// This many words below the frame's end.
    Below(u16),
    /// Not known to these rules.
    Unknown,
}

/// How to unwind a frame. Its end, the caller's stack pointer, is `bytes` above the frame pointer or the
/// stack pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Whether the end is measured from the frame pointer.
    pub by_frame_pointer: bool,
    /// See above.
    pub bytes: u32,
    /// The return address lies this many words below the end.
    pub return_below: u16,
    /// The caller's frame pointer.
    pub frame_pointer: Saved,
}

/// The rule for a code address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Unwind by this frame.
    Frame(Frame),
    /// The outermost function of a thread, which has no caller.
    Outermost,
    /// libgcc must unwind it.
    Other,
}

/// Bits of a distance below an end, in words; the last two values are [`Saved::Unknown`] and
/// [`Saved::InPlace`].
const WORDS_BITS: u32 = 13;
const MOST_WORDS: u16 = (1 << WORDS_BITS) - 3;
const IN_PLACE: u64 = MOST_WORDS as u64 + 1;
const UNKNOWN: u64 = MOST_WORDS as u64 + 2;

impl Rule {
    /// Packs it into one word, which is not 0.
    pub fn packed(self) -> u64 {
        match self {
            Rule::Other => 1,
            Rule::Outermost => 2,
            Rule::Frame(frame) => {
                let saved = match frame.frame_pointer {
                    Saved::InPlace => IN_PLACE,
                    Saved::Unknown => UNKNOWN,
                    Saved::Below(words) => u64::from(words),
                };
                let places = saved << WORDS_BITS | u64::from(frame.return_below);
                u64::from(frame.bytes) << 32 | places << 3 | u64::from(frame.by_frame_pointer) << 2 | 3
            }
        }
    }

    /// Unpacks a word of [`Rule::packed`].
    pub fn unpacked(word: u64) -> Rule {
        match word & 3 {
            2 => Rule::Outermost,
            3 => {
                let words = |shift: u32| word >> shift & ((1 << WORDS_BITS) - 1);
                let frame_pointer = match words(3 + WORDS_BITS) {
                    IN_PLACE => Saved::InPlace,
                    UNKNOWN => Saved::Unknown,
                    words => Saved::Below(words as u16),
                };
                Rule::Frame(Frame {
                    by_frame_pointer: word & 4 != 0,
                    bytes: (word >> 32) as u32,
                    return_below: words(3) as u16,
                    frame_pointer,
                })
            }
            _ => Rule::Other,
        }
    }
}

/// The rule for the code at `place`, from its module's table at `header` (`.eh_frame_hdr`).
///
/// # Safety
/// `header` is the C library's address of the table of the module that contains `place`, and the module stays
/// loaded. The linker made the table, as it must be for exceptions.
pub unsafe fn at(place: usize, header: usize) -> Rule {
    // SAFETY: this function's caller guarantees what `find` needs.
    unsafe { find(place, header).and_then(|entry| entry.rule(place)) }.unwrap_or(Rule::Other)
}

/// Reads numbers from a table.
#[derive(Clone, Copy)]
struct Reader {
    at: usize,
    end: usize,
}

impl Reader {
    /// The next bytes as a number; `None` behind the end.
    fn take<T: Copy>(&mut self) -> Option<T> {
        let next = self.at.checked_add(size_of::<T>()).filter(|&next| next <= self.end)?;
        // SAFETY: `find` sets the end to the end of the linker's table, and only plain numbers are read.
        let value = unsafe { (self.at as *const T).read_unaligned() };
        self.at = next;
        Some(value)
    }

    /// An unsigned LEB128 number.
    fn unsigned(&mut self) -> Option<u64> {
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
    fn signed(&mut self) -> Option<i64> {
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

    fn skip(&mut self, bytes: u64) -> Option<()> {
        self.at = self.at.checked_add(bytes as usize).filter(|&next| next <= self.end)?;
        Some(())
    }
}

/// Pointers as linkers write them: 32 bits, signed, relative to their own address or to the table.
const FROM_HERE: u8 = 0x1B;
const FROM_TABLE: u8 = 0x3B;
const FOUR_BYTES: u8 = 0x03;

/// A function's entry, and the entry that it shares with others.
struct Entry {
    function: usize,
    code_step: u64,
    data_step: i64,
    /// Instructions for all functions, then for this one.
    shared: Reader,
    own: Reader,
}

/// Finds the entry of the function that contains `place`; the linker's table is sorted.
///
/// # Safety
/// See [`at`].
unsafe fn find(place: usize, header: usize) -> Option<Entry> {
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

/// Where a register's value in the caller is saved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Location {
    Unset,
    /// At this offset from the frame's end.
    At(i64),
    Undefined,
    Elsewhere,
}

#[derive(Clone, Copy)]
struct Row {
    /// The register that the end is measured from, and the offset; `None` if it is computed.
    end: Option<(u64, i64)>,
    frame_pointer: Location,
    return_address: Location,
}

impl Row {
    fn set(&mut self, register: u64, place: Location) {
        match register {
            register::FRAME => self.frame_pointer = place,
            register::RETURN => self.return_address = place,
            register::STACK if place != Location::Unset => self.end = None, // by convention the end is the stack pointer
            _ => {}
        }
    }
}

/// The most rows that may be remembered at a time; compilers need one.
const REMEMBERED: usize = 8;

impl Entry {
    fn rule(&self, place: usize) -> Option<Rule> {
        let mut row = Row { end: None, frame_pointer: Location::Unset, return_address: Location::Unset };
        self.run(self.shared, usize::MAX, &mut row, None)?;
        let first = row;
        self.run(self.own, place, &mut row, Some(first))?;
        if row.return_address == Location::Undefined {
            return Some(Rule::Outermost);
        }
        let (base, bytes) = row.end?;
        let words = |bytes: i64| {
            let words = u16::try_from(bytes.checked_neg()? / 8).ok()?;
            (bytes < 0 && bytes % 8 == 0 && words <= MOST_WORDS).then_some(words)
        };
        let Location::At(return_address) = row.return_address else { return None };
        let frame_pointer = match row.frame_pointer {
            Location::Unset => Saved::InPlace,
            Location::At(bytes) => words(bytes).map_or(Saved::Unknown, Saved::Below),
            Location::Undefined | Location::Elsewhere => Saved::Unknown,
        };
        Some(Rule::Frame(Frame {
            by_frame_pointer: match base {
                register::FRAME => true,
                register::STACK => false,
                _ => return None,
            },
            bytes: u32::try_from(bytes).ok()?,
            return_below: words(return_address)?,
            frame_pointer,
        }))
    }

    /// Runs instructions up to those for code behind `place`; `first` is the row that restores registers.
    fn run(&self, mut code: Reader, place: usize, row: &mut Row, first: Option<Row>) -> Option<()> {
        let mut remembered = [*row; REMEMBERED];
        let mut depth = 0;
        let mut location = self.function;
        while code.at < code.end {
            let byte = code.take::<u8>()?;
            let low = u64::from(byte & 0x3F);
            let mut steps = None;
            match (byte >> 6, byte & 0x3F) {
                (1, _) => steps = Some(low),
                (2, _) => row.set(low, Location::At((code.unsigned()? as i64).wrapping_mul(self.data_step))),
                (3, _) => give_back(row, low, first?),
                (_, 0x00) => {}
                (_, 0x02) => steps = Some(code.take::<u8>()?.into()),
                (_, 0x03) => steps = Some(code.take::<u16>()?.into()),
                (_, 0x04) => steps = Some(code.take::<u32>()?.into()),
                (_, 0x05) => {
                    let register = code.unsigned()?;
                    row.set(register, Location::At((code.unsigned()? as i64).wrapping_mul(self.data_step)));
                }
                (_, 0x06) => give_back(row, code.unsigned()?, first?),
                (_, 0x07) => row.set(code.unsigned()?, Location::Undefined),
                (_, 0x08) => row.set(code.unsigned()?, Location::Unset),
                (_, 0x09) => {
                    row.set(code.unsigned()?, Location::Elsewhere);
                    code.unsigned()?;
                }
                (_, 0x0A) => {
                    *remembered.get_mut(depth)? = *row;
                    depth += 1;
                }
                (_, 0x0B) => {
                    depth = depth.checked_sub(1)?;
                    *row = remembered[depth];
                }
                (_, 0x0C) => row.end = Some((code.unsigned()?, code.unsigned()? as i64)),
                (_, 0x0D) => row.end = Some((code.unsigned()?, row.end?.1)),
                (_, 0x0E) => row.end = Some((row.end?.0, code.unsigned()? as i64)),
                (_, 0x0F) => {
                    row.end = None;
                    let bytes = code.unsigned()?;
                    code.skip(bytes)?;
                }
                (_, 0x10 | 0x16) => {
                    row.set(code.unsigned()?, Location::Elsewhere);
                    let bytes = code.unsigned()?;
                    code.skip(bytes)?;
                }
                (_, 0x11) => {
                    let register = code.unsigned()?;
                    row.set(register, Location::At(code.signed()?.wrapping_mul(self.data_step)));
                }
                (_, 0x12) => row.end = Some((code.unsigned()?, code.signed()?.wrapping_mul(self.data_step))),
                (_, 0x13) => row.end = Some((row.end?.0, code.signed()?.wrapping_mul(self.data_step))),
                (_, 0x2D) if cfg!(target_arch = "aarch64") => {} // the return address is signed; `cached_rules` strips the signature
                (_, 0x2E) => _ = code.unsigned()?,               // bytes of arguments: not needed
                _ => return None,
            }
            if let Some(steps) = steps {
                location = location.checked_add(steps.checked_mul(self.code_step)? as usize)?;
                if location > place {
                    break;
                }
            }
        }
        Some(())
    }
}

fn give_back(row: &mut Row, register: u64, first: Row) {
    match register {
        register::FRAME => row.frame_pointer = first.frame_pointer,
        register::RETURN => row.return_address = first.return_address,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_one_word() {
        let mut frames = std::vec::Vec::new();
        for frame_pointer in [Saved::InPlace, Saved::Unknown, Saved::Below(2), Saved::Below(MOST_WORDS)] {
            for (by_frame_pointer, bytes) in [(false, 8), (true, u32::MAX)] {
                frames.push(Rule::Frame(Frame { by_frame_pointer, bytes, return_below: 1, frame_pointer }));
            }
        }
        for rule in frames.into_iter().chain([Rule::Outermost, Rule::Other]) {
            assert_ne!(rule.packed(), 0);
            assert_eq!(Rule::unpacked(rule.packed()), rule);
        }
    }

    #[test]
    fn a_place_that_no_number_can_be_below_has_no_rule() {
        let of =
            |bytes: &[u8]| Reader { at: bytes.as_ptr() as usize, end: bytes.as_ptr_range().end as usize };
        // The end is 8 above the stack pointer, the return address one step below it.
        let code = [0x0C, register::STACK as u8, 8, 0x80 | register::RETURN as u8, 1];
        let rule = |data_step| {
            Entry { function: 0, code_step: 1, data_step, shared: of(&[]), own: of(&code) }.rule(0)
        };
        assert!(matches!(rule(-8), Some(Rule::Frame(Frame { bytes: 8, return_below: 1, .. }))));
        assert_eq!((rule(i64::MIN), rule(8)), (None, None));
    }

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
