//! Checkpoints: the guest's marks before it is timed.
//!
//! What the guest does before it is timed reaches a machine by marks alone. A run that makes a checkpoint
//! writes them down and has QEMU pause where the guest asks to be timed; QEMU's state is the launcher's to
//! keep. A run that starts from there repeats the marks first, on its own machine, which is then as if it had
//! seen them.
//!
//! The file has for each mark its code, with the highest bit set where the page table's root is another one
//! than before. Then come that root, and by how much each of the two operands differs from the code's last:
//! numbers in LEB128, differences in zigzag.

use super::Run;
use super::kernel::Kernel;
use crate::model::marks::{END_OPERATION, KERNEL_FUNCTION, READY, STOP_CHARGING};
use crate::model::{Model, Phase};
use crate::qemu;
use std::path::PathBuf;

const OTHER_ROOT: u8 = 0x80;

/// A mark.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mark {
    code: u32,
    root: u64,
    operands: [u64; 2],
}

/// What the next mark's numbers are relative to.
struct Last {
    root: u64,
    operands: [[u64; 2]; 128],
}

impl Last {
    fn new() -> Last {
        Last { root: 0, operands: [[0; 2]; 128] }
    }
}

/// The marks of a run that makes a checkpoint.
pub(super) struct Saving {
    file: PathBuf,
    bytes: Vec<u8>,
    last: Last,
}

impl Saving {
    pub fn to(file: PathBuf) -> Saving {
        Saving { file, bytes: Vec::new(), last: Last::new() }
    }

    fn add(&mut self, mark: Mark) {
        let Mark { code, root, operands } = mark;
        let code = code as u8 & !OTHER_ROOT;
        let changes = root != self.last.root;
        self.bytes.push(code | if changes { OTHER_ROOT } else { 0 });
        if changes {
            self.last.root = root;
            add_number(&mut self.bytes, root);
        }
        for (value, last) in operands.into_iter().zip(&mut self.last.operands[usize::from(code)]) {
            let difference = value.wrapping_sub(*last) as i64;
            add_number(&mut self.bytes, (difference << 1 ^ difference >> 63) as u64);
            *last = value;
        }
    }
}

fn add_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// The marks in a file.
struct Marks<'a> {
    bytes: &'a [u8],
    last: Last,
}

impl Marks<'_> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            number |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn mark(&mut self) -> Option<Mark> {
        let (code, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        if code & OTHER_ROOT != 0 {
            self.last.root = self.number()?;
        }
        let code = code & !OTHER_ROOT;
        let mut operands = self.last.operands[usize::from(code)];
        for operand in &mut operands {
            let zigzag = self.number()?;
            *operand = operand.wrapping_add((zigzag >> 1) ^ (zigzag & 1).wrapping_neg());
        }
        self.last.operands[usize::from(code)] = operands;
        Some(Mark { code: u32::from(code), root: self.last.root, operands })
    }
}

impl Run {
    /// Writes a mark down; at READY, QEMU pauses in place of what would follow.
    pub(super) fn save(&mut self, code: u32, root: u64, operands: [u64; 2]) {
        let Some(saving) = &mut self.saving else { return };
        // The operands of these mean nothing.
        let operands = if matches!(code, STOP_CHARGING | END_OPERATION) { [0; 2] } else { operands };
        saving.add(Mark { code, root, operands });
        if code != READY {
            return;
        }
        let Some(Saving { file, bytes, .. }) = self.saving.take() else { return };
        if let Err(error) = std::fs::write(&file, bytes) {
            self.fail(&format!("{}: {error}", file.display()));
        }
        if !qemu::pause() {
            self.fail("this QEMU cannot pause where a guest asks it to: use one that is built with modules");
        }
        self.phase = Phase::Over;
    }
}

/// Repeats the marks of a checkpoint's file; the guest goes on behind the last, READY.
pub(super) fn repeat(bytes: &[u8], model: &mut Model, kernel: &mut Kernel) -> Result<(), String> {
    let mut marks = Marks { bytes, last: Last::new() };
    while !marks.bytes.is_empty() {
        let Mark { code, root, operands } = marks.mark().ok_or("the marks are cut short")?;
        if code == KERNEL_FUNCTION {
            kernel.set_function(operands);
        }
        model.repeat(root, code, operands);
    }
    if model.instruments() { Ok(()) } else { Err("the marks do not end where the guest is timed".into()) }
}
