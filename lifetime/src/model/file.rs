//! Model files for people: a model's predictions for a profile's contexts, looked up as the heap does.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use lifetime_model::file::UNKNOWN_FRAME;
pub use lifetime_model::{Kernel, Model};

use zerocopy::IntoBytes;

use crate::profile::contents::{Context, Profile};

/// A model file in memory, checked.
pub struct File {
    /// Numbers are read in place, so the file begins at a multiple of 8.
    words: Vec<u64>,
    bytes: usize,
}

impl File {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The file cannot be read, or is no model that the heap can use; the path is named.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        words.as_mut_bytes()[..bytes.len()].copy_from_slice(&bytes);
        let file = Self { words, bytes: bytes.len() };
        file.parse().map_err(|why| anyhow!("model {}: {why}", path.display()))?;
        Ok(file)
    }

    fn parse(&self) -> Result<Model<'_>, &'static str> {
        Model::parse(self.bytes())
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.words.as_bytes()[..self.bytes]
    }

    /// The model.
    ///
    /// # Panics
    /// Never: the file was checked when it was read.
    pub fn model(&self) -> Model<'_> {
        self.parse().expect("checked")
    }
}

/// The numbers that a model has for the frames of a context.
pub fn frames_of(model: &Model, profile: &Profile, context: &Context) -> Vec<u32> {
    let number = |frame: &crate::profile::contents::Frame| {
        let module = model.module(&profile.modules[frame.module?].build_id)?;
        Some(model.frame(module, frame.offset.wrapping_sub(1)))
    };
    context.frames.iter().map(|frame| number(frame).unwrap_or(UNKNOWN_FRAME)).collect()
}
