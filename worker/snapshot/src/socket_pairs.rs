//! Pairs of sockets inside of a process, by which its threads wake one another: the event loop of Python has
//! one. Of some one end is closed: Java keeps such a socket, which leads nowhere, to put it in place of those
//! that it closes.
//!
//! The kernel's files do not say which two are a pair. So the stopped process itself sends a byte into each
//! socket: it arrives at the other end, where it is taken out again before any thread could see it.

use crate::connection::{FLAGS, inode};
use crate::plan::{Operation, Plan, Slot};
use crate::threads::below_stack;
use crate::tracee::Tracee;
use crate::{Error, status};

/// A socket of a pair, by what its other end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Open in this process, or so it seems: [`pair`] finds it.
    Open,
    /// Closed.
    Closed,
}

/// Which end a descriptor with this link is; `None` if it is something else.
///
/// # Errors
/// It holds bytes.
pub fn find(tracee: &Tracee, descriptor: u64, link: &str, flags: i32) -> Result<Option<End>, Error> {
    let Some(inode) = inode(link) else { return Ok(None) };
    let table = status::text(tracee.process, "net/unix").unwrap_or_default();
    if flags & !FLAGS != libc::O_RDWR || !is_nameless(&table, inode) {
        return Ok(None);
    }
    match receive(tracee, descriptor, libc::MSG_PEEK)? {
        0 => Ok(Some(End::Closed)),
        NOTHING => Ok(Some(End::Open)),
        1 => Err(Error::Unsupported(format!("the socket {descriptor}, which holds bytes,"))),
        _ => Ok(None),
    }
}

/// Pairs the sockets with these descriptors, both ends of which are open.
///
/// # Errors
/// The other end of one is not among them.
pub fn pair(tracee: &Tracee, sockets: &[u64]) -> Result<Vec<[u64; 2]>, Error> {
    let mut pairs: Vec<[u64; 2]> = Vec::new();
    for &socket in sockets {
        if pairs.as_flattened().contains(&socket) {
            continue;
        }
        let main = &tracee.threads()[0];
        let how = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u64;
        let sent = tracee.call(main, libc::SYS_sendto, &[socket, below_stack(main), 1, how, 0, 0])?;
        let mut other = None;
        for &end in sockets {
            // All that is there is taken out, the same socket's second descriptor or not.
            if sent == 1 && receive(tracee, end, 0)? == 1 {
                other = other.or(Some(end));
            }
        }
        match other.filter(|other| *other != socket && !pairs.as_flattened().contains(other)) {
            Some(other) => pairs.push([socket, other]),
            None => {
                return Err(Error::Unsupported(format!(
                    "the socket {socket}, which leads out of the process or is open twice,"
                )));
            }
        }
    }
    Ok(pairs)
}

/// What `receive` gives where nothing is there.
const NOTHING: i64 = -(libc::EAGAIN as i64);

/// Receives a byte, if there is one.
fn receive(tracee: &Tracee, socket: u64, how: i32) -> Result<i64, Error> {
    let main = &tracee.threads()[0];
    let how = (how | libc::MSG_DONTWAIT) as u64;
    tracee.call(main, libc::SYS_recvfrom, &[socket, below_stack(main), 1, how, 0, 0])
}

/// Whether a socket in /proc/net/unix is a stream that is connected and has no name.
pub fn is_nameless(table: &str, inode: u64) -> bool {
    table.lines().skip(1).any(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        matches!(words[..], [_, _, _, _, "0001", "03", number] if number.parse() == Ok(inode))
    })
}

/// Makes a pair while no descriptor from `free` on is open but [`crate::WAITS`]; returns both, moved away.
/// Without flags of the second, that is closed.
///
/// # Errors
/// The plan has too much.
pub fn making(
    plan: &mut Plan,
    free: u64,
    first: i32,
    second: Option<i32>,
) -> Result<(Slot, Option<Slot>), Error> {
    let at = plan.data(&[0; 8])?;
    let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u64;
    plan.push(Operation::call(libc::SYS_socketpair, &[libc::AF_UNIX as u64, kind, 0, at]))?;
    let first = plan.push_away(free, first)?;
    let Some(flags) = second else {
        plan.push(Operation::call(libc::SYS_close, &[free + 1]))?;
        return Ok((first, None));
    };
    Ok((first, Some(plan.push_away(free + 1, flags)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nameless_streams_are_found() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 777\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 778 /run/x\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 779\n";
        assert!(is_nameless(table, 777));
        assert!([778, 779, 7].into_iter().all(|inode| !is_nameless(table, inode)));
    }
}
