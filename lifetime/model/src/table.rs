//! A table in place of a network, for programs with few contexts: a context is the sequence of its functions,
//! innermost first. The longest prefix that the table has decides the class; it has none if contexts of that
//! prefix die at different times. `train/model/table.py` makes it.

/// Functions of a context that count.
pub const MOST_FUNCTIONS: usize = 32;
/// In place of an output: the prefix has no class.
pub const NO_CLASS: u8 = 255;

const START: u64 = 0x243F_6A88_85A3_08D3;
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Prefixes of contexts and their classes.
pub struct Table<'a> {
    /// Ascending.
    pub(crate) keys: &'a [u64],
    pub(crate) outputs: &'a [u8],
}

impl Table<'_> {
    /// The class of a context, if the table has one.
    pub fn look_up(&self, functions: impl Iterator<Item = u16>) -> Option<usize> {
        let mut key = START;
        let mut output = NO_CLASS;
        for function in functions.take(MOST_FUNCTIONS) {
            key = longer(key, function);
            let Ok(place) = self.keys.binary_search(&key) else { break };
            output = *self.outputs.get(place)?;
        }
        (output != NO_CLASS).then_some(usize::from(output))
    }
}

/// The key of a prefix, from that of one function less.
pub fn longer(key: u64, function: u16) -> u64 {
    let key = (key ^ (u64::from(function) + 1)).wrapping_mul(MULTIPLIER);
    key ^ key >> 32
}

/// The key of the prefix with these functions.
pub fn key_of(functions: &[u16]) -> u64 {
    functions.iter().fold(START, |key, &function| longer(key, function))
}
