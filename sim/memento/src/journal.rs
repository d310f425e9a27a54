//! The journals of libmemento.so (MEMENTO_JOURNAL=FILE, `sim/shim/journal.h`): a program's operations in
//! order, with the shim's addresses and outcomes.

use std::fs::File;
use std::io::{BufReader, Read};

use crate::{Config, NonLocalFree};

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// obj-alloc.
    Allocate,
    /// obj-free.
    Free,
    /// The software handler empties a thread's buffer of non-local frees.
    Batch,
}

/// An operation.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// What was done.
    pub kind: Kind,
    /// By which thread.
    pub lane: usize,
    /// obj-alloc: bytes asked for.
    pub size: u64,
    /// 0, or the shim's number of an exception.
    pub outcome: u32,
    /// The object's address.
    pub address: u64,
}

/// A journal that is being read.
pub struct Journal {
    file: BufReader<File>,
    left: u64,
    /// Its number of operations.
    pub records: u64,
    /// The parameters that the shim was built with.
    pub config: Config,
}

impl Journal {
    /// Opens a journal.
    ///
    /// # Errors
    /// The file cannot be read, or is no journal.
    pub fn open(path: &str) -> Result<Journal, String> {
        let mut file = BufReader::new(File::open(path).map_err(|error| error.to_string())?);
        let [magic, records, flags, batch] = words(&mut file)?;
        if magic != u64::from_le_bytes(*b"memento1") {
            return Err("not a journal of libmemento.so".to_owned());
        }
        let config = Config {
            eager: flags & 1 != 0,
            whole_pages: flags & 2 != 0,
            non_local_free: if batch == 0 { NonLocalFree::Hardware } else { NonLocalFree::Batch },
            batch_objects: batch as usize,
            drain_at_switch: false,
            ..Config::default()
        };
        Ok(Journal { file, left: records, records, config })
    }

    fn read(&mut self) -> Result<Record, String> {
        let [head, address] = words(&mut self.file)?;
        let kind = match head as u8 {
            1 => Kind::Allocate,
            2 => Kind::Free,
            3 => Kind::Batch,
            other => return Err(format!("unknown operation {other}")),
        };
        let (lane, size) = ((head >> 8) as usize & 0xff, head >> 16 & 0xffff);
        Ok(Record { kind, lane, size, outcome: (head >> 32) as u32, address })
    }
}

impl Iterator for Journal {
    type Item = Result<Record, String>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        Some(self.read())
    }
}

fn words<const N: usize>(file: &mut impl Read) -> Result<[u64; N], String> {
    let mut words = [0; N];
    for word in &mut words {
        let mut bytes = [0; 8];
        file.read_exact(&mut bytes).map_err(|error| format!("cut short: {error}"))?;
        *word = u64::from_le_bytes(bytes);
    }
    Ok(words)
}
