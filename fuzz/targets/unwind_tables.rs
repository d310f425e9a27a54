//! Exception tables as the heap's unwinder reads them, against gimli's reading of the same bytes.
//!
//! The framing (lengths, the sorted table) is a linker's, as the unwinder's contract has it; what the records
//! hold is anything.

#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use gimli::{
    BaseAddresses, CfaRule, EhFrame, LittleEndian, Register, RegisterRule, UnwindContext, UnwindSection,
};
use heap::lifetime::unwind::{Frame, Rule, Saved, rule_at};
use libfuzzer_sys::fuzz_target;

const FRAME: Register = Register(6);
const STACK: Register = Register(7);
const RETURN: Register = Register(16);
/// The function lies so far behind its table.
const FUNCTION: usize = 1 << 20;

#[derive(Debug)]
struct Tables {
    version: u8,
    letters: Vec<u8>,
    augmentation: Vec<u8>,
    code_step: u8,
    data_step: i8,
    shared: Vec<u8>,
    own: Vec<u8>,
    function_bytes: u32,
    place: u32,
    /// Whether each instruction is one that compilers write for ordinary frames.
    is_plain: bool,
}

fn leb(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        out.push(if value == 0 { byte } else { byte | 0x80 });
        if value == 0 {
            return;
        }
    }
}

fn sleb(out: &mut Vec<u8>, mut value: i64) {
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        let is_last = value == 0 && byte & 0x40 == 0 || value == -1 && byte & 0x40 != 0;
        out.push(if is_last { byte } else { byte | 0x80 });
        if is_last {
            return;
        }
    }
}

/// Appends an instruction; returns whether it is plain.
fn instruction(u: &mut Unstructured, out: &mut Vec<u8>) -> Result<bool> {
    let register = |u: &mut Unstructured| u.choose(&[6_u64, 7, 16, 3, 12]).copied();
    match u.int_in_range(0..=15)? {
        0 | 1 => out.push(0x40 | u.int_in_range(0..=63)?),
        2 => out.extend([0x02, u.arbitrary()?]),
        3 => {
            let register = *u.choose(&[6_u8, 16, 3, 12])?;
            out.push(0x80 | register);
            leb(out, u.int_in_range(1..=40)?);
        }
        4 | 5 => {
            out.push(0x0c);
            leb(out, *u.choose(&[6, 7])?);
            leb(out, u64::from(u.arbitrary::<u16>()?));
        }
        6 => {
            out.push(0x0e);
            leb(out, u64::from(u.arbitrary::<u16>()?));
        }
        7 => {
            out.push(0x0d);
            leb(out, *u.choose(&[6, 7])?);
        }
        8 => out.push(0xc0 | *u.choose(&[6_u8, 16, 3])?),
        9 => out.push(0x0a),
        10 => out.push(0x0b),
        kind => {
            match kind {
                11 => {
                    out.push(*u.choose(&[0x06, 0x07, 0x08])?);
                    leb(out, register(u)?);
                }
                12 => {
                    out.push(*u.choose(&[0x05, 0x09, 0x0c])?);
                    leb(out, register(u)?);
                    leb(out, u.arbitrary()?);
                }
                13 => {
                    out.push(*u.choose(&[0x11, 0x12])?);
                    leb(out, register(u)?);
                    sleb(out, u.arbitrary()?);
                }
                14 => {
                    out.push(*u.choose(&[0x10, 0x16])?);
                    leb(out, register(u)?);
                    let bytes = u.int_in_range(0..=9)?;
                    leb(out, bytes);
                    out.extend(u.bytes(bytes as usize)?);
                }
                _ => out.extend(u.bytes(1)?),
            }
            return Ok(false);
        }
    }
    Ok(true)
}

/// Instructions, and whether each is plain and the unwinder can remember as many rows as they do.
fn instructions(u: &mut Unstructured) -> Result<(Vec<u8>, bool)> {
    let (mut out, mut is_plain, mut remembered) = (Vec::new(), true, 0);
    for _ in 0..u.int_in_range(0..=24)? {
        let start = out.len();
        is_plain &= instruction(u, &mut out)?;
        remembered += usize::from(out.get(start) == Some(&0x0a));
    }
    Ok((out, is_plain && remembered <= 8))
}

impl<'a> Arbitrary<'a> for Tables {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Tables> {
        let is_usual = u.ratio(7, 8)?;
        let (mut shared, plain_shared) = instructions(u)?;
        if is_usual {
            // As compilers begin: the end is 8 above the stack pointer, the return address just below it.
            shared.splice(..0, [0x0c, 7, 8, 0x90, 1]);
        }
        let (own, plain_own) = instructions(u)?;
        Ok(Tables {
            version: if is_usual { 1 } else { u.int_in_range(0..=4)? },
            letters: if is_usual { b"zR".to_vec() } else { letters(u)? },
            augmentation: if is_usual { vec![0x1b] } else { u.arbitrary::<[u8; 7]>()?.to_vec() },
            code_step: if is_usual { 1 } else { u.arbitrary()? },
            data_step: if is_usual { -8 } else { u.arbitrary()? },
            // What all functions share remembers no row that is given back in one.
            is_plain: is_usual && plain_shared && plain_own && !shared.contains(&0x0a),
            shared,
            own,
            function_bytes: u.int_in_range(0..=2000)?,
            place: u.int_in_range(0..=2000)?,
        })
    }
}

fn letters(u: &mut Unstructured) -> Result<Vec<u8>> {
    (0..u.int_in_range(0..=5)?).map(|_| u.choose(b"zzRLPSBx").copied()).collect()
}

impl Tables {
    /// The bytes, and where the shared record and the function's own begin.
    fn bytes(&self) -> (Vec<u8>, usize, usize) {
        let mut shared = vec![0; 4];
        shared.push(self.version);
        shared.extend(&self.letters);
        shared.push(0);
        leb(&mut shared, self.code_step.into());
        sleb(&mut shared, self.data_step.into());
        shared.push(RETURN.0 as u8);
        leb(&mut shared, self.augmentation.len() as u64);
        shared.extend(&self.augmentation);
        shared.extend(&self.shared);
        shared.resize(shared.len().next_multiple_of(4), 0);
        // Header and one line of the table.
        let mut bytes = vec![1, 0x1b, 3, 0x3b, 0, 0, 0, 0, 1, 0, 0, 0];
        bytes.resize(20, 0);
        let first = bytes.len();
        bytes.extend((shared.len() as u32).to_le_bytes());
        bytes.extend(shared);
        let second = bytes.len();
        let mut own = Vec::new();
        own.extend(((second + 4 - first) as u32).to_le_bytes());
        own.extend(((FUNCTION - second - 8) as u32).to_le_bytes());
        own.extend(self.function_bytes.to_le_bytes());
        own.push(0);
        own.extend(&self.own);
        own.resize(own.len().next_multiple_of(4), 0);
        bytes.extend((own.len() as u32).to_le_bytes());
        bytes.extend(own);
        bytes[4..8].copy_from_slice(&((first - 4) as u32).to_le_bytes());
        bytes[12..16].copy_from_slice(&(FUNCTION as u32).to_le_bytes());
        bytes[16..20].copy_from_slice(&(second as u32).to_le_bytes());
        (bytes, first, second)
    }
}

/// What gimli makes of the records: the end's base and offset, and the two registers' rules.
fn reference(
    bytes: &[u8],
    first: usize,
    second: usize,
    place: u64,
) -> Option<(CfaRule<usize>, [Option<RegisterRule<usize>>; 2])> {
    let frames = EhFrame::new(&bytes[first..], LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(first as u64);
    let offset = (second - first).into();
    let entry = frames.fde_from_offset(&bases, offset, EhFrame::cie_from_offset).ok()?;
    if !entry.contains(place) {
        return None;
    }
    let mut context = UnwindContext::new();
    let row = entry.unwind_info_for_address(&frames, &bases, &mut context, place).ok()?;
    Some((row.cfa().clone(), [row.register(FRAME), row.register(RETURN)]))
}

/// Words below the end, if the heap's rules have room for so many.
fn words(offset: i64) -> Option<u16> {
    let words = u16::try_from(offset.checked_neg()? / 8).ok()?;
    (offset < 0 && offset % 8 == 0 && words <= (1 << 13) - 3).then_some(words)
}

fuzz_target!(|tables: Tables| {
    let (bytes, first, second) = tables.bytes();
    let bytes = bytes.into_boxed_slice();
    let base = bytes.as_ptr() as usize;
    let place = FUNCTION + tables.place as usize;
    // SAFETY: a table with the framing that linkers write; it outlives the call.
    let rule = unsafe { rule_at(base + place, base) };
    assert_eq!(Rule::unpacked(rule.packed()), rule);
    let reference = reference(&bytes, first, second, place as u64);
    // gimli remembers fewer rows than the heap.
    let remembered = tables.shared.iter().chain(&tables.own).filter(|byte| **byte == 0x0a).count();
    if reference.is_none() && remembered > 2 {
        return;
    }
    if let Rule::Frame(Frame { by_frame_pointer, bytes, return_below, frame_pointer }) = rule {
        let (end, [frame, address]) = reference.expect("gimli has no rule for this frame");
        let register = if by_frame_pointer { FRAME } else { STACK };
        assert_eq!(end, CfaRule::RegisterAndOffset { register, offset: bytes.into() });
        assert_eq!(address, Some(RegisterRule::Offset(-8 * i64::from(return_below))));
        match (frame_pointer, frame) {
            (Saved::InPlace, None | Some(RegisterRule::SameValue)) => {}
            (Saved::Below(below), Some(RegisterRule::Offset(offset))) => {
                assert_eq!(words(offset), Some(below));
            }
            (Saved::Unknown, Some(RegisterRule::Offset(offset))) => assert_eq!(words(offset), None),
            (Saved::Unknown, Some(other)) if other != RegisterRule::SameValue => {}
            (ours, theirs) => panic!("{ours:?}, and gimli says {theirs:?}"),
        }
    } else if rule == Rule::Outermost {
        let (_, [_, address]) = reference.expect("gimli has no rule for this frame");
        assert_eq!(address, Some(RegisterRule::Undefined));
    } else if tables.is_plain
        && let Some((
            CfaRule::RegisterAndOffset { register: FRAME | STACK, .. },
            [_, Some(RegisterRule::Offset(at))],
        )) = reference
    {
        assert_eq!(words(at), None, "an ordinary frame is left to libgcc");
    }
});
