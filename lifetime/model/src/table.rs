//! A table in place of a network, for programs with few contexts: a context is the sequence of its functions, innermost first,
//! and the longest beginning of it that the table has says the class, or that contexts which begin so die at different times.
//! `train/model/table.py` makes it.

/// Functions of a context that are looked at.
pub const MOST_FUNCTIONS: usize = 32;
/// In place of an output: it is not told.
pub const NOT_TOLD: u8 = 255;

const START: u64 = 0x243F_6A88_85A3_08D3;
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Beginnings of contexts and what they say.
pub struct Table<'a> {
    /// Ascending.
    pub(crate) keys: &'a [u64],
    pub(crate) outputs: &'a [u8],
}

impl Table<'_> {
    /// What is said of a context, if anything is.
    pub fn look_up(&self, functions: impl Iterator<Item = u16>) -> Option<usize> {
        let mut key = START;
        let mut output = NOT_TOLD;
        for function in functions.take(MOST_FUNCTIONS) {
            key = longer(key, function);
            let Ok(place) = self.keys.binary_search(&key) else { break };
            output = *self.outputs.get(place)?;
        }
        (output != NOT_TOLD).then_some(usize::from(output))
    }
}

/// The key of a beginning, from that of one function less.
pub fn longer(key: u64, function: u16) -> u64 {
    let key = (key ^ (u64::from(function) + 1)).wrapping_mul(MULTIPLIER);
    key ^ key >> 32
}

/// The key of the beginning with these functions.
pub fn key_of(functions: &[u16]) -> u64 {
    functions.iter().fold(START, |key, &function| longer(key, function))
}
