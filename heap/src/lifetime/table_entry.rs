//! What is kept of a site for the program's next run.

use crate::units::lifetime_class::CLASSES;

/// What is kept of a site, as it lies in the file.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TableEntry {
    /// The site.
    pub key: u64,
    /// Its parent's key; 0 for a parent.
    pub parent: u64,
    /// When a process last used it, s since 1970.
    pub used_s: u32,
    /// Bytes that it had taken.
    pub charged_bytes: u32,
    /// Its class.
    pub class: u8,
    /// What the model said, plus one; 0 if it was not asked.
    pub model_class: u8,
    /// How often in a row it said the same.
    pub agreed: u8,
    /// The word of the stack that tells its callers apart, see `Site::word`.
    pub word: u8,
    /// How many died in each class.
    pub dead: [u16; CLASSES],
    zeros: [u8; 6],
}

/// Its bytes.
pub const TABLE_ENTRY_BYTES: usize = size_of::<TableEntry>();
const _: () = assert!(TABLE_ENTRY_BYTES == 48);

impl TableEntry {
    /// With the times that are the file's business left out.
    pub fn new(key: u64, parent: u64, class: u8, model_class: u8, agreed: u8) -> Self {
        let (used_s, charged_bytes, dead) = (0, 0, [0; CLASSES]);
        Self { key, parent, used_s, charged_bytes, class, model_class, agreed, word: 0, dead, zeros: [0; 6] }
    }

    /// Whether it can be what a process wrote.
    pub fn is_sound(&self) -> bool {
        self.key & 1 == 1
            && (self.class as usize) < CLASSES
            && self.model_class as usize <= CLASSES
            && (self.parent == 0 || self.parent & 1 == 1)
    }
}
