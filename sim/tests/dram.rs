//! The memory model against DRAMsim3, which simulates every command: the same requests at the same clocks
//! must take the same time on average and hit as many open rows, within 5%.

mod common;
use common::Random;
use sim::Description;
use sim::memory::dram::Dram;
use sim_oracle::Request;

/// A memory's result for a stream.
#[derive(Debug)]
struct Outcome {
    read_clocks: f64,
    read_row_hits: f64,
}

fn ours(requests: &[Request]) -> Outcome {
    let description = Description::load("table3", &[]).unwrap();
    let mut dram = Dram::new(&description.dram, description.core.frequency_mhz);
    for &Request { clock, line, write } in requests {
        if write {
            dram.write_at(line, clock)
        } else {
            dram.read_at(line, clock);
        }
    }
    let counts = dram.counts;
    let from_banks = (counts.reads - counts.forwards) as f64;
    Outcome {
        read_clocks: counts.read_clocks as f64 / counts.reads as f64,
        read_row_hits: counts.read_row_hits as f64 / from_banks,
    }
}

fn dramsim3(requests: &[Request]) -> Outcome {
    let found = sim_oracle::replay(requests, |_| ()).unwrap();
    Outcome { read_clocks: found.read_clocks, read_row_hits: found.read_row_hits }
}

const REQUESTS: usize = 20_000;

/// Requests with random gaps of `gap` clocks on average to the lines that `line` returns; one in `writes` is
/// a write.
fn stream(gap: u64, writes: u64, mut line: impl FnMut(usize, &mut Random) -> u64) -> Vec<Request> {
    let mut random = Random(gap);
    let mut at = 100;
    (0..REQUESTS)
        .map(|number| {
            at += random.next() % (2 * gap + 1);
            let line = line(number, &mut random) % (1 << 27);
            Request { clock: at, line, write: writes > 0 && random.next().is_multiple_of(writes) }
        })
        .collect()
}

#[track_caller]
fn compare(name: &str, requests: &[Request]) {
    let (ours, theirs) = (ours(requests), dramsim3(requests));
    let latency = ours.read_clocks / theirs.read_clocks - 1.0;
    let hits = ours.read_row_hits - theirs.read_row_hits;
    println!(
        "{name}: {:.1} clocks, DRAMsim3 {:.1} ({:+.1}%); row hits {:.1}%, DRAMsim3 {:.1}%",
        ours.read_clocks,
        theirs.read_clocks,
        latency * 100.0,
        ours.read_row_hits * 100.0,
        theirs.read_row_hits * 100.0
    );
    assert!(
        latency.abs() < 0.05,
        "{name}: mean latency differs by {:+.1}%: {ours:?}, DRAMsim3 {theirs:?}",
        latency * 100.0
    );
    assert!(
        hits.abs() < 0.05,
        "{name}: row hits differ by {:+.1} points: {ours:?}, DRAMsim3 {theirs:?}",
        hits * 100.0
    );
}

#[test]
fn random_lines() {
    for gap in [200, 60, 30, 20] {
        compare(&format!("random-{gap}"), &stream(gap, 0, |_, random| random.next()));
    }
}

#[test]
fn one_line_after_the_other() {
    for gap in [200, 40, 12, 10] {
        compare(&format!("sequential-{gap}"), &stream(gap, 0, |number, _| number as u64));
    }
}

#[test]
fn rows_of_one_bank() {
    compare("conflicts", &stream(150, 0, |number, _| (number as u64 % 7) << 11));
}

#[test]
fn four_streams() {
    for gap in [60, 40] {
        let line = |number: usize, _: &mut Random| (number as u64 % 4) * (1 << 20) + number as u64 / 4;
        compare(&format!("streams-{gap}"), &stream(gap, 0, line));
    }
}

#[test]
fn runs_within_rows() {
    for gap in [80, 25] {
        let mut last = 0;
        let line = |_: usize, random: &mut Random| {
            last = if random.next() % 10 < 7 { last + 1 } else { random.next() };
            last
        };
        compare(&format!("runs-{gap}"), &stream(gap, 0, line));
    }
}

#[test]
fn reads_and_writes() {
    for (gap, writes) in [(100, 3), (40, 3), (40, 2)] {
        let mut last = 0;
        let line = |_: usize, random: &mut Random| {
            last = if random.next() % 10 < 5 { last + 1 } else { random.next() };
            last
        };
        compare(&format!("writes-{gap}-{writes}"), &stream(gap, writes, line));
    }
}

#[test]
fn a_read_waits_for_the_writes_of_a_full_queue() {
    let description = Description::load("table3", &[]).unwrap().dram;
    let read_after = |writes: usize| {
        let mut dram = Dram::new(&description, 3000);
        // At the first clock, nothing has been idle before; consecutive lines are in one row.
        for line in 0..writes as u64 {
            dram.write_at(line, 0);
        }
        dram.read_at(1 << 20, 0)
    };
    let later = read_after(description.write_queue) - read_after(description.write_queue - 1);
    assert!(
        later >= description.write_queue as u64 * description.burst,
        "the data of all writes comes first: {later} clocks later"
    );
}
