//! Figures computed from a worker's samples, as charts: memory by layer, instances, requests and latency.

use std::collections::BTreeSet;

use crate::chart::{Chart, Series, Span};
use crate::data::{FunctionSample, Layers, Sample};
use crate::text::Unit;

/// Memory of all instances of a sample together, by layer, in bytes.
pub struct Memory {
    /// Anonymous memory that no other process maps.
    pub private: f64,
    /// Programs and libraries, which the page cache shares.
    pub files: f64,
    /// Pages that the page stores hold, or the VM's kernel has merged, each once.
    pub store: f64,
    /// All of that.
    pub used: f64,
    /// The sum if each instance had its own copy of the pages that it maps from the store.
    pub without_merging: f64,
}

impl Memory {
    /// Adds up a sample.
    pub fn of(sample: &Sample) -> Memory {
        let sum =
            |field: fn(&FunctionSample) -> u64| sample.functions.values().map(field).sum::<u64>() as f64;
        let (pss, private, shared) =
            (sum(|f| f.pss_bytes), sum(|f| f.private_bytes), sum(|f| f.shared_bytes));
        let files = (pss - private - shared).max(0.0);
        let vm = sample.vm.clone().unwrap_or_default();
        let store = (sample.store.bytes + vm.merged_bytes) as f64;
        let used = private + files + store;
        // With nothing merged, processes of a sandbox may still share pages of a memory file.
        let mapped = match store > 0.0 {
            true => sum(|f| f.mapped_shared_bytes) + vm.mapped_merged_bytes as f64,
            false => 0.0,
        };
        let is_shared = shared > 0.0 || vm.merged_bytes > 0;
        let without_merging = (private + files + mapped).max(if is_shared { 0.0 } else { used });
        Memory { private, files, store, used, without_merging }
    }

    /// Bytes that merging saves; 0 where the store holds more than it saves.
    pub fn saved(&self) -> f64 {
        (self.without_merging - self.used).max(0.0)
    }
}

/// Memory over time, by layer.
pub fn memory(samples: &[Sample], layers: &Layers, span: Span) -> Chart {
    let series = |name: &str, colour, value: fn(&Sample) -> f64| Series {
        name: name.into(),
        colour,
        values: samples.iter().map(value).collect(),
    };
    let mut lines = Vec::new();
    if layers.merge {
        lines.push(series("without merging", "without", |sample| Memory::of(sample).without_merging));
    }
    if samples.iter().any(|sample| sample.vm.is_some()) {
        lines.push(series("plugged into the VM", "plugged", |sample| {
            sample.vm.as_ref().map_or(0.0, |vm| vm.plugged_bytes as f64)
        }));
        lines.push(series("taken from the host by the VM", "resident", |sample| {
            sample.vm.as_ref().map_or(0.0, |vm| vm.resident_bytes as f64)
        }));
    }
    let mut areas = vec![series("own", "private", |sample| Memory::of(sample).private)];
    areas.push(series("programs and libraries", "files", |sample| Memory::of(sample).files));
    if layers.merge {
        areas.push(series("merged pages, once", "store", |sample| Memory::of(sample).store));
    }
    Chart {
        title: "Memory by layer".into(),
        note: "Of all instances together, shared pages counted once.".into(),
        unit: Unit::Bytes,
        span,
        at_ms: samples.iter().map(|sample| sample.at_ms).collect(),
        areas,
        lines,
        logarithmic: false,
    }
}

/// Instances over time, by phase.
pub fn instances_chart(samples: &[Sample], span: Span) -> Chart {
    let series = |name: &str, colour, value: fn(&FunctionSample) -> u64| Series {
        name: name.into(),
        colour,
        values: samples
            .iter()
            .map(|sample| sample.functions.values().map(value).sum::<u64>() as f64)
            .collect(),
    };
    Chart {
        title: "Instances".into(),
        note: "By phase.".into(),
        unit: Unit::Count,
        span,
        at_ms: samples.iter().map(|sample| sample.at_ms).collect(),
        areas: vec![
            series("busy", "busy", |f| f.busy),
            series("idle", "idle", |f| f.idle),
            series("starting", "starting", |f| f.starting),
            series("stopping", "stopping", |f| f.stopping),
        ],
        lines: vec![],
        logarithmic: false,
    }
}

/// Requests over time: answered in each second, and waiting.
pub fn requests(samples: &[Sample], span: Span) -> Chart {
    let per_second = |pair: &[Sample]| {
        let seconds = (pair[1].at_ms - pair[0].at_ms).max(1) as f64 / 1e3;
        (pair[1].latency.requests as f64 / seconds * 10.0).round() / 10.0
    };
    let mut answered: Vec<f64> =
        samples.first().map(|first| first.latency.requests as f64).into_iter().collect();
    answered.extend(samples.windows(2).map(per_second));
    let waiting = samples.iter().map(|sample| sample.queued as f64).collect();
    Chart {
        title: "Requests".into(),
        note: "Those that were answered, and those that wait for an instance.".into(),
        unit: Unit::Count,
        span,
        at_ms: samples.iter().map(|sample| sample.at_ms).collect(),
        areas: vec![Series { name: "answered per second".into(), colour: "files", values: answered }],
        lines: vec![Series { name: "waiting".into(), colour: "waiting", values: waiting }],
        logarithmic: false,
    }
}

/// Memory of an instance of each function over time.
pub fn memory_of_each(samples: &[Sample], span: Span) -> Chart {
    const COLOURS: [&str; 8] = ["private", "busy", "store", "p99", "plugged", "resident", "idle", "stopping"];
    let names: BTreeSet<&String> = samples.iter().flat_map(|sample| sample.functions.keys()).collect();
    let each = |sample: &Sample, name: &str| {
        let function = sample.functions.get(name)?;
        let there = function.starting + function.idle + function.busy + function.stopping;
        (there > 0).then(|| function.pss_bytes as f64 / there as f64)
    };
    let line = |(place, name): (usize, &&String)| Series {
        name: (*name).clone(),
        colour: COLOURS[place % COLOURS.len()],
        values: samples.iter().map(|sample| each(sample, name).unwrap_or(f64::NAN)).collect(),
    };
    Chart {
        title: "Memory of an instance".into(),
        note: "By function: the proportional set size, in which shared pages are divided among those that map them.".into(),
        unit: Unit::Bytes,
        span,
        at_ms: samples.iter().map(|sample| sample.at_ms).collect(),
        areas: vec![],
        lines: names.iter().enumerate().map(line).collect(),
        logarithmic: false,
    }
}

/// Latency percentiles over time.
pub fn latency(samples: &[Sample], span: Span) -> Chart {
    // A second without answers repeats the last value; before the first answer there is none.
    let series = |name: &str, colour, value: fn(&Sample) -> f64| {
        let mut last = f64::NAN;
        let values = samples.iter().map(|sample| {
            if sample.latency.requests > 0 {
                last = value(sample);
            }
            last
        });
        Series { name: name.into(), colour, values: values.collect() }
    };
    Chart {
        title: "Latency".into(),
        note: "From a request's arrival to its answer, cold starts and waiting included, of each second's answers; ten times as much is one step up.".into(),
        unit: Unit::Milliseconds,
        span,
        at_ms: samples.iter().map(|sample| sample.at_ms).collect(),
        areas: vec![],
        lines: vec![series("P99", "p99", |sample| sample.latency.p99_ms), series("P50", "p50", |sample| sample.latency.p50_ms)],
        logarithmic: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Vm;

    const MIB: u64 = 1 << 20;

    fn sample(instances: u64, merged: bool) -> Sample {
        // Each has 10 of its own, 4 of files shared by two, and 30 that may be merged.
        let function = FunctionSample {
            idle: instances,
            pss_bytes: instances * MIB * if merged { 10 + 2 + 30 / instances } else { 42 },
            private_bytes: instances * MIB * if merged { 10 } else { 40 },
            shared_bytes: if merged { 30 * MIB } else { 0 },
            mapped_shared_bytes: if merged { instances * 30 * MIB } else { 0 },
            ..FunctionSample::default()
        };
        let mut sample = Sample { functions: [("f".into(), function)].into(), ..Sample::default() };
        sample.store.bytes = if merged { 30 * MIB } else { 0 };
        sample
    }

    #[test]
    fn merging_saves_all_copies_but_one() {
        let (plain, merged) = (Memory::of(&sample(3, false)), Memory::of(&sample(3, true)));
        assert_eq!((plain.used, plain.saved()), ((3 * 42 * MIB) as f64, 0.0));
        assert_eq!(merged.used, ((3 * 12 + 30) * MIB) as f64);
        assert_eq!((merged.without_merging, merged.saved()), (plain.used, (60 * MIB) as f64));
    }

    #[test]
    fn a_store_with_unmapped_pages_saves_nothing() {
        let mut sample = sample(3, false);
        sample.store.bytes = 30 * MIB;
        assert_eq!(Memory::of(&sample).saved(), 0.0);
    }

    #[test]
    fn memory_files_without_a_store_are_no_merging() {
        let mut sample = sample(3, true);
        sample.store.bytes = 0;
        assert_eq!(Memory::of(&sample).saved(), 0.0);
    }

    #[test]
    fn pages_merged_by_a_vms_kernel_count_once() {
        let mut sample = sample(3, false);
        let plain = Memory::of(&sample).used;
        sample.vm = Some(Vm { merged_bytes: 30 * MIB, mapped_merged_bytes: 90 * MIB, ..Vm::default() });
        let memory = Memory::of(&sample);
        assert_eq!((memory.used - plain, memory.saved()), ((30 * MIB) as f64, (60 * MIB) as f64));
    }

    #[test]
    fn memory_of_each_is_divided_by_the_number_of_instances() {
        let span = Span { from_ms: 0, to_ms: 1000, live: false };
        let chart = memory_of_each(&[Sample::default(), sample(1, false), sample(2, false)], span);
        let values = &chart.lines[0].values;
        assert!(values[0].is_nan() && values[1..] == [(42 * MIB) as f64; 2], "{values:?}");
    }

    #[test]
    fn requests_are_shown_per_second() {
        let mut samples = vec![Sample::default(); 3];
        for (number, sample) in samples.iter_mut().enumerate() {
            sample.at_ms = number as u64 * 2000;
            sample.latency.requests = 10;
        }
        let chart = requests(&samples, Span { from_ms: 0, to_ms: 4000, live: false });
        assert_eq!(chart.areas[0].values, [10.0, 5.0, 5.0]);
    }
}
