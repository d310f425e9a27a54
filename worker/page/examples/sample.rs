//! Writes the page of an invented worker, to review its design:
//! `cargo run -p worker-page --example sample > page.html`.

use std::collections::BTreeMap;

use worker_page::data::{Event, FunctionSample, Instance, Layers, Sample, Vm};
use worker_page::page::page;
use worker_page::view::{Counts, Function, Percentiles, Requests, View};

const MIB: f64 = (1 << 20) as f64;

fn main() {
    let layers = Layers {
        sandbox: "vm".into(),
        heap: true,
        merge: true,
        partitions: "hotmem".into(),
        ..Layers::default()
    };
    let names = ["image", "text", "page"];
    let mut samples = Vec::new();
    let mut events = Vec::new();
    for second in 0..300_u64 {
        let load =
            ((second as f64 / 40.0).sin() + 1.0) * 4.0 + if (120..180).contains(&second) { 9.0 } else { 0.0 };
        let mut sample = Sample { at_ms: second * 1000, ..Sample::default() };
        let mut functions = BTreeMap::new();
        for (number, name) in names.iter().enumerate() {
            let instances = (load / (number + 1) as f64).ceil();
            let one = FunctionSample {
                busy: (instances * 0.4) as u64,
                idle: instances as u64 - (instances * 0.4) as u64,
                starting: u64::from(second % 37 < 3),
                stopping: u64::from(second % 53 < 2),
                pss_bytes: (instances * 52.0 * MIB) as u64,
                private_bytes: (instances * 40.0 * MIB) as u64,
                shared_bytes: (instances * 8.0 * MIB) as u64,
                mapped_shared_bytes: (instances * 80.0 * MIB) as u64,
                ..FunctionSample::default()
            };
            functions.insert((*name).to_string(), one);
        }
        sample.functions = functions;
        sample.store.bytes = (130.0 * MIB) as u64;
        sample.latency.requests = 20;
        sample.latency.p50_ms = 4.0 + load / 3.0;
        sample.latency.p99_ms = if second % 41 < 3 { 420.0 } else { 30.0 + load * 3.0 };
        sample.queued = u64::from(second % 41 < 3) * 4;
        sample.vm = Some(Vm {
            plugged_bytes: ((load * 2.0).ceil() * 128.0 * MIB) as u64,
            resident_bytes: (load * 140.0 * MIB) as u64,
            ..Vm::default()
        });
        let base = Event {
            at_ms: second * 1000,
            function: Some("page".into()),
            instance: Some(second),
            ms: Some(39.0),
            ..Event::default()
        };
        for (every, kind) in [
            (7, "ready"),
            (11, "merge"),
            (13, "rest"),
            (17, "plug"),
            (19, "unplug"),
            (23, "gone"),
            (97, "refuse"),
        ] {
            if second % every == 0 {
                let mut event = Event {
                    kind: kind.into(),
                    bytes: Some(128 << 20),
                    merged_bytes: Some(90 << 20),
                    trimmed_bytes: Some(17 << 20),
                    ..base.clone()
                };
                event.partition = kind.ends_with("plug").then_some(second % 8);
                event.reason = (kind == "refuse").then(|| "ConcurrentInvocationLimitExceeded".into());
                events.push(event);
            }
        }
        samples.push(sample);
    }
    let instances: Vec<Instance> = (0..14)
        .map(|id| Instance {
            id,
            function: names[id as usize % 3].into(),
            phase: ["busy", "idle", "idle", "starting"][id as usize % 4].into(),
            age_ms: id * 17_000,
            pss_bytes: (52.0 * MIB) as u64,
            private_bytes: (40.0 * MIB) as u64,
            mapped_shared_bytes: (80.0 * MIB) as u64,
            peak_bytes: (140.0 * MIB) as u64,
            init_ms: Some(431.0),
            partition: Some(id),
            ..Instance::default()
        })
        .collect();
    let functions = names.map(|name| Function {
        name: name.into(),
        runtime: "python3.11".into(),
        memory_mib: 384,
        reserved: None,
        queued: 0,
        counts: Requests::default(),
    });
    let times = |ms| Percentiles {
        p50_ms: Some(ms),
        p90_ms: Some(ms * 3.0),
        p99_ms: Some(ms * 9.0),
        p999_ms: Some(ms * 40.0),
    };
    let counts = Counts {
        succeeded: 12_345,
        failed: 2,
        throttled: 7,
        refused: 0,
        cold_starts: 57,
        latency: times(4.2),
        cold_start: times(310.0),
        restores: 41,
        restore: times(30.0),
    };
    let view = View {
        uptime_ms: 299_000,
        minutes: 5,
        layers: &layers,
        samples: &samples,
        events: &events,
        instances: &instances,
        functions: &functions,
        counts,
    };
    print!("{}", page(&view, "sample"));
}
