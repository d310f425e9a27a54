//! The parts of the memory that Mayfly's heap holds during a replay: objects, and free memory in spans, in
//! threads' caches and on pages, on average over the replay and at its end.

use anyhow::Result;
use lifetime::profile::label::CLASS_NAMES;
use serde_json::{Map, Value};

use crate::quantity;
use crate::statistics::whole_number;

/// A part of the memory: its key, and words for people.
type Part = (String, String);
/// The first parts are not free memory.
const PARTS_OF_OBJECTS: usize = 2;

fn parts() -> Vec<Part> {
    let mut parts: Vec<Part> = [
        ("objects", "objects, as requested"),
        ("rounding", "rounded up to cells, blocks and mappings"),
        ("free.spans", "spans without objects, open or cached"),
        ("free.large", "large objects, cached"),
        ("free.open_pages", "free blocks of pages being filled"),
        ("free.to_be_filled", "blocks of such pages not yet filled"),
    ]
    .map(|(key, words)| (key.into(), words.into()))
    .into();
    for (kind, words) in [("cells", "free cells of spans, pages of"), ("blocks", "free blocks, pages of")] {
        parts.extend(CLASS_NAMES.map(|class| (format!("free.{kind}.{class}"), format!("{words} {class}"))));
    }
    parts
}

/// The bytes of each part at one moment.
#[derive(Clone, Debug, Default)]
pub struct Placement(Vec<f64>);

impl Placement {
    /// The free parts, from the heap's statistics.
    ///
    /// # Errors
    /// The statistics lack a key.
    pub fn new(statistics: &Map<String, Value>) -> Result<Placement> {
        let mut bytes = vec![0.0; PARTS_OF_OBJECTS];
        for (key, _) in &parts()[PARTS_OF_OBJECTS..] {
            bytes.push(whole_number(statistics, &format!("heap.{key}_bytes"))? as f64);
        }
        Ok(Placement(bytes))
    }

    /// Adds the parts of objects: `requested_bytes` of live objects, and the rest of `held_bytes`.
    #[must_use]
    pub fn with_objects(mut self, requested_bytes: u64, held_bytes: u64) -> Placement {
        let free: f64 = self.0[PARTS_OF_OBJECTS..].iter().sum();
        self.0[0] = requested_bytes as f64;
        self.0[1] = held_bytes as f64 - requested_bytes as f64 - free;
        self
    }
}

/// The parts, with their means over all moments and their bytes at the end.
pub struct Summary(Vec<(Part, f64, f64)>);

impl Summary {
    /// The summary of these moments, equally far apart.
    pub fn of(moments: &[Placement], at_end: &Placement) -> Summary {
        let mean =
            |part: usize| moments.iter().map(|one| one.0[part]).sum::<f64>() / moments.len().max(1) as f64;
        let rows = parts().into_iter().enumerate().map(|(i, part)| (part, mean(i), at_end.0[i]));
        Summary(rows.collect())
    }

    /// Flat keys, each behind `prefix`.
    pub fn as_json(&self, prefix: &str) -> impl Iterator<Item = (String, Value)> {
        self.0.iter().flat_map(move |((key, _), average, at_end)| {
            [("average", average), ("final", at_end)]
                .map(|(when, bytes)| (format!("{prefix}.{key}.{when}_bytes"), bytes.round().into()))
        })
    }

    /// A table, without parts that are always empty.
    pub fn as_text(&self, name: &str) -> String {
        let held: f64 = self.0.iter().map(|row| row.1).sum();
        let mut text = format!("\n{name:42}{:>12}{:>9}{:>12}\n", "average", "of it", "at the end");
        for ((_, words), average, at_end) in self.0.iter().filter(|row| row.1 + row.2 > 0.0) {
            let share = 100.0 * average / held;
            let (average, at_end) = (quantity::bytes(*average), quantity::bytes(*at_end));
            text += &format!("{words:42}{average:>12}{share:>7.1} %{at_end:>12}\n");
        }
        text
    }
}
