//! Statistics: of parts of a region, as gem5's text, and histograms.

mod common;

use common::*;
use iced_x86::code_asm::*;
use sim::system::statistics::Statistics;

/// Loads that miss every cache, one after the other.
fn misses(bench: &mut Bench, body: usize, lines: std::ops::Range<u64>) {
    for line in lines {
        bench.enter(body);
        bench.load(0, line << 16);
    }
}

fn missing() -> (Bench, usize) {
    let mut bench = Bench::new(&[]);
    let body = bench.add(block(CODE, |a| {
        a.mov(rbx, qword_ptr(rbx))?;
        a.jmp(CODE)
    }));
    bench.machine.start_region();
    (bench, body)
}

#[test]
fn intervals_add_up_to_the_region() {
    let (mut bench, body) = missing();
    let mut before = Statistics::default();
    let mut intervals = Vec::new();
    for part in 1..=3 {
        misses(&mut bench, body, 1000 * part..1000 * part + 100 * part);
        bench.machine.pause(&bench.tables);
        let now = bench.statistics();
        intervals.push(now.since(&before));
        before = now;
    }
    let whole = bench.statistics().json();
    for key in ["instructions", "cycles", "l1d.misses", "dram.reads", "cycles_of.user.dram"] {
        let parts: Vec<_> = intervals.iter().map(|one| one[key].as_i64().unwrap()).collect();
        assert_eq!(parts.iter().sum::<i64>(), whole[key].as_i64().unwrap(), "{key}");
        assert!(parts[0] < parts[1] && parts[1] < parts[2], "{key}: {parts:?}");
    }
    let last = &intervals[2];
    let ipc = last["instructions"].as_f64().unwrap() / last["cycles"].as_f64().unwrap();
    assert_near(last["ipc"].as_f64().unwrap(), ipc, 1e-9, "the interval's own");
    let time = last["cycles"].as_f64().unwrap() / 3000.0;
    assert_near(last["time_us"].as_f64().unwrap(), time, 1e-9, "at a rate that stays");
}

#[test]
fn reads_of_dram_have_a_histogram() {
    let (mut bench, body) = missing();
    misses(&mut bench, body, 1..500);
    bench.machine.pause(&bench.tables);
    let found = bench.statistics();
    let of = |prefix: &str| -> Vec<_> {
        let its = found.list.iter().filter(|one| one.name.starts_with(prefix));
        its.map(|one| (one.name.clone(), one.value.number())).collect()
    };
    let parts = of("dram.read_latency.");
    assert_eq!(parts.len(), 9);
    assert_eq!(parts.iter().map(|(_, count)| count).sum::<f64>(), bench.statistic("dram.reads"));
    // One at a time, each in another row: an activation, a column access and the burst are 22 + 22 + 4 clocks
    // of 0.625 ns, often behind a precharge of 22.
    let typical = |name: &str| name.ends_with("to_40_ns") || name.ends_with("to_60_ns");
    let those: f64 = parts.iter().filter(|(name, _)| typical(name)).map(|(_, count)| count).sum();
    assert!(those > 450.0, "{parts:?}");
}

#[test]
fn the_text_is_gem5s() {
    let (mut bench, body) = missing();
    misses(&mut bench, body, 1..100);
    bench.machine.pause(&bench.tables);
    let text = bench.statistics().text();
    let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
    let [begin, all @ .., end] = &lines[..] else { panic!("{text}") };
    assert_eq!(*begin, "---------- Begin Simulation Statistics ----------");
    assert_eq!(*end, "---------- End Simulation Statistics   ----------");
    for line in all {
        let (values, about) = line.split_once(" # ").unwrap();
        let [_, value] = values.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert!(value.parse::<f64>().is_ok() && about.ends_with(')'), "{line}");
    }
    assert!(all.iter().any(|line| line.starts_with("instructions ")));
}
