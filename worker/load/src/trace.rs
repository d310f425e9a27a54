//! Traces of invocations in the two layouts that Microsoft has published of Azure Functions.
//!
//! 2019: a row per function, `HashOwner,HashApp,HashFunction,Trigger,1,2,…,1440`, invocations in each minute.
//! 2021: a row per invocation, `app,func,end_timestamp,duration`, in seconds.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};

/// The most invocations in memory; for more, choose a shorter part of the trace.
const MOST_ARRIVALS: usize = 10_000_000;
const MINUTE_S: f64 = 60.0;

/// One invocation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// Seconds since the trace began.
    pub at_s: f64,
    /// Index in [`Trace::functions`].
    pub function: u32,
}

/// A trace, in order of time.
#[derive(Debug, PartialEq)]
pub struct Trace {
    /// Names of the functions.
    pub functions: Vec<String>,
    /// Invocations.
    pub arrivals: Vec<Arrival>,
}

impl Trace {
    /// Reads the first `seconds` of a trace. In the 2019 layout, invocations are placed at random in their
    /// minute; the same `seed` places them the same.
    ///
    /// # Errors
    /// The trace is wrong; the error names file and line.
    pub fn read(path: &Path, seconds: f64, seed: u64) -> Result<Trace> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| anyhow!("{}: {}", path.display(), worker_system::text::plain_reason(&error)))?;
        Trace::parse(&text, seconds, seed).with_context(|| path.display().to_string())
    }

    fn parse(text: &str, seconds: f64, seed: u64) -> Result<Trace> {
        let mut lines = text.lines().zip(1..);
        let (header, _) = lines.next().context("the file is empty")?;
        let columns: Vec<&str> = header.trim_end().split(',').collect();
        let mut reader = Reader { seconds, random: Random(seed), ..Reader::default() };
        let read: fn(&mut Reader, &[&str]) -> Result<()> = match columns[..] {
            ["HashOwner", "HashApp", "HashFunction", "Trigger", "1", ..] => Reader::counts,
            ["app", "func", "end_timestamp", "duration"] => Reader::invocation,
            _ => bail!(
                "line 1: neither the 2019 layout (HashOwner,HashApp,HashFunction,Trigger,1,...) nor the 2021 layout \
                 (app,func,end_timestamp,duration)"
            ),
        };
        for (line, number) in lines.filter(|(line, _)| !line.trim().is_empty()) {
            let fields: Vec<&str> = line.trim_end().split(',').collect();
            ensure!(
                fields.len() == columns.len(),
                "line {number}: {} fields where the first line has {}",
                fields.len(),
                columns.len()
            );
            read(&mut reader, &fields).with_context(|| format!("line {number}"))?;
        }
        reader.finish(columns.len() == 4)
    }
}

#[derive(Default)]
struct Reader {
    seconds: f64,
    random: Random,
    index: HashMap<String, u32>,
    functions: Vec<String>,
    arrivals: Vec<Arrival>,
}

impl Reader {
    fn counts(&mut self, fields: &[&str]) -> Result<()> {
        let function = self.function(fields[2]);
        for (minute, field) in fields[4..].iter().enumerate() {
            let begins_s = minute as f64 * MINUTE_S;
            if begins_s >= self.seconds {
                break;
            }
            let count: usize =
                field.parse().map_err(|_| anyhow!("minute {}: '{field}' is no count", minute + 1))?;
            self.has_room(count)?;
            for _ in 0..count {
                let at_s = begins_s + self.random.unit() * MINUTE_S;
                self.arrivals.push(Arrival { at_s, function });
            }
        }
        Ok(())
    }

    fn invocation(&mut self, fields: &[&str]) -> Result<()> {
        let number = |name: &str, text: &str| {
            let number: Option<f64> = text.parse().ok();
            number.filter(|number| number.is_finite()).ok_or_else(|| anyhow!("{name}: '{text}' is no number"))
        };
        let at_s = number("end_timestamp", fields[2])? - number("duration", fields[3])?;
        self.has_room(1)?;
        let function = self.function(fields[1]);
        self.arrivals.push(Arrival { at_s, function });
        Ok(())
    }

    fn has_room(&self, more: usize) -> Result<()> {
        let fits = self.arrivals.len().saturating_add(more) <= MOST_ARRIVALS;
        ensure!(fits, "more than {MOST_ARRIVALS} invocations: choose a part with --seconds");
        Ok(())
    }

    fn function(&mut self, name: &str) -> u32 {
        if let Some(known) = self.index.get(name) {
            return *known;
        }
        let new = self.functions.len() as u32;
        self.index.insert(name.to_string(), new);
        self.functions.push(name.to_string());
        new
    }

    /// Times in invocation rows begin anywhere; counts begin with their first minute.
    fn finish(mut self, begins_with_first: bool) -> Result<Trace> {
        self.arrivals.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        if begins_with_first {
            let first = self.arrivals.first().map_or(0.0, |arrival| arrival.at_s);
            self.arrivals.iter_mut().for_each(|arrival| arrival.at_s -= first);
        }
        self.arrivals.retain(|arrival| arrival.at_s < self.seconds);
        ensure!(!self.arrivals.is_empty(), "there is no invocation in the first {} s", self.seconds);
        Ok(Trace { functions: self.functions, arrivals: self.arrivals })
    }
}

/// SplitMix64 (Steele et al., OOPSLA 2014): small, seeded, good enough to place arrivals.
#[derive(Default)]
struct Random(u64);

impl Random {
    /// From 0 to just below 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COUNTS: &str =
        "HashOwner,HashApp,HashFunction,Trigger,1,2,3\no,a,f,http,2,0,1\no,a,g,timer,0,3,0\n";

    #[test]
    fn counts_are_placed_in_their_minutes() {
        let trace = Trace::parse(COUNTS, 1e9, 7).unwrap();
        assert_eq!(trace.functions, ["f", "g"]);
        let in_minute = |minute: f64, function| {
            let chosen = |a: &&Arrival| (a.at_s / 60.0).floor() == minute && a.function == function;
            trace.arrivals.iter().filter(chosen).count()
        };
        assert_eq!([in_minute(0.0, 0), in_minute(2.0, 0), in_minute(1.0, 1)], [2, 1, 3]);
        assert_eq!(trace.arrivals.len(), 6);
        assert!(trace.arrivals.is_sorted_by(|a, b| a.at_s <= b.at_s));
        assert_eq!(Trace::parse(COUNTS, 1e9, 7).unwrap(), trace, "the same seed, the same times");
        assert_ne!(Trace::parse(COUNTS, 1e9, 8).unwrap(), trace);
        assert_eq!(Trace::parse(COUNTS, 60.0, 7).unwrap().arrivals.len(), 2);
    }

    #[test]
    fn invocations_begin_when_they_end_less_their_duration() {
        let text = "app,func,end_timestamp,duration\na,f,100.5,0.5\na,g,99,4\na,f,300,1\n";
        let trace = Trace::parse(text, 100.0, 0).unwrap();
        assert_eq!(trace.functions, ["f", "g"]);
        let arrivals: Vec<_> =
            trace.arrivals.iter().map(|arrival| (arrival.at_s, arrival.function)).collect();
        assert_eq!(arrivals, [(0.0, 1), (5.0, 0)]);
    }

    #[test]
    fn errors_name_the_line() {
        let refusal = |text: &str| format!("{:#}", Trace::parse(text, 1e9, 0).unwrap_err());
        assert_eq!(refusal(""), "the file is empty");
        assert!(refusal("a,b\n").starts_with("line 1: neither"));
        assert_eq!(refusal(&COUNTS.replace("2,0,1", "2,x,1")), "line 2: minute 2: 'x' is no count");
        assert_eq!(refusal(&COUNTS.replace("2,0,1", "2,0")), "line 2: 6 fields where the first line has 7");
        let rows = "app,func,end_timestamp,duration\na,f,1,nan\n";
        assert_eq!(refusal(rows), "line 2: duration: 'nan' is no number");
        assert!(refusal(&COUNTS.replace("2,0,1", "99999999,0,1")).contains("--seconds"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(header in 0..2_usize, rows in "[a-z0-9,.\\-\\n]{0,200}") {
            let header = ["HashOwner,HashApp,HashFunction,Trigger,1,2", "app,func,end_timestamp,duration"][header];
            let _ = Trace::parse(&format!("{header}\n{rows}"), 1e3, 1);
        }
    }
}
