//! `mayfly replay`: the paper's page simulator (LLAMA §2.1, Figs. 1, 2 and 9).

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use lifetime::profile::label::CLASS_NAMES;
use serde_json::{Map, Value, json};

use crate::progress;
use crate::quantity::{bytes, count, duration, parse_page_bytes};
use crate::trace::confusion::Confusion;
use crate::trace::record::{described, totals_as_json};
use crate::trace::simulation::{Curve, Recorded, packed, simulate};
use crate::trace::{on_heap, plot};

const EXAMPLES: &str = "\
Examples:
  mayfly replay app.trace
  mayfly replay app.trace --plot memory.svg --lifetimes-plot lifetimes.svg
  mayfly replay app.trace --allocator recorded,mayfly,packed --json
  mayfly replay app.trace --allocator mayfly --confuse 10ms=inf:10   a tenth of the objects that die at once is predicted
                                                                     to live for ever
  mayfly replay app.trace --page 4KiB,64KiB,2MiB,1GiB --interval 100

Allocators:
  recorded  the addresses in the trace, as the traced program's allocator chose them
  mayfly    the same objects allocated anew on Mayfly's heap, each with its true lifetime, by one
            thread; deadlines follow the trace's time. MAYFLY_HEAP_SPANS, _RECYCLE and
            _DEADLINE_FACTOR apply. Prints the parts of the memory that it holds (--json:
            mayfly.where), and with --json the heap's statistics at the end (mayfly.end)
  packed    the least whole pages that hold the live bytes: no allocator can do better

Ratios are to live bytes (requested sizes): the average is that of the two averages over time, the
final one is at the last record. Of `recorded` and `packed` they are of pages with a live object, the
least that an allocator can have held; of `mayfly` they are of all pages that the heap holds.";

/// The allocator that places objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Allocator {
    Recorded,
    Mayfly,
    Packed,
}

/// Show the pages that a recorded program's live objects kept, over time
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct ReplayArguments {
    /// A trace that `mayfly trace` wrote
    #[arg(value_name = "FILE")]
    trace: PathBuf,
    /// Page sizes
    #[arg(long, value_name = "SIZE,...", default_value = "4KiB,2MiB", value_delimiter = ',', value_parser = parse_page_bytes)]
    page: Vec<u64>,
    /// Placements to compare
    #[arg(long, value_name = "NAME,...", default_value = "recorded", value_delimiter = ',', value_enum)]
    allocator: Vec<Allocator>,
    /// Points of the curves are this far apart [default: chosen, for 1000 to 2000 points]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    interval: Option<u64>,
    /// Wrong predictions for the heap (mayfly): of the objects that live in a class, so many percent are
    /// predicted to live in another
    #[arg(long, value_name = "LIVED=PREDICTED:PERCENT,...", value_delimiter = ',', value_parser = Confusion::parse)]
    confuse: Vec<Confusion>,
    /// Print one JSON object: sums, ratios and the curves (`timeline.*`)
    #[arg(long)]
    json: bool,
    /// Draw memory over time (Figs. 1 and 9)
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Draw the distribution of lifetimes (Fig. 2)
    #[arg(long, value_name = "FILE.svg")]
    lifetimes_plot: Option<PathBuf>,
}

impl ReplayArguments {
    /// Simulates, prints and draws; returns 0.
    ///
    /// # Errors
    /// The trace cannot be read, or a figure cannot be written.
    pub fn execute(mut self) -> Result<i32> {
        self.page.sort_unstable();
        self.page.dedup();
        let bar = progress::over_file(&self.trace, 1, "simulating");
        let recorded = simulate(&self.trace, &self.page, self.interval, |read| bar.set_position(read))?;
        bar.finish_and_clear();

        let mut curves = vec![recorded.curves[0].clone()];
        if self.allocator.contains(&Allocator::Packed) {
            curves.extend(self.page.iter().map(|&page_bytes| packed(&recorded.curves[0], page_bytes)));
        }
        if self.allocator.contains(&Allocator::Recorded) {
            curves.extend_from_slice(&recorded.curves[1..]);
        }
        let mut on_the_heap = None;
        if self.allocator.contains(&Allocator::Mayfly) {
            let bar = progress::over_file(&self.trace, 3, "replaying on the heap");
            let replayed =
                on_heap::replay(&self.trace, &recorded, &self.confuse, |read| bar.set_position(read))?;
            curves.push(replayed.curve.clone());
            on_the_heap = Some(replayed);
            bar.finish_and_clear();
        }
        if let Some(path) = &self.plot {
            plot::memory_over_time(path, &curves)?;
        }
        if let Some(path) = &self.lifetimes_plot {
            plot::lifetimes(path, &recorded.lifetimes)?;
        }
        if self.json {
            let mut object = as_json(&recorded, &curves);
            if let Some(heap) = on_the_heap {
                object.extend(heap.placement.as_json("mayfly.where"));
                object
                    .extend(heap.at_end.into_iter().map(|(key, value)| (format!("mayfly.end.{key}"), value)));
            }
            println!("{}", Value::Object(object));
        } else {
            print!("{}", as_text(&self.trace, &recorded, &curves));
            if let Some(heap) = on_the_heap {
                print!("{}", heap.placement.as_text("parts of mayfly's memory"));
            }
        }
        Ok(0)
    }
}

/// `None` where nothing was alive.
fn ratio(memory: Option<f64>, live: Option<f64>) -> Option<f64> {
    memory.zip(live).filter(|&(_, live)| live > 0.0).map(|(memory, live)| memory / live)
}

fn ratios(curve: &Curve, live: &Curve) -> (Option<f64>, Option<f64>) {
    let at_end = ratio(Some(curve.final_bytes as f64), Some(live.final_bytes as f64));
    (ratio(curve.average_bytes, live.average_bytes), at_end)
}

fn as_json(recorded: &Recorded, curves: &[Curve]) -> Map<String, Value> {
    let Value::Object(mut object) = totals_as_json(&recorded.totals) else {
        unreachable!("totals are an object")
    };
    let live = &curves[0];
    object.insert("live.average_bytes".into(), json!(live.average_bytes));
    for curve in &curves[1..] {
        let (average, at_end) = ratios(curve, live);
        let mut insert = |key: &str, value: Value| object.insert(format!("{}.{key}", curve.name), value);
        insert("average_ratio", json!(average));
        insert("final_ratio", json!(at_end));
        insert("average_bytes", json!(curve.average_bytes));
        insert("final_bytes", json!(curve.final_bytes));
        insert("peak_bytes", json!(curve.peak_bytes));
    }
    let lifetimes = &recorded.lifetimes;
    for (name, amount) in CLASS_NAMES.iter().zip(&lifetimes.classes) {
        object.insert(format!("lifetimes.{name}.objects"), json!(amount.objects));
        object.insert(format!("lifetimes.{name}.bytes"), json!(amount.bytes));
    }
    object.insert("lifetimes.never_freed.objects".into(), json!(lifetimes.never_freed.objects));
    for (key, share) in [("lifetimes.p50_ms", 0.5), ("lifetimes.p90_ms", 0.9), ("lifetimes.p99_ms", 0.99)] {
        object.insert(key.into(), json!(lifetimes.percentile_ns(share).map(|ns| ns / 1e6)));
    }
    object.insert("timeline.interval_ms".into(), json!(recorded.interval_ns as f64 / 1e6));
    for curve in curves {
        let key = &curve.name;
        let times: Vec<f64> = curve.points.iter().map(|&(time_ns, _)| time_ns as f64 / 1e6).collect();
        let values: Vec<u64> = curve.points.iter().map(|&(_, bytes)| bytes.round() as u64).collect();
        object.insert(format!("timeline.{key}.time_ms"), json!(times));
        object.insert(format!("timeline.{key}.bytes"), json!(values));
    }
    object
}

fn as_text(trace: &Path, recorded: &Recorded, curves: &[Curve]) -> String {
    let live = &curves[0];
    let mut text = described(&recorded.totals, trace) + "\n\n";
    // Two units: what lies on a page and what the heap holds.
    let (held, with_live): (Vec<_>, Vec<_>) =
        curves.iter().partition(|curve| curve.name.starts_with("mayfly"));
    for (unit, curves) in [("pages with live objects", with_live), ("pages that the heap holds", held)] {
        if curves.is_empty() {
            continue;
        }
        text += &format!(
            "{unit:26}{:>12}{:>8}{:>12}{:>8}{:>12}\n",
            "average", "ratio", "at the end", "ratio", "peak"
        );
        for curve in curves {
            let (average, at_end) = ratios(curve, live);
            let show_ratio = |ratio: Option<f64>| ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
            text += &format!(
                "{:26}{:>12}{:>8}{:>12}{:>8}{:>12}\n",
                curve.name.replace('.', " "),
                curve.average_bytes.map_or("-".into(), bytes),
                show_ratio(average),
                bytes(curve.final_bytes as f64),
                show_ratio(at_end),
                bytes(curve.peak_bytes as f64),
            );
        }
    }
    let lifetimes = &recorded.lifetimes;
    text += &format!("\n{:9}{:>16}{:>12}{:>12}\n", "lifetime", "objects", "of them", "bytes");
    let total = lifetimes.total.objects.max(1) as f64;
    for (name, amount) in CLASS_NAMES.iter().zip(&lifetimes.classes) {
        let bound = if *name == "inf" { "longer".into() } else { format!("< {name}") };
        let percent = 100.0 * amount.objects as f64 / total;
        let (objects, size) = (count(amount.objects), bytes(amount.bytes as f64));
        text += &format!("{bound:9}{objects:>16}{percent:>10.3} %{size:>12}\n");
    }
    if let Some(median) = lifetimes.percentile_ns(0.5) {
        text += &format!("half of all objects lived less than {}\n", duration(median));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_need_live_memory() {
        assert_eq!(ratio(Some(3.0), Some(2.0)), Some(1.5));
        assert_eq!(ratio(Some(3.0), Some(0.0)), None);
        assert_eq!(ratio(None, Some(1.0)), None);
    }
}
