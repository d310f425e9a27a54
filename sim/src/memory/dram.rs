//! DDR4 as an event-driven model: one channel, one rank, open rows.
//!
//! No clock ticks. A request asks, when it arrives, for the first clocks at which its commands (precharge,
//! activate, column access) keep all distances of the standard to those already promised. The answer is
//! final, but a row hit may still slip in before an older request's precharge (first ready, first come, first
//! served). Addresses are mapped as row, bank, bank group, column. `tests/dram.rs` compares it with DRAMsim3,
//! which simulates every command.

use crate::base::calendar::Calendar;
use crate::base::description::DramDescription;
use crate::memory::cache::Line;

const NEVER: u64 = u64::MAX;
/// Upper ends of the histogram of reads' latencies, in nanoseconds; longer ones come last.
pub const LATENCY_ENDS: [u64; 8] = [20, 30, 40, 60, 80, 120, 160, 320];

/// A row that is, or will be, open in a bank.
#[derive(Clone, Copy)]
struct Opening {
    row: u64,
    activated: u64,
    /// The first clock for column accesses: activation + tRCD.
    column_from: u64,
    /// The first clock at which the row may be closed.
    precharge_from: u64,
    /// When it will be closed for the next; until then hits on it may go before that.
    closing: u64,
    /// Column accesses.
    accesses: u32,
}

/// The rows of a bank in the order in which they are opened; the last one stays open.
struct Bank {
    openings: Vec<Opening>,
    /// No activation before this clock: the last row's closing, or a refresh.
    usable_from: u64,
}

/// The memory's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct DramCounts {
    /// Lines read.
    pub reads: u64,
    /// Lines written.
    pub writes: u64,
    /// Reads of a row that was open.
    pub read_row_hits: u64,
    /// Writes to a row that was open.
    pub write_row_hits: u64,
    /// Reads answered by the write queue.
    pub forwards: u64,
    /// Clocks from a read's arrival to its data, over all reads.
    pub read_clocks: u64,
    /// Reads by that time, as [`LATENCY_ENDS`] says.
    pub read_latencies: [u64; LATENCY_ENDS.len() + 1],
    /// All-bank refreshes.
    pub refreshes: u64,
}

/// The channel, its banks and the queue of writes.
pub struct Dram {
    timing: DramDescription,
    core_mhz: u64,
    banks: Box<[Bank]>,
    /// Column commands, of all banks and of each bank group.
    columns: Calendar,
    group_columns: Box<[Calendar]>,
    /// Activations likewise, and the last four (tFAW).
    activations: Calendar,
    group_activations: Box<[Calendar]>,
    last_activations: [u64; 4],
    next_refresh: u64,
    queue: Vec<Line>,
    /// The last burst of writes, as clocks of its first and last command; reads stay clear of it.
    writes_from: u64,
    writes_until: u64,
    last_write_group: usize,
    last_read: u64,
    last_command: u64,
    column_bits: u32,
    group_bits: u32,
    bank_bits: u32,
    /// Counters.
    pub counts: DramCounts,
    /// The requests, if they are recorded, in order of arrival: clock, and line with whether it is written in
    /// the lowest bit.
    pub recorded: Option<Vec<[u64; 2]>>,
}

impl Dram {
    /// All rows closed.
    pub fn new(timing: &DramDescription, core_mhz: u64) -> Dram {
        let calendars = || (0..timing.bank_groups).map(|_| Calendar::new()).collect();
        Dram {
            core_mhz,
            banks: (0..timing.bank_groups * timing.banks_per_group).map(|_| Bank::new()).collect(),
            columns: Calendar::new(),
            group_columns: calendars(),
            activations: Calendar::new(),
            group_activations: calendars(),
            last_activations: [0; 4],
            next_refresh: timing.refi,
            queue: Vec::with_capacity(timing.write_queue),
            writes_from: 0,
            writes_until: 0,
            last_write_group: 0,
            last_read: 0,
            last_command: 0,
            column_bits: (timing.row_bytes / 64).ilog2(),
            group_bits: (timing.bank_groups as u64).ilog2(),
            bank_bits: (timing.banks_per_group as u64).ilog2(),
            timing: timing.clone(),
            counts: DramCounts::default(),
            recorded: None,
        }
    }

    /// Reads a line; times in core cycles.
    pub fn read(&mut self, line: Line, at: u64) -> u64 {
        let clock = at * self.timing.clock_mhz / self.core_mhz;
        (self.read_at(line, clock) * self.core_mhz).div_ceil(self.timing.clock_mhz).max(at)
    }

    /// Queues a line's write.
    pub fn write(&mut self, line: Line, at: u64) {
        self.write_at(line, at * self.timing.clock_mhz / self.core_mhz);
    }

    /// As [`Dram::read`], in memory clocks.
    pub fn read_at(&mut self, line: Line, at: u64) -> u64 {
        self.record(line, at, false);
        self.counts.reads += 1;
        self.drain_when_idle(at);
        if self.queue.contains(&line) {
            self.counts.forwards += 1;
            self.count_latency(1);
            return at + 1;
        }
        let (command, hit) = self.schedule(line, at + 1, false);
        self.counts.read_row_hits += u64::from(hit);
        let done = command + self.timing.cl + self.timing.burst;
        self.last_read = self.last_read.max(command);
        self.count_latency(done - at);
        done
    }

    fn count_latency(&mut self, clocks: u64) {
        self.counts.read_clocks += clocks;
        let longest = LATENCY_ENDS.iter().position(|end| clocks * 1000 <= end * self.timing.clock_mhz);
        self.counts.read_latencies[longest.unwrap_or(LATENCY_ENDS.len())] += 1;
    }

    /// As [`Dram::write`], in memory clocks.
    pub fn write_at(&mut self, line: Line, at: u64) {
        self.record(line, at, true);
        self.drain_when_idle(at);
        if self.queue.contains(&line) {
            return;
        }
        self.counts.writes += 1;
        self.queue.push(line);
        if self.queue.len() >= self.timing.write_queue {
            self.drain(at);
        }
    }

    #[inline]
    fn record(&mut self, line: Line, at: u64, write: bool) {
        if let Some(recorded) = &mut self.recorded {
            recorded.push([at, line << 1 | u64::from(write)]);
        }
    }

    /// More than eight writes wait and nothing else is to do.
    fn drain_when_idle(&mut self, at: u64) {
        if self.queue.len() > 8 && self.last_command < at {
            self.drain(self.last_command + 1);
        }
    }

    fn drain(&mut self, at: u64) {
        let timing = &self.timing;
        let after_reads = self.last_read + timing.cl + timing.burst + 1 - timing.cwl;
        let mut queue = std::mem::take(&mut self.queue);
        let (mut first, mut last) = (u64::MAX, 0);
        for (place, line) in queue.iter().enumerate() {
            let earliest = (at + 1 + place as u64).max(if first == u64::MAX { after_reads } else { 0 });
            let (command, hit) = self.schedule(*line, earliest, true);
            self.counts.write_row_hits += u64::from(hit);
            first = first.min(command);
            if command >= last {
                (last, self.last_write_group) = (command, self.place(*line).0);
            }
        }
        (self.writes_from, self.writes_until) = (first, last);
        queue.clear();
        self.queue = queue;
    }

    /// Bank group, bank, row.
    fn place(&self, line: Line) -> (usize, usize, u64) {
        let rest = line >> self.column_bits;
        let group = rest as usize & (self.timing.bank_groups - 1);
        let rest = rest >> self.group_bits;
        let bank = rest as usize & (self.timing.banks_per_group - 1);
        (group, group * self.timing.banks_per_group + bank, rest >> self.bank_bits)
    }

    /// The clock of the column command, and whether the row was open.
    fn schedule(&mut self, line: Line, earliest: u64, write: bool) -> (u64, bool) {
        let (group, bank, row) = self.place(line);
        let (command, hit) = loop {
            // A command that would come after a refresh must wait for it.
            match self.schedule_in(group, bank, row, earliest, write) {
                Some(result) => break result,
                None => self.refresh(),
            }
        };
        self.last_command = self.last_command.max(command);
        (command, hit)
    }

    fn schedule_in(
        &mut self,
        group: usize,
        bank: usize,
        row: u64,
        earliest: u64,
        write: bool,
    ) -> Option<(u64, bool)> {
        let (rtp, limit) = (self.timing.rtp, self.timing.row_hit_limit);
        let tail = if write { self.timing.cwl + self.timing.burst + self.timing.wr } else { rtp };
        let openings = &mut self.banks[bank].openings;
        // All but the last are over once they are closed; a few are kept for requests that arrive late.
        while openings.len() > 1 && openings[0].closing + 64 < earliest {
            openings.remove(0);
        }
        // First ready: any row whose closing lies ahead, though older requests wait for it.
        let last = openings.len().wrapping_sub(1);
        let open = openings.iter().enumerate().position(|(index, opening)| {
            opening.row == row && (index == last || earliest < opening.closing && opening.accesses < limit)
        });
        if let Some(index) = open {
            let command =
                self.column(group, earliest.max(self.banks[bank].openings[index].column_from), write);
            if command > self.next_refresh {
                return None;
            }
            self.take_column(group, command);
            let openings = &mut self.banks[bank].openings;
            let opening = &mut openings[index];
            opening.accesses += 1;
            opening.precharge_from = opening.precharge_from.max(command + tail);
            let later = opening.precharge_from.saturating_sub(opening.closing);
            if later > 0 {
                opening.closing += later;
                for after in &mut openings[index + 1..] {
                    after.activated += later;
                    after.column_from += later;
                    after.precharge_from += later;
                    after.closing = after.closing.saturating_add(later);
                }
            }
            return Some((command, true));
        }
        let mut from = earliest.max(self.banks[bank].usable_from);
        let mut closing = 0;
        if let Some(opening) = self.banks[bank].openings.last() {
            closing = earliest.max(opening.precharge_from);
            from = closing + self.timing.rp;
        }
        let activated = self.activation(group, from);
        let column_from = activated + self.timing.rcd;
        let command = self.column(group, column_from, write);
        if command > self.next_refresh {
            return None;
        }
        self.take_activation(group, activated);
        self.take_column(group, command);
        let openings = &mut self.banks[bank].openings;
        if let Some(opening) = openings.last_mut() {
            opening.closing = closing;
        }
        let precharge_from = (activated + self.timing.ras).max(command + tail);
        openings.push(Opening { row, activated, column_from, precharge_from, closing: NEVER, accesses: 1 });
        Some((command, false))
    }

    /// The first clock for a column command: tCCD to all others, and clear of the last burst of writes.
    fn column(&self, group: usize, earliest: u64, write: bool) -> u64 {
        let timing = &self.timing;
        let mut clock = earliest;
        if !write && self.writes_until > 0 {
            let turn = if group == self.last_write_group { timing.wtr_l } else { timing.wtr_s };
            let clear = self.writes_until + timing.cwl + timing.burst + turn;
            let before = timing.cl + timing.burst + 1 - timing.cwl;
            if clock + before > self.writes_from && clock < clear {
                clock = clear;
            }
        }
        apart(&self.columns, timing.ccd_s, &self.group_columns[group], timing.ccd_l, clock)
    }

    fn take_column(&mut self, group: usize, clock: u64) {
        self.columns.take_one(clock);
        self.group_columns[group].take_one(clock);
    }

    /// The first clock for an activation: tRRD and tFAW.
    fn activation(&self, group: usize, earliest: u64) -> u64 {
        let timing = &self.timing;
        let mut clock = earliest;
        let fourth = self.last_activations[0];
        if fourth > 0 && clock >= fourth {
            clock = clock.max(fourth + timing.faw);
        }
        apart(&self.activations, timing.rrd_s, &self.group_activations[group], timing.rrd_l, clock)
    }

    fn take_activation(&mut self, group: usize, clock: u64) {
        self.activations.take_one(clock);
        self.group_activations[group].take_one(clock);
        self.last_activations[0] = clock;
        self.last_activations.sort_unstable();
    }

    /// Closes all rows; no bank can be used for tRFC.
    fn refresh(&mut self) {
        self.counts.refreshes += 1;
        let mut start = self.next_refresh;
        let open = self.banks.iter().filter_map(|bank| bank.openings.last());
        if let Some(closed) = open.clone().map(|opening| opening.precharge_from).max() {
            start = closed.max(start + open.count() as u64) + self.timing.rp;
        }
        for bank in &mut self.banks {
            bank.openings.clear();
            bank.usable_from = start + self.timing.rfc;
        }
        self.next_refresh += self.timing.refi;
    }
}

impl Bank {
    fn new() -> Bank {
        Bank { openings: Vec::with_capacity(32), usable_from: 0 }
    }
}

/// The first clock from `from` on that is `all` clocks from every command and `group` from those of the
/// group.
fn apart(all: &Calendar, all_distance: u64, group: &Calendar, group_distance: u64, from: u64) -> u64 {
    let mut clock = from;
    loop {
        let taken = |calendar: &Calendar, distance: u64| {
            (clock.saturating_sub(distance - 1)..clock + distance)
                .rev()
                .find(|clock| !calendar.is_free(*clock))
        };
        let next_all = taken(all, all_distance).map(|other| other + all_distance);
        let next_group = taken(group, group_distance).map(|other| other + group_distance);
        match next_all.max(next_group) {
            Some(next) => clock = next,
            None => return clock,
        }
    }
}
