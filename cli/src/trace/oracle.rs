//! Perfect lifetimes from a trace (LLAMA §9.1): the table of each allocation's class, by thread and sequence
//! number, for the heap. The layout is described in `docs/trace.md`.
//!
//! The table is filled in place in a mapped file, one byte an allocation, so that memory stays proportional
//! to the objects alive.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use memmap2::MmapMut;
use tempfile::NamedTempFile;

use crate::trace::distribution::{CLASS_INF, class_of};
use crate::trace::file::{Operation, Reader};
use crate::trace::live_objects::walk;

const MAGIC: &[u8; 8] = b"MAYFLYOR";
const VERSION: u32 = 1;

/// A table in a temporary file, removed when this is dropped.
pub struct Table {
    file: NamedTempFile,
    classes: MmapMut,
    /// For each thread, the offset of its classes in the file and their number.
    ranges: Vec<(usize, usize)>,
}

impl Table {
    /// Makes the table of the trace at `path`; `progress` receives the bytes read, for two passes over the
    /// file.
    ///
    /// # Errors
    /// The trace cannot be read, or the temporary file cannot be written.
    pub fn from_trace(path: &Path, mut progress: impl FnMut(u64)) -> Result<Table> {
        let counts = allocations_by_thread(path, &mut progress)?;
        let bytes_read = std::fs::metadata(path)?.len();
        let mut table =
            Table::all_inf(&counts).context("cannot write the oracle table to a temporary file")?;
        walk(
            Reader::open(path)?,
            |bytes| progress(bytes_read + bytes),
            |change, _| {
                if let Some(object) = change.died {
                    let lifetime_ns = change.time_ns.saturating_sub(object.born_ns);
                    if let Some(class) = table.class_mut(object.thread, object.sequence) {
                        *class = class_of(lifetime_ns);
                    }
                }
                anyhow::Ok(())
            },
        )?;
        table.classes.flush()?;
        Ok(table)
    }

    /// The file, for `MAYFLY_HEAP_LIFETIMES=oracle:FILE`.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The class of a thread's n-th allocation; `inf` where the table does not know it.
    pub fn class(&self, thread: u32, sequence: u32) -> u8 {
        self.place(thread, sequence).map_or(CLASS_INF, |place| self.classes[place])
    }

    fn place(&self, thread: u32, sequence: u32) -> Option<usize> {
        let &(offset, count) = self.ranges.get(thread as usize)?;
        ((sequence as usize) < count).then(|| offset + sequence as usize)
    }

    fn class_mut(&mut self, thread: u32, sequence: u32) -> Option<&mut u8> {
        let place = self.place(thread, sequence)?;
        Some(&mut self.classes[place])
    }

    /// A table in which no object is freed.
    fn all_inf(counts: &[u64]) -> Result<Table> {
        let mut file = tempfile::Builder::new().prefix("mayfly-oracle-").tempfile()?;
        let mut output = BufWriter::new(file.as_file_mut());
        output.write_all(MAGIC)?;
        output.write_all(&VERSION.to_le_bytes())?;
        output.write_all(&(counts.len() as u32).to_le_bytes())?;
        let mut offset = (16 + 16 * counts.len()) as u64;
        let mut ranges = Vec::with_capacity(counts.len());
        for &count in counts {
            output.write_all(&offset.to_le_bytes())?;
            output.write_all(&count.to_le_bytes())?;
            ranges.push((offset as usize, count as usize));
            offset += count;
        }
        let mut left: u64 = counts.iter().sum();
        let inf = [CLASS_INF; 1 << 16];
        while left > 0 {
            let length = left.min(inf.len() as u64);
            output.write_all(&inf[..length as usize])?;
            left -= length;
        }
        output.flush()?;
        drop(output);
        let classes = map(file.as_file())?;
        Ok(Table { file, classes, ranges })
    }
}

fn map(file: &File) -> Result<MmapMut> {
    // SAFETY: the file was made by this process under a name of its own and is not changed or cut by another
    // while it is mapped; a heap that receives its name only reads it.
    Ok(unsafe { MmapMut::map_mut(file) }?)
}

/// The number of each thread's allocations, by its highest sequence number.
fn allocations_by_thread(path: &Path, mut progress: impl FnMut(u64)) -> Result<Vec<u64>> {
    let mut reader = Reader::open(path)?;
    let length = std::fs::metadata(path)?.len();
    let mut counts: Vec<u64> = Vec::new();
    let mut records = 0u64;
    while let Some(record) = reader.next().transpose()? {
        records += 1;
        if records.is_multiple_of(1 << 16) {
            progress(reader.offset());
        }
        if record.operation == Operation::Free {
            continue;
        }
        // Numbers count threads and allocations, so none can exceed the trace's length in bytes.
        if u64::from(record.thread.max(record.sequence)) > length {
            let at = reader.offset() - crate::trace::file::RECORD_BYTES as u64;
            bail!(
                "{}: byte {at}: allocation {} of thread {} in a trace of {length} bytes",
                path.display(),
                record.sequence,
                record.thread
            );
        }
        let thread = record.thread as usize;
        if counts.len() <= thread {
            counts.resize(thread + 1, 0);
        }
        counts[thread] = counts[thread].max(u64::from(record.sequence) + 1);
    }
    if counts.iter().sum::<u64>() > length {
        bail!("{}: its sequence numbers do not count its allocations", path.display());
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::file::{Header, Record};
    use crate::trace::writer::Writer;

    const MS: u64 = 1_000_000;

    fn alloc(time_ns: u64, address: u64, thread: u32, sequence: u32) -> Record {
        let operation = Operation::Allocation;
        Record { time_ns, address, size_bytes: 8, caller: 0, thread, sequence, operation, stack_height: 0 }
    }

    fn free(time_ns: u64, address: u64) -> Record {
        let operation = Operation::Free;
        Record { operation, size_bytes: 0, ..alloc(time_ns, address, 0, 0) }
    }

    fn trace(records: &[Record]) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        let mut writer =
            Writer::new(file.reopen().unwrap(), Header { pid: 1, start_unix_ns: 0, ..Header::default() })
                .unwrap();
        records.iter().for_each(|record| writer.write(record).unwrap());
        writer.finish().unwrap();
        file
    }

    #[test]
    fn each_allocation_has_the_class_of_its_lifetime() {
        let trace = trace(&[
            alloc(0, 0x10, 0, 0),
            alloc(0, 0x20, 2, 0),
            alloc(1, 0x30, 0, 1),
            free(5 * MS, 0x10),
            alloc(6 * MS, 0x10, 0, 2),
            free(500 * MS, 0x20),
            free(20_000 * MS, 0x10),
        ]);
        let table = Table::from_trace(trace.path(), |_| {}).unwrap();
        assert_eq!([0, 1, 2, 3].map(|sequence| table.class(0, sequence)), [0, 6, 4, 6]);
        assert_eq!((table.class(2, 0), table.class(1, 0), table.class(9, 0)), (2, 6, 6));

        let bytes = std::fs::read(table.path()).unwrap();
        assert_eq!(&bytes[..16], b"MAYFLYOR\x01\0\0\0\x03\0\0\0");
        let numbers: Vec<_> =
            bytes[16..64].chunks(8).map(|b| u64::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(numbers, [64, 3, 67, 0, 67, 1]);
        assert_eq!(bytes[64..], [0, 6, 4, 2]);
        let path = table.path().to_path_buf();
        drop(table);
        assert!(!path.exists());
    }

    #[test]
    fn absurd_numbers_are_refused() {
        for record in [alloc(0, 0x10, u32::MAX, 0), alloc(0, 0x10, 0, u32::MAX)] {
            let trace = trace(&[record]);
            let error = Table::from_trace(trace.path(), |_| {}).err().unwrap().to_string();
            assert!(error.contains(": byte 64: allocation "), "{error}");
        }
    }

    #[test]
    fn an_empty_trace_gives_an_empty_table() {
        let trace = trace(&[]);
        assert_eq!(Table::from_trace(trace.path(), |_| {}).unwrap().class(0, 0), CLASS_INF);
    }
}
