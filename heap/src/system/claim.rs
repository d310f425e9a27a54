//! A file that one process records into, and no other (traces, profiles). Its name is made by O_EXCL or found
//! empty, never shortened, and locked (flock) while the process lives: what another program or container, or
//! this program before an exec, has recorded stays as it is.
//!
//! The descriptor has a number that programs seldom reach: they close, count and reuse low ones.

use core::fmt::Write;

use crate::system::files;
use crate::system::os;
use crate::system::paths::{self, PATH_BYTES};
use crate::system::raw::syscall;
use crate::system::text::{Text, warn};

/// How many names are tried: NAME, NAME.2, NAME.3 and so on.
const NAMES: u32 = 1000;
/// The least number of the descriptor, where the process may have so many.
pub const LEAST_NUMBER: usize = 1000;

/// Why there is no file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Another process records into it. Without `%p` that is the normal case for each program that the
    /// recorded one starts, so there is no message.
    InUse,
    /// It is there already, with contents.
    Exists,
    /// The error's number.
    Failed(i32),
}

/// A claimed file.
pub struct Claimed {
    /// Its descriptor.
    pub fd: i32,
    /// Device and number.
    pub identity: [u64; 2],
    /// It can be written at any place; false for devices and pipes.
    pub is_regular: bool,
    /// Its name, ending in NUL.
    pub name: Text<PATH_BYTES>,
}

/// Claims the file that `pattern` names, in which `%p` stands for the process id.
///
/// # Errors
/// See [`Refusal`].
pub fn claim(pattern: &[u8], pid_at: usize) -> Result<Claimed, Refusal> {
    let of_each_process = pattern.windows(2).any(|two| two == b"%p");
    let mut expanded = [0; PATH_BYTES];
    let Some(first) = paths::expand(pattern, &mut expanded) else {
        return Err(Refusal::Failed(libc::ENAMETOOLONG));
    };
    let mut is_numbered = false;
    for number in 1..NAMES {
        let mut name = Text::new();
        // The path is bytes, not text.
        name.push(&first[..first.len() - 1]);
        if number > 1 {
            let _ = write!(name, ".{number}");
        }
        name.push(&[0]);
        if name.bytes().last() != Some(&0) {
            return Err(Refusal::Failed(libc::ENAMETOOLONG));
        }
        match claim_name(&name, pid_at) {
            Ok(claimed) => return Ok(claimed),
            Err(Taken::ByThisProcess) => is_numbered = true,
            Err(Taken::InUse | Taken::Exists) if of_each_process || is_numbered => {}
            Err(Taken::InUse) => return Err(Refusal::InUse),
            Err(Taken::Exists) => return Err(Refusal::Exists),
            Err(Taken::Failed(error)) => return Err(Refusal::Failed(error)),
        }
    }
    Err(Refusal::Exists)
}

/// Whose a name is.
enum Taken {
    InUse,
    Exists,
    /// This process recorded there before it ran another program (exec).
    ByThisProcess,
    Failed(i32),
}

fn claim_name(name: &Text<PATH_BYTES>, pid_at: usize) -> Result<Claimed, Taken> {
    let path = name.bytes();
    match files::try_open(path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL) {
        Ok(fd) => {
            // Another process may have found it empty, between the two calls.
            if lock(fd) == Err(libc::EWOULDBLOCK) {
                files::close(fd);
                return Err(Taken::InUse);
            }
            return Ok(claimed(fd, true, name));
        }
        Err(libc::EEXIST) => {}
        Err(error) => return Err(Taken::Failed(error)),
    }
    if !files::is_regular_path(path) {
        return files::try_open(path, libc::O_WRONLY)
            .map(|fd| claimed(fd, false, name))
            .map_err(Taken::Failed);
    }
    let fd = files::try_open(path, libc::O_RDWR | libc::O_NONBLOCK).map_err(Taken::Failed)?;
    let locked = lock(fd);
    let mut head = [0; 32];
    let length = files::read_head(fd, &mut head);
    if locked.is_ok() && length == 0 {
        return Ok(claimed(fd, true, name));
    }
    files::close(fd);
    let pid = u32::from_le_bytes(head[pid_at..pid_at + 4].try_into().unwrap_or_default());
    Err(match locked {
        Err(libc::EWOULDBLOCK) => Taken::InUse,
        _ if pid == os::process_id() => Taken::ByThisProcess,
        _ => Taken::Exists,
    })
}

/// Locks the file until its last descriptor is closed.
fn lock(fd: i32) -> Result<(), i32> {
    // SAFETY: takes plain numbers.
    let result = unsafe { syscall!(SYS_flock, fd, libc::LOCK_EX | libc::LOCK_NB) };
    if result == 0 { Ok(()) } else { Err(-result as i32) }
}

fn claimed(fd: i32, is_regular: bool, name: &Text<PATH_BYTES>) -> Claimed {
    let fd = files::at_high_number(fd, LEAST_NUMBER);
    Claimed { fd, identity: files::identity(fd).unwrap_or_default(), is_regular, name: name.clone() }
}

impl Claimed {
    /// Gives the file up, and removes it: nothing could be written.
    pub fn remove(self) {
        files::close(self.fd);
        if self.is_regular {
            files::remove(self.name.bytes());
        }
    }
}

/// Tells the user why there is no recording; not where another process has it.
pub fn explain(refusal: Refusal, kind: &str, pattern: &[u8], result: &str) {
    let shown = core::str::from_utf8(pattern).unwrap_or("(not UTF-8)");
    match refusal {
        Refusal::InUse => {}
        Refusal::Exists => {
            warn(format_args!("{kind} {shown} exists already; {result}. Remove it, or put %p into its name"))
        }
        Refusal::Failed(error) => {
            warn(format_args!("{kind} {shown} cannot be created (error {error}); {result}"));
        }
    }
}
