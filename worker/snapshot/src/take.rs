//! The order of taking: stop the process, read it, make the plan, let it continue.

use std::io::Error as IoError;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use libc::pid_t;

use crate::address_space::{self, MappedFile, mappings};
use crate::connection::Request;
use crate::function_call::Function;
use crate::memory::{self, OwnPages};
use crate::own_folder::{self, Entry};
use crate::plan::{Operation, Plan};
use crate::threads::{State, below_stack};
use crate::tracee::Tracee;
use crate::{Error, files, program, status, threads};

/// The descriptor at which a process waits to be taken, and at which a restored one reads what differs.
pub const WAITS: RawFd = 9;
/// What a restored process that waited for an answer writes at [`WAITS`] before it goes on, and closes it.
pub const RUNS: u8 = b'K';
/// The descriptor of the snapshot's pages in a process that is to be restored.
pub const PAGES: RawFd = 10;
/// Signals have these numbers.
const SIGNALS: std::ops::RangeInclusive<u64> = 1..=64;
/// `struct sigaction` of the kernel: handler, flags, restorer, mask.
const ACTION_BYTES: usize = 32;
const ITIMERS: [u64; 3] = [0, 1, 2];

/// What a snapshot may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Of the process's own memory and of its folder.
    pub bytes: u64,
    /// A folder that each process has for itself: its files come along, and may be open for writing.
    pub own_folder: Option<&'a Path>,
    /// The folder on a disk that its pages are written to, by a file without a name. Else they are memory.
    pub disk: Option<BorrowedFd<'a>>,
}

/// How a process waits to be taken. It has a line at [`WAITS`] in any case.
#[derive(Clone, Copy, Debug)]
pub enum Waiting<'a> {
    /// Its main thread reads from the line. Restored, it makes up for its anonymous memory being mappings of
    /// a file (`mayfly_keep_anonymous` of the merge library).
    AtLine,
    /// It has sent a request, whose answer it waits for, and knows nothing of snapshots. This function
    /// prepares it so that it makes up for that, too, and returns 0. Where it does not, pages are copied, but
    /// for those of Go, whose runtime relies on nothing of that.
    ForAnswer(Request<'a>, Option<&'a Function>),
}

/// A process that waited. Its files cannot be changed.
#[derive(Debug)]
pub struct Snapshot {
    pub(crate) program: OwnedFd,
    pub(crate) pages: OwnedFd,
    pub(crate) files: Vec<MappedFile>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) bytes: u64,
    pub(crate) size: u64,
    pub(crate) mappings: usize,
    pub(crate) reads_its_line: bool,
    pub(crate) is_on_disk: bool,
    pub(crate) why_copied: Option<String>,
}

impl Snapshot {
    /// The program that a fresh process executes to become the one that was taken. It has
    /// [`Snapshot::pages`] as descriptor [`PAGES`].
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// The memory, and the contents of files; whole pages.
    pub fn pages(&self) -> BorrowedFd<'_> {
        self.pages.as_fd()
    }

    /// Files of the disk whose contents its memory relies on, by their paths inside.
    pub fn files(&self) -> &[MappedFile] {
        &self.files
    }

    /// What its own folder holds; [`lay_out`](crate::lay_out) puts it there again.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether its pages are on the disk, and in memory as far as they were touched. Else they are a sealed
    /// memory file.
    pub fn is_on_disk(&self) -> bool {
        self.is_on_disk
    }

    /// Has the kernel forget pages on the disk that no process maps.
    pub fn drop_unused(&self) {
        if self.is_on_disk {
            program::drop_unused(&self.pages);
        }
    }

    /// Whether a restored process reads from its line what differs. It writes [`RUNS`] there otherwise.
    pub fn reads_its_line(&self) -> bool {
        self.reads_its_line
    }

    /// Why restored processes have copies of its pages; `None` if they share them, or if it was saved.
    pub fn why_copied(&self) -> Option<&str> {
        self.why_copied.as_deref()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of [`Snapshot::pages`].
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Mappings of a restored process.
    pub fn mappings(&self) -> usize {
        self.mappings
    }
}

/// Takes a process that has said that it waits, and may still be on its way into that call.
///
/// # Errors
/// As [`take`], and it does not wait for so long.
pub fn take_once_it_waits(
    process: pid_t,
    waiting: Waiting<'_>,
    limits: Limits<'_>,
    patience: Duration,
) -> Result<Snapshot, Error> {
    let began = Instant::now();
    loop {
        match take(process, waiting, limits) {
            Err(Error::Unsupported(why)) if why.contains("does not wait") && began.elapsed() < patience => {}
            taken => return taken,
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Takes a process that waits. It continues afterwards, whatever the outcome.
///
/// # Errors
/// It has something that cannot be restored, has ended, or may not be traced.
pub fn take(process: pid_t, waiting: Waiting<'_>, limits: Limits<'_>) -> Result<Snapshot, Error> {
    let request = match waiting {
        Waiting::AtLine => None,
        Waiting::ForAnswer(request, _) => Some(request),
    };
    // A thread in a timed call, stopped twice, would no longer show which call that is.
    match request {
        None => status::waits_at_line(process)?,
        Some(_) => threads::all_wait(process)?,
    }
    let tracee = Tracee::stop(process)?;
    status::check(process)?;
    let read = |thread| State::read(&tracee, thread, request.is_none());
    let states: Vec<State> = tracee.threads().iter().map(read).collect::<Result<_, _>>()?;
    let why_copied = prepare(&tracee, waiting)?;
    let own_pages = if why_copied.is_some() { OwnPages::Copied } else { OwnPages::Shared };
    let actions = signal_actions(&tracee)?;
    let brk = tracee.call(&tracee.threads()[0], libc::SYS_brk, &[0])? as u64;
    let all = mappings(process)?;
    let mut plan = Plan::new(memory::free_window(&all)?);
    let on_disk = limits.disk.and_then(program::disk_file);
    let is_on_disk = on_disk.is_some();
    let pages = on_disk.map_or_else(program::memory_file, Ok)?;
    let memory = memory::plan(&tracee, &all, &mut plan, &pages, own_pages, limits)?;
    let entries = match limits.own_folder {
        Some(folder) => own_folder::gather(process, folder, &pages, memory.bytes, limits.bytes)?,
        None => Vec::new(),
    };
    let (pages, size) = match is_on_disk {
        true => program::close_disk(&pages)?,
        false => program::close(pages)?,
    };
    memory::layout(&tracee, brk, &mut plan)?;
    for (signal, action) in &actions {
        let at = plan.data(action)?;
        plan.push(Operation::call(libc::SYS_rt_sigaction, &[*signal, at, 0, 8]))?;
    }
    let folder = std::fs::read_link(format!("/proc/{process}/cwd"))
        .map_err(|error| Error::System("it has ended", error))?;
    let folder = status::inside(&status::root(process)?, folder);
    let folder = plan.text(folder.as_os_str().as_encoded_bytes())?;
    plan.push(Operation::call(libc::SYS_chdir, &[folder]))?;
    let own = status::text(process, "status")?;
    let mask =
        status::value(&own, "Umask").and_then(|text| u64::from_str_radix(text, 8).ok()).unwrap_or(0o22);
    plan.push(Operation::call(libc::SYS_umask, &[mask]))?;
    files::plan(&tracee, &mut plan, limits, request)?;
    let (mut started, mut missing) = (Vec::new(), Vec::new());
    for pair in states.windows(2) {
        missing.extend(pair[1].plan_missing(&pair[0], &mut plan)?);
        started.push(pair[1].plan_start(&mut plan)?);
    }
    if request.is_some() {
        let at = plan.data(&[RUNS])?;
        plan.push(Operation::call(libc::SYS_write, &[WAITS as u64, at, 1]))?;
        plan.push(Operation::call(libc::SYS_close, &[WAITS as u64]))?;
    }
    states[0].plan_end(&mut plan, true)?;
    // They share one operation.
    for thread in &missing {
        plan.thread_begins(thread);
    }
    plan.push(Operation::call(libc::SYS_exit, &[0]))?;
    for (state, thread) in states[1..].iter().zip(&started) {
        plan.thread_begins(thread);
        state.plan_end(&mut plan, false)?;
    }
    let program = program::make(&plan)?;
    Ok(Snapshot {
        program,
        pages,
        files: memory.files,
        entries,
        bytes: memory.bytes,
        size,
        mappings: memory.mappings,
        reads_its_line: request.is_none(),
        is_on_disk,
        why_copied,
    })
}

/// Prepares the process, whose threads are known to wait. Tells why restored ones must have copies of its
/// pages, if they must.
fn prepare(tracee: &Tracee, waiting: Waiting<'_>) -> Result<Option<String>, Error> {
    let process = tracee.process;
    let function = match waiting {
        Waiting::AtLine => None,
        Waiting::ForAnswer(..) if status::is_go(process) => return Ok(None),
        Waiting::ForAnswer(_, None) => return Ok(Some("nothing prepares it".into())),
        Waiting::ForAnswer(_, Some(function)) => Some(function),
    };
    let all = mappings(process)?;
    if let Some(file) = address_space::empties_by_itself(process, &all)? {
        return Ok(Some(format!("{file} may empty memory past the C library")));
    }
    let Some(function) = function else { return Ok(None) };
    Ok(match function.call(tracee, &all)? {
        Some(0) => None,
        Some(errno) => Some(format!("it cannot be prepared: {}", IoError::from_raw_os_error(errno))),
        None => Some("it cannot load what prepares it".into()),
    })
}

/// The actions of signals that are not the default.
fn signal_actions(tracee: &Tracee) -> Result<Vec<(u64, [u8; ACTION_BYTES])>, Error> {
    let main = &tracee.threads()[0];
    let at = below_stack(main);
    for timer in ITIMERS {
        let is_read = tracee.call(main, libc::SYS_getitimer, &[timer, at])? == 0;
        if !is_read || (tracee.read_word(at + 16)?, tracee.read_word(at + 24)?) != (0, 0) {
            return Err(Error::Unsupported("a timer".into()));
        }
    }
    let mut actions = Vec::new();
    for signal in SIGNALS {
        if tracee.call(main, libc::SYS_rt_sigaction, &[signal, 0, at, 8])? != 0 {
            continue;
        }
        let mut action = [0; ACTION_BYTES];
        tracee.read(at, &mut action)?;
        // SIGKILL and SIGSTOP have the default always.
        if action[..8] != [0; 8] {
            actions.push((signal, action));
        }
    }
    Ok(actions)
}
