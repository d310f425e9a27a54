//! A site's entry in the table that is kept across runs.

use crate::units::lifetime_class::CLASSES;

/// A site's entry, as it is in the file.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TableEntry {
    /// The site's key.
    pub key: u64,
    /// Its parent's key; 0 for a parent.
    pub parent: u64,
    /// When a process last used it, s since 1970.
    pub used_s: u32,
    /// Bytes charged to it.
    pub charged_bytes: u32,
    /// Its class.
    pub class: u8,
    /// The model's class plus one; 0 if the model was not run.
    pub model_class: u8,
    /// How often in a row the model confirmed it.
    pub agreed: u8,
    /// The word of the stack that separates its callers, see `Site::word`.
    pub word: u8,
    /// How many objects died in each class.
    pub dead: [u16; CLASSES],
    zeros: [u8; 6],
}

/// The size of an entry.
pub const TABLE_ENTRY_BYTES: usize = size_of::<TableEntry>();
const _: () = assert!(TABLE_ENTRY_BYTES == 48);

impl TableEntry {
    /// A new entry; the file sets its times and counts.
    pub fn new(key: u64, parent: u64, class: u8, model_class: u8, agreed: u8) -> Self {
        let (used_s, charged_bytes, dead) = (0, 0, [0; CLASSES]);
        Self { key, parent, used_s, charged_bytes, class, model_class, agreed, word: 0, dead, zeros: [0; 6] }
    }

    /// Whether a process can have written it.
    pub fn is_sound(&self) -> bool {
        self.key & 1 == 1
            && (self.class as usize) < CLASSES
            && self.model_class as usize <= CLASSES
            && (self.parent == 0 || self.parent & 1 == 1)
    }
}
