//! Open files. Standard streams and the descriptor that the process waits at are the launcher's to give.
//! Files that are open for reading are opened anew, by the paths that they have inside, and all files of the
//! folder that each process has for itself. Channels and pairs of sockets inside of the process are made
//! anew, and so is the connection on which it waits for an answer.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::channels::{self, Channel, Pipe};
use crate::connection::{self, Connection, Request};
use crate::plan::{FREE, Operation, Plan, Slot, moved_away};
use crate::socket_pairs::{self, End};
use crate::tracee::Tracee;
use crate::{Error, Limits, PAGES, WAITS, While, status};

/// The first descriptor behind the standard streams.
const FIRST: u64 = 3;
/// Devices without state, which may be open for writing, too.
const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];
/// More files than this are not restored.
const MOST: usize = 64;

/// A descriptor that is to be open again.
struct Open {
    descriptor: u64,
    flags: i32,
    /// Of the file or channel that it leads to.
    inode: u64,
    what: What,
}

enum What {
    File { path: PathBuf, position: u64 },
    Channel(Channel),
    Connection(Connection),
    Socket(End),
}

fn read(tracee: &Tracee, own: Option<&Path>, request: Option<Request<'_>>) -> Result<Vec<Open>, Error> {
    let process = tracee.process;
    let mut all = Vec::new();
    let root = status::root(process)?;
    for entry in fs::read_dir(format!("/proc/{process}/fd")).during("its files cannot be listed")? {
        let entry = entry.during("its files cannot be listed")?;
        let Some(descriptor) = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok()) else {
            continue;
        };
        if descriptor < FIRST || descriptor == WAITS as u64 {
            continue;
        }
        let link = fs::read_link(entry.path()).during("its files cannot be listed")?;
        let about = status::text(process, &format!("fdinfo/{descriptor}"))?;
        let flags = status::value(&about, "flags").and_then(|text| i32::from_str_radix(text, 8).ok());
        let metadata = fs::metadata(entry.path());
        let shown = link.display().to_string();
        let (Some(flags), true) = (flags, descriptor < FREE) else {
            return Err(Error::Unsupported(format!("the open file {descriptor} ({shown})")));
        };
        let what = if let Some(channel) = channels::parse(&shown, &about, flags)? {
            What::Channel(channel)
        } else if let Some(connection) = connection::find(process, &shown, flags, request)? {
            What::Connection(connection)
        } else if let Some(end) = socket_pairs::find(tracee, descriptor, &shown, flags)? {
            What::Socket(end)
        } else {
            let is_regular = metadata.as_ref().is_ok_and(|about| about.is_file());
            let path = status::inside(&root, link);
            file(path, descriptor, flags, &about, is_regular, own)?
        };
        if all.len() == MOST {
            return Err(Error::Unsupported(format!("more than {MOST} open files")));
        }
        let inode = metadata.map(|about| about.ino()).unwrap_or_default();
        all.push(Open { descriptor, flags, inode, what });
    }
    Ok(all)
}

/// A file that can be opened anew, by its path inside.
fn file(
    path: PathBuf,
    descriptor: u64,
    flags: i32,
    about: &str,
    is_regular: bool,
    own: Option<&Path>,
) -> Result<What, Error> {
    let position = status::value(about, "pos").and_then(|text| text.parse().ok());
    let is_device = DEVICES.iter().any(|device| path.as_os_str() == *device);
    let shown = path.display();
    let (Some(position), true) = (position, is_device || is_regular && path.is_absolute()) else {
        return Err(Error::Unsupported(format!("the open file {descriptor} ({shown})")));
    };
    let is_own = own.is_some_and(|own| path.starts_with(own));
    let is_read = flags & libc::O_ACCMODE == libc::O_RDONLY && flags & libc::O_PATH == 0;
    if !is_device && !is_own && !is_read || path.to_string_lossy().ends_with(" (deleted)") {
        return Err(Error::Unsupported(format!("the file {shown}, which is open for writing or deleted,")));
    }
    Ok(What::File { path, position })
}

/// Appends what opens the process's files again; closes what the restorer has opened. After it no slot of a
/// mapping's file is valid.
///
/// # Errors
/// It has a file that cannot be opened anew, or not the connection of the request.
pub fn plan(
    tracee: &Tracee,
    plan: &mut Plan,
    limits: Limits<'_>,
    request: Option<Request<'_>>,
) -> Result<(), Error> {
    let waits = WAITS as u64;
    const { assert!(PAGES > WAITS) };
    plan.push(Operation::call(libc::SYS_close_range, &[FIRST, waits - 1, 0]))?;
    plan.push(Operation::call(libc::SYS_close_range, &[waits + 1, u32::MAX.into(), 0]))?;
    let all = read(tracee, limits.own_folder, request)?;
    let connections = all.iter().filter(|open| matches!(open.what, What::Connection(_))).count();
    if connections != request.iter().len() {
        return Err(Error::Unsupported(
            "a connection to the Runtime API that is open twice or closed".into(),
        ));
    }
    // Pairs first, while their numbers are known.
    let mut made = pipes(tracee.process, &all, plan)?;
    made.extend(sockets(tracee, &all, plan)?);
    for (open, end) in made {
        put(plan, open, end)?;
    }
    for open in &all {
        let made = match &open.what {
            What::File { path, .. } => {
                let path = plan.text(path.as_os_str().as_encoded_bytes())?;
                let opening = open.flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC) | libc::O_CLOEXEC;
                plan.push_kept(Operation::call(libc::SYS_open, &[path, opening as u64]))?
            }
            What::Channel(channel) => match channels::making(channel, open.flags) {
                Some(making) => plan.push_kept(making)?,
                None => continue,
            },
            What::Connection(connection) => {
                let request = request.expect("one is found for a request alone");
                connection::making(plan, *connection, open.flags, request)?
            }
            What::Socket(_) => continue,
        };
        // Away from the numbers that are still to be given.
        let away = plan.push_kept(moved_away(0).plus(0, made))?;
        plan.push(Operation::call(libc::SYS_close, &[0]).plus(0, made))?;
        put(plan, open, away)?;
        if let What::File { position: position @ 1.., .. } = open.what {
            let seek = [open.descriptor, position, libc::SEEK_SET as u64];
            plan.push(Operation::call(libc::SYS_lseek, &seek))?;
        }
    }
    for open in &all {
        let What::Channel(Channel::Epoll(watched)) = &open.what else { continue };
        for one in watched {
            let same = |other: &Open| (other.descriptor, other.inode) == (one.descriptor, one.inode);
            if one.descriptor >= FIRST && !all.iter().any(same) {
                return Err(Error::Unsupported(format!(
                    "an epoll of the file {}, which is closed,",
                    one.descriptor
                )));
            }
        }
        channels::plan_watched(plan, open.descriptor, watched)?;
    }
    Ok(())
}

/// Makes all pipes; returns what is to be put where.
fn pipes<'a>(process: libc::pid_t, all: &'a [Open], plan: &mut Plan) -> Result<Vec<(&'a Open, Slot)>, Error> {
    let end = |open: &Open| match open.what {
        What::Channel(Channel::Pipe { inode, writes }) => Some((open.descriptor, inode, writes)),
        _ => None,
    };
    let ends: Vec<_> = all.iter().filter_map(end).collect();
    let mut made = Vec::new();
    for Pipe { reading, writing, unread } in channels::pair(process, &ends)? {
        let of = |descriptor| all.iter().find(|open| open.descriptor == descriptor).expect("one of all");
        let both = [of(reading), of(writing)];
        let slots = channels::plan_pipe(plan, FIRST, both.map(|open| open.flags), &unread)?;
        made.extend(both.into_iter().zip(slots));
    }
    Ok(made)
}

/// Makes all pairs of sockets; returns what is to be put where.
fn sockets<'a>(tracee: &Tracee, all: &'a [Open], plan: &mut Plan) -> Result<Vec<(&'a Open, Slot)>, Error> {
    let of = |end: End| all.iter().filter(move |open| matches!(open.what, What::Socket(it) if it == end));
    let mut made = Vec::new();
    for open in of(End::Closed) {
        made.push((open, socket_pairs::making(plan, FIRST, open.flags, None)?.0));
    }
    let descriptors: Vec<u64> = of(End::Open).map(|open| open.descriptor).collect();
    for [first, second] in socket_pairs::pair(tracee, &descriptors)? {
        let find =
            |descriptor| of(End::Open).find(|open| open.descriptor == descriptor).expect("one of them");
        let (first, second) = (find(first), find(second));
        let (one, other) = socket_pairs::making(plan, FIRST, first.flags, Some(second.flags))?;
        made.extend(
            [(first, Some(one)), (second, other)].into_iter().filter_map(|(open, slot)| Some((open, slot?))),
        );
    }
    Ok(made)
}

/// Gives a descriptor that was moved away its number.
fn put(plan: &mut Plan, open: &Open, away: Slot) -> Result<(), Error> {
    let closes = (open.flags & libc::O_CLOEXEC) as u64;
    plan.push(Operation::call(libc::SYS_dup3, &[0, open.descriptor, closes]).plus(0, away))?;
    plan.push(Operation::call(libc::SYS_close, &[0]).plus(0, away))
}
