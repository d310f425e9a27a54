//! The objects alive at each moment of a trace: the walk that every analysis shares.
//!
//! Memory is proportional to the objects alive, not to the trace. Threads write their records in batches, so
//! the file is only nearly in order of time: a window of records is sorted as it passes.

use std::collections::{HashMap, HashSet};
use std::io::Read;

use rustc_hash::{FxBuildHasher, FxHashSet};

use crate::trace::file::{Operation, Reader, Record, State, TraceError};

/// Records this far apart in the file still come out in order of time.
const WINDOW_RECORDS: usize = 1 << 18;

/// An object that is alive, or was until now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its address.
    pub address: u64,
    /// Requested size.
    pub size_bytes: u64,
    /// The time of its allocation.
    pub born_ns: u64,
    /// The thread that allocated it.
    pub thread: u32,
    /// The n-th allocation of that thread.
    pub sequence: u32,
}

/// The change of one record: an allocation at the address of a live object ends that object first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Time of the record; never goes back.
    pub time_ns: u64,
    /// The object that ends.
    pub died: Option<Object>,
    /// The object that begins.
    pub born: Option<Object>,
}

/// Sums over a whole trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Allocations recorded.
    pub allocations: u64,
    /// Frees recorded.
    pub frees: u64,
    /// Frees of objects whose allocation is not in the trace.
    pub frees_unmatched: u64,
    /// Allocations at an address whose object was never freed.
    pub frees_missing: u64,
    /// Records that came too late for the window to sort.
    pub out_of_order: u64,
    /// Threads that used the heap.
    pub threads: u64,
    /// From the start of the trace to its last record.
    pub duration_ns: u64,
    /// Sum of the sizes of all allocations.
    pub allocated_bytes: u64,
    /// Most bytes alive at once.
    pub peak_live_bytes: u64,
    /// Most objects alive at once.
    pub peak_live_objects: u64,
    /// Bytes alive at the end.
    pub end_live_bytes: u64,
    /// Objects alive at the end.
    pub end_live_objects: u64,
    /// Bytes of an unfinished last record, dropped.
    pub torn_bytes: u64,
    /// The trace ends before its process did.
    pub is_cut: bool,
}

/// Walks the trace in order of time and calls `visit` with each change and the bytes alive after it.
/// `progress` receives the bytes of the file that have been read. Returns the totals and the objects alive at
/// the end.
///
/// # Errors
/// There is an impossible record, or `visit` fails.
pub fn walk<R: Read, E: From<TraceError>>(
    reader: Reader<R>,
    mut progress: impl FnMut(u64),
    mut visit: impl FnMut(&Change, u64) -> Result<(), E>,
) -> Result<(Totals, Vec<Object>), E> {
    let mut records = InTimeOrder::new(reader, WINDOW_RECORDS);
    let mut live = LiveObjects::default();
    let mut count = 0u64;
    while let Some(record) = records.next()? {
        if count.is_multiple_of(1 << 16) {
            progress(records.reader.offset());
        }
        count += 1;
        if let Some(change) = live.apply(&record) {
            visit(&change, live.bytes)?;
        }
    }
    progress(records.reader.offset());
    let mut totals = live.totals;
    totals.threads = live.threads.len() as u64;
    totals.end_live_bytes = live.bytes;
    totals.end_live_objects = live.objects.len() as u64;
    totals.torn_bytes = records.reader.torn_bytes();
    totals.is_cut = records.reader.header().state == State::Open;
    Ok((totals, live.objects.into_values().collect()))
}

/// Sorts records that are nearly in order of time: buffers twice the window, sorts, returns half.
struct InTimeOrder<R> {
    reader: Reader<R>,
    window: usize,
    held: Vec<Record>,
    next: usize,
    sorted_until: usize,
}

impl<R: Read> InTimeOrder<R> {
    fn new(reader: Reader<R>, window: usize) -> Self {
        InTimeOrder { reader, window, held: Vec::new(), next: 0, sorted_until: 0 }
    }

    fn next(&mut self) -> Result<Option<Record>, TraceError> {
        if self.next == self.sorted_until {
            self.refill()?;
        }
        let record = self.held[..self.sorted_until].get(self.next).copied();
        self.next += 1;
        Ok(record)
    }

    fn refill(&mut self) -> Result<(), TraceError> {
        self.held.drain(..self.next.min(self.held.len()));
        self.next = 0;
        while self.held.len() < 2 * self.window {
            match self.reader.next() {
                Some(record) => self.held.push(record?),
                None => break,
            }
        }
        // Stable: records of one moment stay in the order of the file.
        self.held.sort_by_key(|record| record.time_ns);
        let ended = self.held.len() < 2 * self.window;
        self.sorted_until = if ended { self.held.len() } else { self.window };
        Ok(())
    }
}

#[derive(Default)]
struct LiveObjects {
    objects: HashMap<u64, Object, FxBuildHasher>,
    threads: FxHashSet<u32>,
    last_thread: Option<u32>,
    bytes: u64,
    totals: Totals,
}

impl LiveObjects {
    fn apply(&mut self, record: &Record) -> Option<Change> {
        if self.last_thread != Some(record.thread) {
            self.last_thread = Some(record.thread);
            HashSet::insert(&mut self.threads, record.thread);
        }
        if record.time_ns < self.totals.duration_ns {
            self.totals.out_of_order += 1;
        }
        self.totals.duration_ns = self.totals.duration_ns.max(record.time_ns);
        let time_ns = self.totals.duration_ns;
        match record.operation {
            Operation::Allocation => Some(self.allocate(record, time_ns)),
            Operation::Free => self.free(record, time_ns),
        }
    }

    fn allocate(&mut self, record: &Record, time_ns: u64) -> Change {
        let &Record { address, size_bytes, thread, sequence, time_ns: born_ns, .. } = record;
        let object = Object { address, size_bytes, born_ns, thread, sequence };
        self.totals.allocations += 1;
        self.totals.allocated_bytes = self.totals.allocated_bytes.saturating_add(size_bytes);
        let died = self.objects.insert(address, object);
        if let Some(old) = died {
            self.totals.frees_missing += 1;
            self.bytes = self.bytes.saturating_sub(old.size_bytes);
        }
        self.bytes = self.bytes.saturating_add(size_bytes);
        self.totals.peak_live_bytes = self.totals.peak_live_bytes.max(self.bytes);
        self.totals.peak_live_objects = self.totals.peak_live_objects.max(self.objects.len() as u64);
        Change { time_ns, died, born: Some(object) }
    }

    fn free(&mut self, record: &Record, time_ns: u64) -> Option<Change> {
        self.totals.frees += 1;
        // A free that is older than the object at its address belongs to an earlier one there.
        let current = self.objects.get(&record.address).filter(|object| object.born_ns <= record.time_ns);
        if current.is_none() {
            self.totals.frees_unmatched += 1;
            return None;
        }
        let died = self.objects.remove(&record.address);
        self.bytes = self.bytes.saturating_sub(died.map_or(0, |object| object.size_bytes));
        Some(Change { time_ns, died, born: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::file::Header;
    use crate::trace::writer::Writer;
    use proptest::prelude::*;
    use std::path::Path;

    fn alloc(time_ns: u64, address: u64, size_bytes: u64) -> Record {
        let operation = Operation::Allocation;
        Record { time_ns, address, size_bytes, caller: 0, thread: 0, sequence: 0, operation, stack_height: 0 }
    }

    fn free(time_ns: u64, address: u64) -> Record {
        Record { operation: Operation::Free, ..alloc(time_ns, address, 0) }
    }

    fn bytes_of(records: &[Record]) -> Vec<u8> {
        let mut writer =
            Writer::new(Vec::new(), Header { pid: 1, start_unix_ns: 0, state: State::Whole }).unwrap();
        records.iter().for_each(|record| writer.write(record).unwrap());
        writer.finish().unwrap()
    }

    fn walked(records: &[Record]) -> (Totals, Vec<Change>) {
        let bytes = bytes_of(records);
        let reader = Reader::new(&bytes[..], Path::new("t")).unwrap();
        let mut changes = Vec::new();
        let visit = |change: &Change, _| {
            changes.push(*change);
            Ok::<_, TraceError>(())
        };
        let (totals, _) = walk(reader, |_| {}, visit).unwrap();
        (totals, changes)
    }

    #[test]
    fn totals_of_a_small_trace() {
        let (totals, changes) =
            walked(&[alloc(1, 0x10, 100), alloc(2, 0x20, 50), free(5, 0x10), alloc(9, 0x10, 10)]);
        assert_eq!(
            totals,
            Totals {
                allocations: 3,
                frees: 1,
                threads: 1,
                duration_ns: 9,
                allocated_bytes: 160,
                peak_live_bytes: 150,
                peak_live_objects: 2,
                end_live_bytes: 60,
                end_live_objects: 2,
                ..Totals::default()
            }
        );
        assert_eq!(changes[2].died.unwrap().born_ns, 1);
    }

    #[test]
    fn records_of_two_threads_are_put_in_order() {
        // The freeing thread wrote its batch first.
        let (totals, changes) = walked(&[free(5, 0x10), alloc(1, 0x10, 100), alloc(7, 0x10, 8)]);
        assert_eq!((totals.frees_unmatched, totals.frees_missing, totals.out_of_order), (0, 0, 0));
        assert_eq!(changes.iter().map(|change| change.time_ns).collect::<Vec<_>>(), [1, 5, 7]);
    }

    #[test]
    fn frees_without_allocation_and_lost_frees_are_counted() {
        let (totals, _) = walked(&[free(1, 0x40), alloc(2, 0x10, 100), alloc(3, 0x10, 7)]);
        assert_eq!((totals.frees_unmatched, totals.frees_missing), (1, 1));
        assert_eq!((totals.end_live_bytes, totals.end_live_objects), (7, 1));
    }

    #[test]
    fn a_free_beyond_the_window_does_not_end_the_next_object() {
        let mut live = LiveObjects::default();
        live.apply(&alloc(1, 0x10, 100));
        live.apply(&alloc(9, 0x10, 50));
        assert_eq!(live.apply(&free(4, 0x10)), None);
        assert_eq!((live.bytes, live.totals.out_of_order), (50, 1));
    }

    proptest! {
        #[test]
        fn a_window_sorts_records_less_out_of_order_than_its_length(jitter in prop::collection::vec(0u64..16, 1..200)) {
            let records: Vec<_> =
                jitter.iter().enumerate().map(|(i, j)| alloc(i as u64 + j, 1 + i as u64, 1)).collect();
            let bytes = bytes_of(&records);
            let mut ordered = InTimeOrder::new(Reader::new(&bytes[..], Path::new("t")).unwrap(), 16);
            let mut times = Vec::new();
            while let Some(record) = ordered.next().unwrap() {
                times.push(record.time_ns);
            }
            let mut expected: Vec<_> = records.iter().map(|record| record.time_ns).collect();
            expected.sort();
            prop_assert_eq!(times, expected);
        }

        #[test]
        fn live_bytes_are_those_of_the_objects_alive(
            steps in prop::collection::vec((1u64..12, 0u64..1000, any::<bool>()), 0..300)
        ) {
            let records: Vec<_> = steps.iter().enumerate().map(|(time, &(address, size, is_free))| {
                if is_free { free(time as u64, address) } else { alloc(time as u64, address, size) }
            }).collect();
            let bytes = bytes_of(&records);
            let reader = Reader::new(&bytes[..], Path::new("t")).unwrap();
            let mut model = std::collections::BTreeMap::new();
            let visit = |change: &Change, live_bytes: u64| {
                if let Some(died) = change.died { model.remove(&died.address); }
                if let Some(born) = change.born { model.insert(born.address, born.size_bytes); }
                assert_eq!(live_bytes, model.values().sum::<u64>());
                Ok::<_, TraceError>(())
            };
            let (totals, left) = walk(reader, |_| {}, visit).unwrap();
            prop_assert_eq!(left.len() as u64, totals.end_live_objects);
            prop_assert_eq!(totals.allocations + totals.frees, records.len() as u64);
        }
    }
}
