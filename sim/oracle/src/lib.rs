//! DRAMsim3, which simulates every command of a memory, on the requests that the machine's own DRAM model
//! answered.
//!
//! It cannot replace the model: it simulates clock by clock, while the core's requests are not in the order
//! of time. So it gets the same requests at the same clocks afterwards, and reports how long it takes for
//! them.

use std::collections::{HashMap, VecDeque};

use anyhow::{Result, anyhow};

/// Table 3's DDR4-3200 as a DRAMsim3 configuration.
const CONFIGURATION: &str = include_str!("../ddr4_3200.ini");
/// tREFI of the configuration.
const REFRESH: u64 = 12_480;
/// After so many clocks it writes its counters.
const EPOCH: u64 = 100_000;

/// One line that is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// The clock at which it arrives, in memory clocks.
    pub clock: u64,
    /// The physical address / 64.
    pub line: u64,
    /// Whether it is written; otherwise it is read.
    pub write: bool,
}

impl Request {
    /// As the machine records it: two numbers, little endian; the line and, in the lowest bit, whether it is
    /// written.
    pub fn decode(bytes: [u8; 16]) -> Request {
        let [clock, line] =
            [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")));
        Request { clock, line: line >> 1, write: line & 1 == 1 }
    }
}

/// DRAMsim3's result for a list of requests.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Lines read.
    pub reads: u64,
    /// Mean clocks from a read's arrival to its data.
    pub read_clocks: f64,
    /// Of the reads that reached a bank, the share, 0 to 1, that found their row open.
    pub read_row_hits: f64,
}

/// Gives DRAMsim3 the requests, in order of their clocks; `progress` receives how many it has taken.
///
/// # Errors
/// There is no read among them, or no room for DRAMsim3's files.
pub fn replay(requests: &[Request], mut progress: impl FnMut(usize)) -> Result<Outcome> {
    // Its refreshes come when the model's came: requests hardly ever fell into those, as the core waited for
    // them.
    let first = requests.first().map_or(0, |request| request.clock / REFRESH * REFRESH);
    let all = requests.iter().filter(|request| !request.write).count() as u64;
    if all == 0 {
        return Err(anyhow!("nothing was read from DRAM: DRAMsim3 has nothing to simulate"));
    }
    let folder = tempfile::tempdir()?;
    let configuration = folder.path().join("ddr4_3200.ini");
    std::fs::write(&configuration, CONFIGURATION)?;
    let mut memory = dramsim3::MemorySystem::new(&configuration, folder.path())
        .map_err(|error| anyhow!("DRAMsim3: {error:?}"))?;
    let mut pending: HashMap<u64, VecDeque<u64>> = HashMap::new();
    let (mut clock, mut next, mut reads, mut clocks) = (0, 0, 0, 0);
    while reads < all || clock % EPOCH != 2 {
        // In order: a request that finds the queue full delays those behind it.
        while let Some(&Request { clock: at, line, write }) = requests.get(next)
            && at - first <= clock
            && memory.can_add(line * 64, write)
        {
            next += 1;
            memory.add(line * 64, write);
            if !write {
                pending.entry(line).or_default().push_back(at - first);
            }
            if next.is_multiple_of(1 << 14) {
                progress(next);
            }
        }
        memory.tick(|address, write| {
            if !write {
                let at = pending.get_mut(&(address / 64)).and_then(VecDeque::pop_front);
                reads += 1;
                clocks += clock - at.expect("it answers requests that were sent");
            }
        });
        clock += 1;
    }
    let report = std::fs::read_to_string(folder.path().join("dramsim3epoch.json"))?;
    let sum = |key: &str| -> f64 {
        let key = format!("\"{key}\":");
        let values = report.split(&key).skip(1);
        values.filter_map(|rest| rest.split([',', '}']).next()?.trim().parse::<f64>().ok()).sum()
    };
    Ok(Outcome {
        reads,
        read_clocks: clocks as f64 / reads as f64,
        read_row_hits: sum("num_read_row_hits") / sum("num_read_cmds"),
    })
}
