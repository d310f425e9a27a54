//! The model file: header, section table, sections; read in place. A file that is cut short, damaged, of
//! another version or malicious is refused with its fault. After [`Model::parse`] no number in it can lead
//! outside of it.

use xxhash_rust::xxh3::xxh3_64;
use zerocopy::FromBytes;

use crate::table::{NO_CLASS, Table};

/// The version of the layout.
pub const VERSION: u32 = 1;
/// The widest hidden state.
pub const MAX_HIDDEN: usize = 128;
/// The most outputs.
pub const MAX_OUTPUTS: usize = 8;
/// The longest context.
pub const MAX_FRAMES: usize = 64;
/// Frame of addresses and modules that the model does not know.
pub const UNKNOWN_FRAME: u32 = 0;

const MAGIC: &[u8; 8] = b"MAYFLYLM";
const HEADER: usize = 64;
const SECTION: usize = 32;
const ALIGNMENT: usize = 64;
const CHECKED_FROM: usize = 32;
const MODULE: usize = 64;
const BUILD_ID: usize = 32;
const RECURRENT_ENCODER: u32 = 1;
const TABLE_ENCODER: u32 = 2;
/// Set in a step's last row.
pub const STEP_END: u16 = 1 << 15;

/// A checked model. Slices lie in the file.
pub struct Model<'a> {
    /// Units of the hidden state.
    pub hidden: usize,
    /// Frames of a context that are read, innermost first.
    pub max_frames: usize,
    /// Whether the outermost of the frames that are read is the first step, not the innermost.
    pub outermost_first: bool,
    /// The file's description of itself, JSON.
    pub metadata: &'a [u8],
    /// For each output, the time in ms within which the objects die; the last is `u64::MAX`.
    pub limits: &'a [u64],
    modules: &'a [u8],
    starts: &'a [u32],
    range_frames: &'a [u32],
    frames: &'a [u32],
    steps: &'a [u16],
    pub(crate) rows: &'a [i8],
    pub(crate) row_scales: &'a [f32],
    pub(crate) bias: &'a [f32],
    pub(crate) recurrent: &'a [i8],
    pub(crate) recurrent_scales: &'a [f32],
    pub(crate) dense: &'a [f32],
    pub(crate) dense_bias: &'a [f32],
    /// In place of the weights, which are empty then.
    pub(crate) table: Option<Table<'a>>,
    /// -128 times the sum of each row of `recurrent`: a kernel that counts the state from 0 has to add it.
    pub(crate) correction: [i32; 4 * MAX_HIDDEN],
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |four| u32::from_le_bytes(four.try_into().unwrap_or_default()))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |eight| u64::from_le_bytes(eight.try_into().unwrap_or_default()))
}

/// One of the sections, by their numbers in the file.
struct Sections<'a> {
    file: &'a [u8],
    table: &'a [u8],
}

impl<'a> Sections<'a> {
    /// The section of a kind, of `count` entries if that is known.
    fn find<T: FromBytes + zerocopy::Immutable + zerocopy::KnownLayout>(
        &self,
        kind: u32,
        count: Option<usize>,
    ) -> Result<&'a [T], &'static str> {
        let mut of_kind = self.table.chunks_exact(SECTION).filter(|entry| u32_at(entry, 0) == kind);
        let entry = of_kind.next().ok_or("a section is missing")?;
        if of_kind.next().is_some() {
            return Err("a section is there twice");
        }
        let (offset, bytes, entries) = (u64_at(entry, 8), u64_at(entry, 16), u64_at(entry, 24));
        let outside = "a section lies outside of it";
        let start = usize::try_from(offset).map_err(|_| outside)?;
        let length = usize::try_from(bytes).map_err(|_| outside)?;
        if !start.is_multiple_of(ALIGNMENT) || start < HEADER + self.table.len() {
            return Err("a section begins where none can");
        }
        let end = start.checked_add(length).ok_or(outside)?;
        let section = self.file.get(start..end).ok_or(outside)?;
        let found = <[T]>::ref_from_bytes(section).map_err(|_| "a section ends within an entry")?;
        if found.len() as u64 != entries || count.is_some_and(|count| count != found.len()) {
            return Err("a section has not the number of entries that it should have");
        }
        Ok(found)
    }

    fn floats(&self, kind: u32, count: usize) -> Result<&'a [f32], &'static str> {
        let found: &[f32] = self.find(kind, Some(count))?;
        if found.iter().all(|number| number.is_finite()) {
            Ok(found)
        } else {
            Err("a weight is not a number")
        }
    }
}

fn within(number: u32, least: usize, most: usize, fault: &'static str) -> Result<usize, &'static str> {
    let number = number as usize;
    if (least..=most).contains(&number) { Ok(number) } else { Err(fault) }
}

impl<'a> Model<'a> {
    /// Checks a whole file, which begins at a multiple of 8.
    ///
    /// # Errors
    /// The fault, to follow the file's name and a colon.
    pub fn parse(file: &'a [u8]) -> Result<Self, &'static str> {
        if file.len() < HEADER || &file[..8] != MAGIC {
            return Err("it does not begin with MAYFLYLM: not a model that `mayfly train` wrote");
        }
        if u32_at(file, 8) != VERSION {
            return Err("it has another version than this heap reads: train again");
        }
        if u64_at(file, 16) != file.len() as u64 {
            return Err("it is not as long as it says: cut short?");
        }
        if u64_at(file, 24) != xxh3_64(&file[CHECKED_FROM..]) {
            return Err("its checksum is wrong: damaged");
        }
        let least_hidden = match u32_at(file, 32) {
            RECURRENT_ENCODER => 16,
            TABLE_ENCODER => 0,
            _ => return Err("its encoder is not known to this heap"),
        };
        let most_hidden = if least_hidden == 0 { 0 } else { MAX_HIDDEN };
        let hidden =
            within(u32_at(file, 36), least_hidden, most_hidden, "its hidden size is not from 16 to 128")?;
        if !hidden.is_multiple_of(16) {
            return Err("its hidden size is not a multiple of 16");
        }
        let outputs = within(u32_at(file, 40), 2, MAX_OUTPUTS, "its outputs are not from 2 to 8")?;
        let rows = within(u32_at(file, 44), 1, usize::from(STEP_END - 1), "it has too many rows, or none")?;
        let max_frames =
            within(u32_at(file, 48), 1, MAX_FRAMES, "its contexts have not from 1 to 64 frames")?;
        let outermost_first = within(u32_at(file, 52), 0, 1, "its order of steps is not known")? == 1;
        let table_end =
            (u32_at(file, 12) as usize).checked_mul(SECTION).and_then(|bytes| bytes.checked_add(HEADER));
        let table =
            table_end.and_then(|end| file.get(HEADER..end)).ok_or("its section table lies outside of it")?;
        let sections = Sections { file, table };
        let gates = 4 * hidden;
        let frames: &[u32] = sections.find(6, None)?;
        let starts: &[u32] = sections.find(4, None)?;
        let mut model = Self {
            hidden,
            max_frames,
            outermost_first,
            metadata: sections.find(1, None)?,
            limits: sections.find(2, Some(outputs))?,
            modules: sections.find(3, None).map(|entries: &[[u8; MODULE]]| entries.as_flattened())?,
            starts,
            range_frames: sections.find(5, Some(starts.len()))?,
            frames,
            steps: sections.find(7, None)?,
            rows: &[],
            row_scales: &[],
            bias: &[],
            recurrent: &[],
            recurrent_scales: &[],
            dense: &[],
            dense_bias: &[],
            table: None,
            correction: [0; 4 * MAX_HIDDEN],
        };
        if hidden == 0 {
            model.table = Some(table_of(&sections, outputs)?);
        } else {
            model.rows = sections.find(8, None)?;
            if model.rows.len() != rows * gates {
                return Err("it has not as many rows as it says");
            }
            model.row_scales = sections.floats(9, rows)?;
            model.bias = sections.floats(10, gates)?;
            model.recurrent = sections.find(11, Some(gates * hidden))?;
            model.recurrent_scales = sections.floats(12, gates)?;
            model.dense = sections.floats(13, outputs * hidden)?;
            model.dense_bias = sections.floats(14, outputs)?;
        }
        model.check(rows)?;
        model.prepare();
        Ok(model)
    }

    /// Whether it is a table and no network: then it does not know every context.
    pub fn is_table(&self) -> bool {
        self.table.is_some()
    }

    /// Checks that every reference leads to an entry that exists.
    fn check(&self, rows: usize) -> Result<(), &'static str> {
        let ascending = |numbers: &[u32]| numbers.windows(2).all(|pair| pair[0] < pair[1]);
        if self.limits.last() != Some(&u64::MAX) || self.limits.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err("its classes do not ascend to the one that never dies");
        }
        let known_frames =
            self.frames.len().checked_sub(1).filter(|&count| count > 0).ok_or("it has no frames")?;
        if self.frames[0] != 0
            || self.frames[known_frames] as usize != self.steps.len()
            || self.frames.windows(2).any(|pair| pair[0] > pair[1])
        {
            return Err("its frames do not divide its steps");
        }
        if self.steps.iter().any(|step| usize::from(step & !STEP_END) >= rows) {
            return Err("a step names a row that is not there");
        }
        let ends_open = |pair: &[u32]| pair[0] < pair[1] && self.steps[pair[1] as usize - 1] & STEP_END == 0;
        if self.frames.windows(2).any(ends_open) {
            return Err("a frame ends within a step");
        }
        if self.range_frames.iter().any(|&frame| frame as usize >= known_frames) {
            return Err("a range names a frame that is not there");
        }
        for entry in self.modules.chunks_exact(MODULE) {
            if !(1..=BUILD_ID).contains(&(u32_at(entry, BUILD_ID) as usize)) {
                return Err("a module has no build-id");
            }
            let Some(starts) = self.starts.get(ranges_of(entry)) else {
                return Err("a module's ranges are not there");
            };
            if !ascending(starts) {
                return Err("a module's ranges do not ascend");
            }
        }
        Ok(())
    }

    fn prepare(&mut self) {
        let gates = 4 * self.hidden.max(1);
        for quads in self.recurrent.chunks_exact(4 * gates) {
            for (row, quad) in quads.chunks_exact(4).enumerate() {
                self.correction[row] -= 128 * quad.iter().map(|&weight| i32::from(weight)).sum::<i32>();
            }
        }
    }

    /// The number of the module with a build-id.
    pub fn module(&self, build_id: &[u8]) -> Option<u32> {
        let has_id = |entry: &[u8]| entry.get(..u32_at(entry, BUILD_ID) as usize) == Some(build_id);
        Some(self.modules.chunks_exact(MODULE).position(has_id)? as u32)
    }

    /// The frame of an address within a module's file; of a call, the address before the one that it returns
    /// to.
    pub fn frame(&self, module: u32, address: u64) -> u32 {
        let Ok(address) = u32::try_from(address) else { return UNKNOWN_FRAME };
        let Some(ranges) = self.modules.chunks_exact(MODULE).nth(module as usize).map(ranges_of) else {
            return UNKNOWN_FRAME;
        };
        match self.starts[ranges.clone()].partition_point(|&start| start <= address) {
            0 => UNKNOWN_FRAME,
            behind => self.range_frames[ranges.start + behind - 1],
        }
    }

    /// The rows of a frame's steps; each step's last one has [`STEP_END`] set.
    #[inline(always)]
    pub(crate) fn steps_of(&self, frame: u32) -> &'a [u16] {
        let frame = frame as usize;
        match (self.frames.get(frame), self.frames.get(frame + 1)) {
            (Some(&start), Some(&end)) => &self.steps[start as usize..end as usize],
            _ => &[],
        }
    }
}

/// The table of a file that has one.
fn table_of<'a>(sections: &Sections<'a>, outputs: usize) -> Result<Table<'a>, &'static str> {
    let keys: &[u64] = sections.find(15, None)?;
    let found = Table { keys, outputs: sections.find(16, Some(keys.len()))? };
    if keys.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err("its contexts do not ascend");
    }
    if found.outputs.iter().any(|&output| output != NO_CLASS && usize::from(output) >= outputs) {
        return Err("a context has a class that is not there");
    }
    Ok(found)
}

/// The ranges of a module.
fn ranges_of(entry: &[u8]) -> core::ops::Range<usize> {
    let (first, count) = (u32_at(entry, BUILD_ID + 4) as usize, u32_at(entry, BUILD_ID + 8) as usize);
    first..first + count
}
