//! The line to a process that is to be taken, or that is restored: a socket, by which each tells the other
//! how far it is. The worker has the other end, or in a VM the agent: here is what both know of it.

use std::time::Duration;

use crate::RUNS;

/// What a process writes that waits to be taken. One that runs writes [`RUNS`].
pub const READY: u8 = b'W';
/// What precedes an error.
const FAILS: u8 = b'E';
/// The longest message that is read.
pub const MESSAGE_BYTES: usize = 2048;

/// What the process says is wrong, or that it says nothing in time. All other errors may be a kill's.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Fault(pub String);

impl Fault {
    /// It has said nothing for so long.
    pub fn late(limit: Duration) -> Fault {
        Fault(format!("not done after {} s", limit.as_secs()))
    }
}

/// Whether a message begins with `wanted`, [`READY`] or [`RUNS`].
///
/// # Errors
/// What the process says instead; `None` if the message is empty: the process has ended.
pub fn check(message: &[u8], wanted: u8) -> Result<(), Option<Fault>> {
    debug_assert!([READY, RUNS].contains(&wanted));
    match message {
        [] => Err(None),
        [first, ..] if *first == wanted => Ok(()),
        [FAILS, why @ ..] | why => Err(Some(Fault(String::from_utf8_lossy(why).into_owned()))),
    }
}
