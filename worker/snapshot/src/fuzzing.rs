//! The parts of taking that need no process, for `fuzz/`.

use std::io::Read;
use std::ops::Range;
use std::path::Path;

use crate::plan::{Operation, Plan, VDSO, Window};
use crate::{Error, address_space, connection, memory, program, socket_pairs, status, threads};

/// The window that a process with these mappings leaves free, and their addresses; `None` if it cannot be
/// taken.
pub fn areas(smaps: &[u8], root: &Path, own: Option<&Path>) -> Option<(Range<u64>, Vec<Range<u64>>)> {
    let all = address_space::parse(smaps, root).ok()?;
    let window = memory::free_window(&all).ok()?;
    all.iter().try_for_each(|mapping| address_space::check(mapping, own)).ok()?;
    let ranges = all.into_iter().map(|mapping| mapping.range).collect();
    Some((window.code()..window.end(), ranges))
}

/// Reads the fields of /proc/PID/stat.
pub fn stat(text: &str) {
    let words = address_space::Stat::of(text).words();
    assert_eq!(words.start % 4096, 0);
}

/// Reads tables of sockets.
pub fn sockets(text: &str, inode: u64) {
    connection::parse(text, inode);
    socket_pairs::is_nameless(text, inode);
}

pub use status::value;

/// The extended registers of a frame, from those that the kernel shows.
///
/// # Errors
/// They are not whole, or of a kind that is not restored.
pub fn extended(all: &[u8]) -> Result<Vec<u8>, Error> {
    threads::extended_part(all)
}

/// A call of a plan; `how` says what of its result is kept or wanted.
pub struct Order {
    /// The system call.
    pub number: i64,
    /// Its first arguments.
    pub arguments: [u64; 5],
    /// Whether the result is kept, wanted, or added.
    pub how: u8,
}

/// The program of a plan with these orders and data.
///
/// # Errors
/// The plan has too much.
pub fn program(window: u64, orders: &[Order], data: &[Vec<u8>], threads: u8) -> Result<Vec<u8>, Error> {
    let mut plan = Plan::new(Window(window << 36));
    for bytes in data {
        let at = plan.data(bytes)?;
        assert!(at % 64 == 0 && at >= plan.window.data() && at + bytes.len() as u64 <= plan.window.scratch());
    }
    for Order { number, arguments, how } in orders {
        let operation = Operation::call(*number, arguments);
        match how % 4 {
            0 => drop(plan.push_kept(operation)?),
            1 => plan.push(operation.or_not())?,
            2 => plan.push(operation.at_its_place())?,
            _ => plan.push(operation.plus(usize::from(how >> 2) % 5, VDSO))?,
        }
    }
    let begun = (0..threads).map(|_| plan.push_thread([0; 5])).collect::<Result<Vec<_>, _>>()?;
    begun.iter().for_each(|thread| plan.thread_begins(thread));
    let (mut file, mut bytes) = (std::fs::File::from(program::make(&plan)?), Vec::new());
    file.read_to_end(&mut bytes).map_err(|error| Error::System("its program cannot be read", error))?;
    Ok(bytes)
}
