//! Channels inside of a process: pipes of which it has both ends, eventfds, and epolls that watch its own
//! descriptors. Event loops are made of these: libuv has one of each for each loop, and one pipe whose only
//! byte is a lock.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, SpliceFlags};

use crate::plan::{Operation, Plan, Slot};
use crate::{Error, While, status};

/// Flags of an open pipe or eventfd that are set again; others are unknown here.
const FLAGS: i32 = libc::O_ACCMODE | libc::O_NONBLOCK | libc::O_CLOEXEC;
/// Bytes in a pipe, at most: as many are written at once.
const MOST_UNREAD: u64 = 4096;
/// Watched descriptors of an epoll, at most.
const MOST_WATCHED: usize = 256;

/// What a descriptor is.
pub enum Channel {
    /// An end of a pipe, by the pipe's inode.
    Pipe { inode: u64, writes: bool },
    /// An eventfd.
    Event { count: u32, semaphore: bool },
    /// An epoll, and what it watches.
    Epoll(Vec<Watched>),
}

/// A descriptor that an epoll watches, and the mark by which the process knows it.
pub struct Watched {
    pub descriptor: u64,
    events: u32,
    mark: u64,
    /// The inode of what is watched: its number may be another file's by now.
    pub inode: u64,
}

/// The kind of a descriptor whose link and fdinfo say this; none if it is no channel.
///
/// # Errors
/// It is one that is unknown here.
pub fn parse(link: &str, about: &str, flags: i32) -> Result<Option<Channel>, Error> {
    let unknown = |what: &str| Err(Error::Unsupported(what.into()));
    let channel = if let Some(inode) = link.strip_prefix("pipe:[") {
        let inode = inode.strip_suffix(']').and_then(|number| number.parse().ok());
        let Some(inode) = inode else { return unknown("a pipe without a number") };
        Channel::Pipe { inode, writes: flags & libc::O_ACCMODE != libc::O_RDONLY }
    } else if link == "anon_inode:[eventfd]" {
        let count = status::value(about, "eventfd-count");
        let Some(count) = count.and_then(|text| u32::from_str_radix(text, 16).ok()) else {
            return unknown("an eventfd whose count the kernel does not show");
        };
        // Before Linux 6.5 the kernel does not tell, and almost none is one.
        let semaphore = status::value(about, "eventfd-semaphore").is_some_and(|text| text != "0");
        Channel::Event { count, semaphore }
    } else if link == "anon_inode:[eventpoll]" {
        let watched = about.lines().filter(|line| line.starts_with("tfd:")).map(watched);
        let Some(watched) = watched.collect::<Option<Vec<_>>>() else {
            return unknown("an epoll whose descriptors the kernel does not show");
        };
        if watched.len() > MOST_WATCHED {
            return unknown("an epoll of that many descriptors");
        }
        Channel::Epoll(watched)
    } else {
        return Ok(None);
    };
    if !matches!(channel, Channel::Epoll(_)) && flags & !FLAGS != 0 {
        return Err(Error::Unsupported(format!("a channel with flags {flags:#o}")));
    }
    Ok(Some(channel))
}

/// A line of an epoll's fdinfo: `tfd: 12 events: 19 data: c pos:0 ino:fc12 sdev:f`.
fn watched(line: &str) -> Option<Watched> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let ["tfd:", descriptor, "events:", events, "data:", mark, _, inode, ..] = words[..] else { return None };
    Some(Watched {
        descriptor: descriptor.parse().ok()?,
        events: u32::from_str_radix(events, 16).ok()?,
        mark: u64::from_str_radix(mark, 16).ok()?,
        inode: u64::from_str_radix(inode.strip_prefix("ino:")?, 16).ok()?,
    })
}

/// A pipe: its ends, as descriptors, and what was written to it and not read.
pub struct Pipe {
    pub reading: u64,
    pub writing: u64,
    pub unread: Vec<u8>,
}

/// Pairs the ends of pipes, given as descriptor, inode, and whether it writes.
///
/// # Errors
/// An end is missing, or is there twice, or a pipe holds much.
pub fn pair(process: libc::pid_t, ends: &[(u64, u64, bool)]) -> Result<Vec<Pipe>, Error> {
    let mut found: BTreeMap<u64, (Option<u64>, Option<u64>)> = BTreeMap::new();
    for &(descriptor, inode, writes) in ends {
        let (reading, writing) = found.entry(inode).or_default();
        let end = if writes { writing } else { reading };
        if end.replace(descriptor).is_some() {
            return Err(Error::Unsupported(format!("the pipe {descriptor}, an end of which is open twice,")));
        }
    }
    let mut pipes = Vec::new();
    for ends in found.into_values() {
        let (Some(reading), Some(writing)) = ends else {
            let descriptor = ends.0.or(ends.1).unwrap_or_default();
            return Err(Error::Unsupported(format!(
                "the pipe {descriptor}, which leads out of the process,"
            )));
        };
        pipes.push(Pipe { reading, writing, unread: unread(process, reading)? });
    }
    Ok(pipes)
}

/// What is in a pipe, which keeps it.
fn unread(process: libc::pid_t, descriptor: u64) -> Result<Vec<u8>, Error> {
    let path = format!("/proc/{process}/fd/{descriptor}");
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let pipe = rustix::fs::open(path, flags, Mode::empty()).during("its pipe cannot be opened")?;
    let bytes = rustix::io::ioctl_fionread(&pipe).during("its pipe cannot be read")?;
    let mut content = vec![0; bytes.min(MOST_UNREAD + 1) as usize];
    if content.is_empty() {
        return Ok(content);
    }
    let (ours, copied) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).during("no descriptor is left")?;
    let count = rustix::pipe::tee(&pipe, &copied, content.len(), SpliceFlags::NONBLOCK);
    let count = count.during("its pipe cannot be read")?;
    if content.len() as u64 > MOST_UNREAD || count != content.len() {
        return Err(Error::Unsupported(format!("the pipe {descriptor}, which holds {bytes} bytes,")));
    }
    File::from(ours).read_exact(&mut content).during("its pipe cannot be read")?;
    Ok(content)
}

/// Makes a pipe while no descriptor from `free` on is open but [`crate::WAITS`]: `free` and the next number
/// become its ends. Returns both, moved away.
///
/// # Errors
/// The plan has too much.
pub fn plan_pipe(plan: &mut Plan, free: u64, flags: [i32; 2], unread: &[u8]) -> Result<[Slot; 2], Error> {
    let at = plan.data(&[0; 8])?;
    plan.push(Operation::call(libc::SYS_pipe2, &[at, libc::O_CLOEXEC as u64]))?;
    if !unread.is_empty() {
        let at = plan.data(unread)?;
        plan.push(Operation::call(libc::SYS_write, &[free + 1, at, unread.len() as u64]))?;
    }
    Ok([plan.push_away(free, flags[0])?, plan.push_away(free + 1, flags[1])?])
}

/// The operation that makes an eventfd or an epoll, whose result is its descriptor.
pub fn making(channel: &Channel, flags: i32) -> Option<Operation> {
    let closed = libc::O_CLOEXEC as u64;
    match channel {
        Channel::Pipe { .. } => None,
        Channel::Event { count, semaphore } => {
            let kind = if *semaphore { libc::EFD_SEMAPHORE as u64 } else { 0 };
            let waits = (flags & libc::O_NONBLOCK) as u64;
            Some(Operation::call(libc::SYS_eventfd2, &[(*count).into(), kind | waits | closed]))
        }
        Channel::Epoll(_) => Some(Operation::call(libc::SYS_epoll_create1, &[closed])),
    }
}

/// Has an epoll watch what it watched, once all descriptors are at their places.
///
/// # Errors
/// The plan has too much.
pub fn plan_watched(plan: &mut Plan, epoll: u64, watched: &[Watched]) -> Result<(), Error> {
    for Watched { descriptor, events, mark, .. } in watched {
        // `struct epoll_event`, which is packed on x86-64.
        let at = plan.data(&[&events.to_le_bytes()[..], &mark.to_le_bytes()].concat())?;
        let arguments = [epoll, libc::EPOLL_CTL_ADD as u64, *descriptor, at];
        plan.push(Operation::call(libc::SYS_epoll_ctl, &arguments))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watched_descriptors_are_read() {
        let line = "tfd:       12 events:       19 data:     7fff0000000c  pos:0 ino:fc12 sdev:f";
        let Watched { descriptor, events, mark, inode } = watched(line).unwrap();
        assert_eq!((descriptor, events, mark, inode), (12, 0x19, 0x7fff_0000_000c, 0xfc12));
        assert!(watched("tfd: x events: 19 data: c").is_none());
        assert!(watched("tfd: 1 events: 19").is_none());
    }

    #[test]
    fn files_and_sockets_are_no_channels() {
        assert!(parse("/etc/passwd", "", 0).unwrap().is_none());
        assert!(parse("socket:[7]", "", 0).unwrap().is_none());
        assert!(parse("pipe:[x]", "", 0).is_err());
        assert!(parse("anon_inode:[eventfd]", "pos: 0\n", 0).is_err());
        assert!(parse("pipe:[7]", "", libc::O_DIRECT).is_err());
    }
}
