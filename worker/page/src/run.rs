//! A run of a worker under load, kept in a file, and its figures.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::data::{Events, FunctionSample, History, Sample};
use crate::events::returned_memory;
use crate::figures::Memory;
use crate::text::Unit;

const GIB: f64 = (1_u64 << 30) as f64;

/// A worker's samples and events, and the results of its load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its name in a report.
    pub name: String,
    /// `/history`.
    pub history: History,
    /// `/events`.
    pub events: Events,
    /// What `mayfly load --json` printed; nothing if the load came from elsewhere.
    #[serde(default)]
    pub load: BTreeMap<String, f64>,
}

/// One number of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    /// For programs, with the unit in the name.
    pub key: &'static str,
    /// For people.
    pub label: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// None where the run does not have it.
    pub value: Option<f64>,
}

impl Run {
    /// The same run, its time beginning a second before its first instance or request.
    pub fn trimmed(&self) -> Run {
        let moves =
            |sample: &Sample| sample.latency.requests > 0 || sample.functions.values().any(|f| all(f) > 0);
        let Some(first) = self.history.samples.iter().position(moves) else { return self.clone() };
        let first = first.saturating_sub((1000 / self.history.interval_ms.max(1)) as usize);
        let begin = self.history.samples[first].at_ms;
        let mut run = self.clone();
        run.history.samples.drain(..first);
        for sample in &mut run.history.samples {
            sample.at_ms -= begin;
        }
        run.events.events.retain(|event| event.at_ms >= begin);
        for event in &mut run.events.events {
            event.at_ms -= begin;
        }
        run
    }

    /// When its last sample was taken.
    pub fn end_ms(&self) -> u64 {
        self.history.samples.last().map_or(0, |sample| sample.at_ms)
    }

    /// Its numbers, in the order of a table.
    pub fn facts(&self) -> Vec<Fact> {
        let load = |key: &str| self.load.get(key).copied();
        let samples = &self.history.samples;
        let living = |sample: &Sample| sample.functions.values().map(|f| f.idle + f.busy).sum::<u64>() as f64;
        let most = |value: &dyn Fn(&Sample) -> f64| samples.iter().map(value).reduce(f64::max);
        let peak =
            samples.iter().max_by(|one, other| Memory::of(one).used.total_cmp(&Memory::of(other).used));
        let each = |sample: Option<&Sample>| {
            let sample = sample?;
            (living(sample) > 0.0).then(|| Memory::of(sample).used / living(sample))
        };
        // The last sample with instances, all of them idle.
        let resting =
            |sample: &&Sample| living(sample) > 0.0 && sample.functions.values().all(|f| all(f) == f.idle);
        let rest = samples.iter().rfind(resting);
        let used: f64 = samples.iter().map(|sample| Memory::of(sample).used).sum();
        let alive: f64 = samples.iter().map(living).sum();
        let back = returned_memory(&self.events.events);
        let unplugged: Vec<_> = self.events.events.iter().filter(|event| event.kind == "unplug").collect();
        let unplug_ms: f64 = unplugged.iter().filter_map(|event| event.ms).sum();
        let unplug_bytes = unplugged.iter().filter_map(|event| event.bytes).sum::<u64>() as f64;
        let mut starts: Vec<f64> = self
            .events
            .events
            .iter()
            .filter(|event| matches!(event.kind.as_str(), "ready" | "restored"))
            .filter_map(|event| event.ms)
            .collect();
        starts.sort_by(f64::total_cmp);
        let restores = self.events.events.iter().filter(|event| event.kind == "restored").count();
        let fact = |key, label, unit, value| Fact { key, label, unit, value };
        use Unit::{Bytes, Count, Milliseconds};
        vec![
            fact("requests.sent", "requests", Count, load("all.sent").or_else(|| Some(requests(samples)))),
            fact("requests.not_answered", "of them failed, throttled or refused", Count, self.not_answered()),
            fact("latency.p50_ms", "latency P50", Milliseconds, load("all.latency.p50_ms")),
            fact("latency.p99_ms", "latency P99", Milliseconds, load("all.latency.p99_ms")),
            fact("latency.p99_9_ms", "latency P99.9", Milliseconds, load("all.latency.p99_9_ms")),
            fact("cold_start.p50_ms", "cold start P50", Milliseconds, starts.get(starts.len() / 2).copied()),
            fact("cold_start.restored", "of the starts restored", Count, Some(restores as f64)),
            fact("instances.most", "instances at once, at most", Count, most(&living)),
            fact(
                "memory.peak_bytes",
                "memory of all instances, at most",
                Bytes,
                most(&|s| Memory::of(s).used),
            ),
            fact("memory.instance_at_peak_bytes", "memory of an instance then", Bytes, each(peak)),
            fact("memory.instance_at_rest_bytes", "memory of an instance at rest", Bytes, each(rest)),
            fact(
                "density.mean_per_gib",
                "instances per GiB, mean",
                Count,
                (used > 0.0).then(|| alive / (used / GIB)),
            ),
            fact(
                "density.rest_per_gib",
                "instances per GiB at rest",
                Count,
                each(rest).map(|bytes| GIB / bytes),
            ),
            fact("merge.saved_bytes", "saved by merging, at most", Bytes, most(&|s| Memory::of(s).saved())),
            fact("returned.half_ms", "half of the memory was back after", Milliseconds, self.half_back_ms()),
            fact("returned.bytes", "returned by idle instances and unplugging", Bytes, Some(back.bytes)),
            fact(
                "returned.unplug_bytes_per_s",
                "unplugged per second of unplugging",
                Bytes,
                (unplug_ms > 0.0).then(|| unplug_bytes / unplug_ms * 1e3),
            ),
        ]
    }

    fn not_answered(&self) -> Option<f64> {
        ["all.failed", "all.throttled", "all.refused"].iter().map(|key| self.load.get(*key)).sum()
    }

    /// From the last moment with a running request until at most half of the memory of that moment was used.
    fn half_back_ms(&self) -> Option<f64> {
        let samples = &self.history.samples;
        let worked =
            |sample: &Sample| sample.latency.requests > 0 || sample.functions.values().any(|f| f.busy > 0);
        let last = samples.iter().rposition(worked)?;
        let held = Memory::of(&samples[last]).used;
        let back = samples[last..].iter().find(|sample| Memory::of(sample).used <= held / 2.0)?;
        Some((back.at_ms - samples[last].at_ms) as f64)
    }
}

fn all(function: &FunctionSample) -> u64 {
    function.starting + function.idle + function.busy + function.stopping
}

fn requests(samples: &[Sample]) -> f64 {
    samples.iter().map(|sample| sample.latency.requests).sum::<u64>() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Event;

    const MIB: u64 = 1 << 20;

    fn sample(at_s: u64, busy: u64, idle: u64, mib: u64) -> Sample {
        let function = FunctionSample {
            busy,
            idle,
            pss_bytes: mib * MIB,
            private_bytes: mib * MIB,
            ..FunctionSample::default()
        };
        let mut sample =
            Sample { at_ms: at_s * 1000, functions: [("f".into(), function)].into(), ..Sample::default() };
        sample.latency.requests = busy;
        sample
    }

    fn run() -> Run {
        let samples = vec![
            sample(100, 0, 0, 0),
            sample(101, 0, 0, 0),
            sample(102, 2, 0, 200),
            sample(103, 3, 1, 400),
            sample(104, 0, 4, 300),
            sample(105, 0, 4, 180),
            sample(106, 0, 2, 64),
        ];
        let unplug = Event {
            kind: "unplug".into(),
            at_ms: 105_000,
            ms: Some(500.0),
            bytes: Some(128 * MIB),
            ..Event::default()
        };
        let ready = Event { kind: "ready".into(), at_ms: 101_500, ms: Some(40.0), ..Event::default() };
        Run {
            name: "r".into(),
            history: History { interval_ms: 1000, samples, ..History::default() },
            events: Events { events: vec![ready, unplug], ..Events::default() },
            load: [("all.sent", 5.0), ("all.failed", 1.0), ("all.throttled", 0.0), ("all.refused", 0.0)]
                .map(|(key, value)| (key.to_string(), value))
                .into(),
        }
    }

    fn value(run: &Run, key: &str) -> Option<f64> {
        run.facts().into_iter().find(|fact| fact.key == key).expect("there is such a fact").value
    }

    #[test]
    fn facts_of_a_run() {
        let run = run().trimmed();
        assert_eq!(value(&run, "requests.sent"), Some(5.0));
        assert_eq!(value(&run, "requests.not_answered"), Some(1.0));
        assert_eq!(value(&run, "latency.p99_ms"), None);
        assert_eq!(value(&run, "cold_start.p50_ms"), Some(40.0));
        assert_eq!(value(&run, "instances.most"), Some(4.0));
        assert_eq!(value(&run, "memory.peak_bytes"), Some((400 * MIB) as f64));
        assert_eq!(value(&run, "memory.instance_at_peak_bytes"), Some((100 * MIB) as f64));
        assert_eq!(value(&run, "memory.instance_at_rest_bytes"), Some((32 * MIB) as f64));
        assert_eq!(value(&run, "density.rest_per_gib"), Some(32.0));
        assert_eq!(value(&run, "density.mean_per_gib"), Some(16.0 / (1144.0 / 1024.0)));
        assert_eq!(value(&run, "returned.half_ms"), Some(2000.0), "400 MiB at 103 s, 180 at 105 s");
        assert_eq!(value(&run, "returned.unplug_bytes_per_s"), Some((256 * MIB) as f64));
    }

    #[test]
    fn a_trimmed_run_begins_a_second_before_its_first_activity() {
        let run = run().trimmed();
        let times: Vec<u64> = run.history.samples.iter().map(|sample| sample.at_ms).collect();
        assert_eq!(times, [0, 1000, 2000, 3000, 4000, 5000]);
        assert_eq!(run.events.events[1].at_ms, 4000);
        assert_eq!(Run::default().trimmed(), Run::default());
    }

    #[test]
    fn a_run_is_equal_after_writing_and_reading() {
        let text = serde_json::to_string(&run()).unwrap();
        assert_eq!(serde_json::from_str::<Run>(&text).unwrap(), run());
    }
}
