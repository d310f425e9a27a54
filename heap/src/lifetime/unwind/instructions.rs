//! Runs the instructions of a function's entry (DWARF 5 §6.4.2) up to a code address: the row that stands
//! there is the rule. libgcc's unwinder handles unusual frames, such as a signal's or one of a computed size.

use super::rule::{Frame, MOST_WORDS, Rule, Saved};
use super::tables::{Entry, Reader, find, register};

/// The rule for the code at `place`, from its module's table at `header` (`.eh_frame_hdr`).
///
/// # Safety
/// `header` is the C library's address of the table of the module that contains `place`, and the module stays
/// loaded. The linker made the table, as it must be for exceptions.
pub unsafe fn at(place: usize, header: usize) -> Rule {
    // SAFETY: this function's caller guarantees what `find` needs.
    unsafe { find(place, header).and_then(|entry| entry.rule(place)) }.unwrap_or(Rule::Other)
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
}
