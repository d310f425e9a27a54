//! Snapshots: the memory and state of a process that waits, taken from outside, and laid out again in a
//! fresh process.
//!
//! ```text
//!   a process that waits ──take──► Snapshot: pages (sealed memory file), program (sealed memory file)
//!                                                  │                        │
//!   a fresh process, confined ◄──execveat──────────┼────────────────────────┘
//!     lays its mappings out privately from ────────┘ without copying a page, and returns into the call
//!     in which the other one waited
//! ```
//! Taking needs the right to trace the process. Restoring needs none: the program makes ordinary system
//! calls, so it runs inside a finished sandbox. A process whose state is not wholly known here cannot be
//! taken, and [`Error::Unsupported`] says what it has; it goes on unharmed. All that is read of it is
//! untrusted: numbers and bytes, which only the restored process uses, with the rights it has anyway.
//!
//! No pages are prepared ahead, as REAP (ASPLOS '22) does for VMs. It was tried: the pages that a first
//! answer touches were recorded, and a thread of later processes populated them while these went on. First
//! work became faster in a bare process (2.1 → 0.9 ms). In `make demo` restores took 1 to 2 ms longer, and
//! first answers came no sooner (35 and 37 ms, 35 without). A page costs a minor fault, as its memory is
//! there.
//!
//! | module | content |
//! |---|---|
//! | [`mod@take`] | the order of taking: stop, read, plan, continue |
//! | [`tracee`] | ptrace: registers and system calls of a stopped process |
//! | [`status`] | what /proc says of it that must be as its parent's |
//! | [`address_space`] | its mappings, and their properties |
//! | [`memory`] | which of their pages are its own, and how they are mapped again |
//! | [`files`], [`channels`], [`own_folder`] | its open files, pipes and epolls; the folder that it has for itself |
//! | [`connection`], [`socket_pairs`] | the connection on which it waits for an answer; sockets inside of it |
//! | [`function_call`] | a function of its own that it calls before it is taken |
//! | [`threads`] | its threads, and the frames by which rt_sigreturn continues them |
//! | [`plan`], [`program`], [`restorer`] | the list of system calls, and the program that makes them |
//! | [`mod@line`] | what it writes to those who take or restore it |
//! | [`saved`] | a snapshot that outlives the process that took it |

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("snapshots support Linux on x86-64 only");

mod address_space;
mod channels;
mod connection;
mod files;
mod function_call;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod line;
mod memory;
mod own_folder;
mod plan;
mod program;
mod restore;
mod restorer;
pub mod saved;
mod socket_pairs;
mod status;
mod take;
mod threads;
mod tracee;

pub use address_space::MappedFile;
pub use own_folder::{Entry, lay_out};
pub use restore::{restore, wait_at};
pub use restorer::FAILED;

pub use connection::Request;
pub use function_call::Function;
pub use take::{Limits, PAGES, RUNS, Snapshot, WAITS, Waiting, take, take_once_it_waits};

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process has something that cannot be restored.
    #[error("{0} cannot be restored")]
    Unsupported(String),
    /// A call of the system failed: the process has ended, or may not be traced.
    #[error("{0}: {1}")]
    System(&'static str, std::io::Error),
}

/// For errors of the system, what was being done.
trait While<T> {
    fn during(self, what: &'static str) -> Result<T, Error>;
}

impl<T, E: Into<std::io::Error>> While<T> for Result<T, E> {
    fn during(self, what: &'static str) -> Result<T, Error> {
        self.map_err(|error| Error::System(what, error.into()))
    }
}
