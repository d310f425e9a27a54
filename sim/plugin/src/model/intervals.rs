//! Statistics of each N instructions of the region: a line of JSON each, in `intervals.jsonl`.

use super::Model;
use sim::system::statistics::Statistics;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// The interval that the run is in.
pub(super) struct Intervals {
    every: u64,
    /// The region's instruction at which it began, and everything that was counted by then.
    begin: u64,
    before: Statistics,
    file: BufWriter<File>,
}

impl Intervals {
    pub fn new(every: u64, folder: &Path) -> Result<Intervals, String> {
        let path = folder.join("intervals.jsonl");
        let file = File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Intervals { every, begin: 0, before: Statistics::default(), file: BufWriter::new(file) })
    }

    /// The instruction at which the interval ends.
    pub fn end(&self) -> u64 {
        self.begin + self.every
    }
}

impl Model {
    /// The region begins.
    pub(super) fn start_intervals(&mut self) {
        if let Some(intervals) = &mut self.intervals {
            intervals.before = Statistics::of(&self.machine, &self.description);
        }
    }

    /// An interval ends here; the last one, with the region, wherever that is.
    pub(super) fn end_interval(&mut self) {
        let Some(intervals) = &mut self.intervals else { return };
        let end = self.machine.instructions();
        let now = Statistics::of(&self.machine, &self.description);
        let mut line = now.since(&intervals.before);
        line.insert("first_instruction".into(), intervals.begin.into());
        let written = writeln!(intervals.file, "{}", serde_json::Value::Object(line));
        if let Err(error) = written.and_then(|()| intervals.file.flush()) {
            self.fail(&format!("--interval: {error}"));
        }
        (intervals.begin, intervals.before) = (end, now);
    }
}
