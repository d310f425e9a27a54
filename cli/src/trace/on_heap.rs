//! Replays a trace through Mayfly's heap with perfect lifetimes (LLAMA §9.1, Fig. 9): this process reads the
//! trace and controls a second one, the driver, which is on the heap and only allocates and frees.
//!
//! The two are separate so that the reader's own memory never lies in the measured heap. The protocol is
//! `Step`: the driver stores objects in numbered slots, and this process assigns the numbers.
//!
//! The heap holds its live huge pages, and the objects so large that each has a mapping of its own. No
//! allocator can hold less than the live bytes, in whole huge pages: a sample below that fails the replay.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use rustc_hash::FxBuildHasher;
use serde_json::{Map, Value};

use crate::trace::confusion::{self, Confusion};
use crate::trace::file::Reader;
use crate::trace::live_objects::{Change, walk};
use crate::trace::oracle::Table;
use crate::trace::placement::{Placement, Summary};
use crate::trace::simulation::{Curve, Recorded};
use crate::{libraries, statistics};

/// Verb by which this program becomes the driver.
pub const DRIVER_VERB: &str = "replay-on-the-heap";
/// Length of a `Step` on the pipe.
pub const STEP_BYTES: usize = 24;
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// One command to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Allocate `size_bytes` of `class` and keep the object in `slot`.
    Allocate {
        /// The object's place in the driver's table.
        slot: u32,
        /// Requested size.
        size_bytes: u64,
        /// Lifetime class, 0 to 6.
        class: u8,
    },
    /// Free the object in `slot`.
    Free {
        /// The object's place in the driver's table.
        slot: u32,
    },
    /// Write the heap's statistics as one line.
    Sample,
}

impl Step {
    /// The step as bytes for the pipe; the heap's clock shows `time_ns` during it.
    pub fn encode(self, time_ns: u64) -> [u8; STEP_BYTES] {
        let (kind, class, slot, size_bytes) = match self {
            Step::Allocate { slot, size_bytes, class } => (1, class, slot, size_bytes),
            Step::Free { slot } => (2, 0, slot, 0),
            Step::Sample => (3, 0, 0, 0),
        };
        let mut bytes = [0; STEP_BYTES];
        bytes[..8].copy_from_slice(&time_ns.to_le_bytes());
        bytes[8..16].copy_from_slice(&size_bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&slot.to_le_bytes());
        bytes[20] = kind;
        bytes[21] = class;
        bytes
    }

    /// The step and its time; `None` for bytes that are no step.
    pub fn decode(bytes: &[u8; STEP_BYTES]) -> Option<(Step, u64)> {
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let slot = u32::from_le_bytes(bytes[16..20].try_into().expect("four bytes"));
        let step = match bytes[20] {
            1 => Step::Allocate { slot, size_bytes: u64_at(8), class: bytes[21] },
            2 => Step::Free { slot },
            3 => Step::Sample,
            _ => return None,
        };
        Some((step, u64_at(0)))
    }
}

/// Assigns every live object a small number; numbers are reused.
#[derive(Default)]
struct Slots {
    of_address: HashMap<u64, u32, FxBuildHasher>,
    free: Vec<u32>,
    next: u32,
}

impl Slots {
    fn assign(&mut self, address: u64) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        self.of_address.insert(address, slot);
        slot
    }

    fn release(&mut self, address: u64) -> Option<u32> {
        let slot = self.of_address.remove(&address)?;
        self.free.push(slot);
        Some(slot)
    }
}

/// The result of a replay.
pub struct Replayed {
    /// The bytes that the heap holds.
    pub curve: Curve,
    /// The parts of these bytes.
    pub placement: Summary,
    /// The heap's statistics at the end.
    pub at_end: Map<String, Value>,
}

/// Replays the trace at `path`, whose recorded simulation is `recorded`. Each object has its true lifetime
/// but for `confusions`. `progress` receives the bytes read, for three passes.
///
/// # Errors
/// There is no heap, it lacks functions that the replay needs, it runs out of memory, or its statistics show
/// less than the live bytes.
pub fn replay(
    path: &Path,
    recorded: &Recorded,
    confusions: &[Confusion],
    mut progress: impl FnMut(u64),
) -> Result<Replayed> {
    let length = std::fs::metadata(path)?.len();
    let classes = Table::from_trace(path, &mut progress)?;
    let slots = u32::try_from(recorded.totals.peak_live_objects + 1)
        .map_err(|_| anyhow!("{}: more than 4 billion objects alive at once", path.display()))?;
    let mut driver = Command::new(std::env::current_exe()?)
        .args([DRIVER_VERB, &slots.to_string()])
        .env("LD_PRELOAD", libraries::heap()?)
        // The driver's own few objects live as long as it does.
        .env("MAYFLY_HEAP_LIFETIMES", "fixed:inf")
        .env_remove("MAYFLY_HEAP_STATS")
        .env_remove("MAYFLY_HEAP_TRACE")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the replay on the heap")?;
    let samples = driver.stdout.take().context("the driver has no output")?;
    let samples = std::thread::spawn(move || read_samples(BufReader::new(samples)));
    let mut steps =
        BufWriter::with_capacity(1 << 18, driver.stdin.take().context("the driver has no input")?);

    let sent = send(path, recorded, (&classes, confusions), &mut steps, |bytes| progress(2 * length + bytes));
    drop(steps);
    let status = driver.wait()?;
    let samples = samples.join().map_err(|_| anyhow!("the reader of samples failed"))?;
    if !status.success() {
        // The driver has printed the reason.
        bail!("the replay through Mayfly's heap failed ({status})");
    }
    let moments = sent?;
    let (samples, at_end) = samples?;
    let curve = curve(&moments, &samples)?;
    Ok(Replayed { curve, placement: placement(&moments, samples), at_end })
}

/// The time of a sample, and the live bytes then by the trace.
#[derive(Clone, Copy, Debug)]
struct Moment {
    time_ns: u64,
    live_bytes: u64,
    /// Whether it is a point of the curve; the others are for the peak.
    is_point: bool,
}

/// Sends all steps and requests samples: at the middle of each interval of the recorded curves, after each
/// object of a huge page or more, which may live only between two of those, and at the end. Returns the
/// moments of the samples.
fn send(
    path: &Path,
    recorded: &Recorded,
    (classes, confusions): (&Table, &[Confusion]),
    steps: &mut impl Write,
    progress: impl FnMut(u64),
) -> Result<Vec<Moment>> {
    let mut slots = Slots::default();
    let mut sample_times = recorded.curves[0].points.iter().map(|&(time_ns, _)| time_ns).peekable();
    let mut moments = Vec::new();
    let mut live_bytes = 0_u64;
    walk(Reader::open(path)?, progress, |change: &Change, _| {
        while let Some(time_ns) = sample_times.next_if(|&time_ns| time_ns <= change.time_ns) {
            steps.write_all(&Step::Sample.encode(time_ns))?;
            moments.push(Moment { time_ns, live_bytes, is_point: true });
        }
        if let Some(object) = change.died
            && let Some(slot) = slots.release(object.address)
        {
            steps.write_all(&Step::Free { slot }.encode(change.time_ns))?;
            live_bytes -= object.size_bytes;
        }
        if let Some(object) = change.born {
            let slot = slots.assign(object.address);
            let lived = classes.class(object.thread, object.sequence);
            let class = confusion::predicted(confusions, object.thread, object.sequence, lived);
            let step = Step::Allocate { slot, size_bytes: object.size_bytes, class };
            steps.write_all(&step.encode(change.time_ns))?;
            live_bytes += object.size_bytes;
            if object.size_bytes >= HUGE_PAGE_BYTES {
                steps.write_all(&Step::Sample.encode(change.time_ns))?;
                moments.push(Moment { time_ns: change.time_ns, live_bytes, is_point: false });
            }
        }
        anyhow::Ok(())
    })?;
    let end_ns = recorded.totals.duration_ns;
    steps.write_all(&Step::Sample.encode(end_ns))?;
    steps.flush()?;
    moments.push(Moment { time_ns: end_ns, live_bytes, is_point: false });
    Ok(moments)
}

/// The values of one line of statistics.
#[derive(Clone, Debug, Default)]
struct Sample {
    live_huge_pages: u64,
    peak_huge_pages: u64,
    /// Objects with a mapping of their own.
    direct_bytes: u64,
    placement: Placement,
}

impl Sample {
    /// The bytes that the heap holds, in whole huge pages.
    fn held_bytes(&self) -> u64 {
        let pages = self.live_huge_pages.saturating_mul(HUGE_PAGE_BYTES);
        pages.saturating_add(self.direct_bytes.next_multiple_of(HUGE_PAGE_BYTES))
    }
}

/// The sample of each line of statistics, and the last line whole.
fn read_samples(lines: impl BufRead) -> Result<(Vec<Sample>, Map<String, Value>)> {
    let mut samples = Vec::new();
    let mut last = Map::new();
    for line in lines.lines() {
        last = statistics::parse(&line?, Path::new("the replay on the heap"))?;
        samples.push(Sample {
            live_huge_pages: statistics::whole_number(&last, "heap.huge_pages.live")?,
            peak_huge_pages: statistics::whole_number(&last, "heap.huge_pages.peak")?,
            direct_bytes: statistics::whole_number(&last, "heap.direct.bytes")?,
            placement: Placement::new(&last)?,
        });
    }
    Ok((samples, last))
}

fn curve(moments: &[Moment], samples: &[Sample]) -> Result<Curve> {
    if moments.len() != samples.len() {
        bail!("the replay on the heap answered {} of {} samples", samples.len(), moments.len());
    }
    for (moment, sample) in moments.iter().zip(samples) {
        let (held, live) = (sample.held_bytes(), moment.live_bytes);
        if held < live.next_multiple_of(HUGE_PAGE_BYTES) {
            bail!(
                "the heap's statistics are wrong: {held} bytes held at {} ns, where {live} are live",
                moment.time_ns
            );
        }
    }
    let points: Vec<_> = (moments.iter().zip(samples))
        .filter(|(moment, _)| moment.is_point)
        .map(|(moment, sample)| (moment.time_ns, sample.held_bytes() as f64))
        .collect();
    let at_end = samples.last().cloned().unwrap_or_default();
    let peak_of_samples = samples.iter().map(|sample| sample.held_bytes()).max().unwrap_or(0);
    let sum: f64 = points.iter().map(|&(_, bytes)| bytes).sum();
    Ok(Curve {
        name: "mayfly.2MiB".into(),
        average_bytes: (!points.is_empty()).then(|| sum / points.len() as f64),
        points,
        final_bytes: at_end.held_bytes(),
        peak_bytes: peak_of_samples.max(at_end.peak_huge_pages.saturating_mul(HUGE_PAGE_BYTES)),
    })
}

fn placement(moments: &[Moment], samples: Vec<Sample>) -> Summary {
    let whole = moments.iter().zip(samples).map(|(moment, sample)| {
        let held_bytes = sample.held_bytes();
        (moment.is_point, sample.placement.with_objects(moment.live_bytes, held_bytes))
    });
    let (points, others): (Vec<_>, Vec<_>) = whole.partition(|(is_point, _)| *is_point);
    let at_end = others.last().map_or_else(Placement::default, |(_, placement)| placement.clone());
    Summary::of(&points.into_iter().map(|(_, placement)| placement).collect::<Vec<_>>(), &at_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_survives_the_pipe() {
        for step in [
            Step::Allocate { slot: 7, size_bytes: 1 << 40, class: 6 },
            Step::Free { slot: u32::MAX },
            Step::Sample,
        ] {
            assert_eq!(Step::decode(&step.encode(99)), Some((step, 99)));
        }
        assert_eq!(Step::decode(&[0; STEP_BYTES]), None);
    }

    #[test]
    fn slots_are_reused() {
        let mut slots = Slots::default();
        assert_eq!([slots.assign(10), slots.assign(20), slots.assign(30)], [0, 1, 2]);
        assert_eq!(slots.release(20), Some(1));
        assert_eq!(slots.release(20), None);
        assert_eq!([slots.assign(40), slots.assign(50)], [1, 3]);
    }

    #[test]
    fn a_statistic_that_is_missing_is_named() {
        let error = read_samples(&b"{\"heap.huge_pages.live\": 3}\n"[..]).unwrap_err();
        assert_eq!(error.to_string(), "the heap's statistics lack the key heap.huge_pages.peak");
    }

    #[test]
    fn refuses_a_heap_that_holds_less_than_the_live_bytes() {
        let moment = |live_bytes| Moment { time_ns: 5, live_bytes, is_point: true };
        let sample = Sample { live_huge_pages: 1, direct_bytes: 17 << 20, ..Sample::default() };
        // 17 MiB of mappings take nine huge pages.
        assert_eq!(curve(&[moment(20 << 20)], std::slice::from_ref(&sample)).unwrap().final_bytes, 20 << 20);
        let error = curve(&[moment((20 << 20) + 1)], &[sample]).unwrap_err();
        let wanted = "the heap's statistics are wrong: 20971520 bytes held at 5 ns, where 20971521 are live";
        assert_eq!(error.to_string(), wanted);
    }
}
