//! `mayfly share run`: becomes a command whose processes share pages: one page store, the automatic mode of
//! merging, one address layout, one hash seed.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use clap::Args;
use merge::socket_path;

use crate::child::Preloaded;
use crate::failure::{Failure, OWN_FAILURE, plain_reason};
use crate::libraries;

const EXAMPLES: &str = "\
Examples:
  mayfly share run -- uvicorn app:app --workers 4
  mayfly share run --keep-aslr -- ./app            share what holds no addresses: large blocks
  mayfly share run --hash-seed 7 -- ./workers.sh   the same seed at each start
  MAYFLY_MERGE_AUTO=1M mayfly share run -- ./app   scan allocations of 1 MiB and more, too
  MAYFLY_SHARE_SOCKET=/run/x mayfly share run -- ./app
                                                   by a store that other commands use as well

What the command and the processes that it starts get; variables that are set stay as they are:
  one address layout    pages that hold addresses are equal (personality(2), ADDR_NO_RANDOMIZE)
  PYTHONHASHSEED        one seed in all: equal dicts and sets have equal bytes
  LD_PRELOAD            libmayfly_merge_auto.so, before what is there: shares large allocations
                        that stay unchanged for some seconds
  MAYFLY_MERGE_AUTO     4M: the smallest of these
  MAYFLY_MERGE_LIBRARY  the libmayfly_merge.so that Python's package mayfly loads
  _RJEM_MALLOC_CONF, DUCKDB_JE_MALLOC_CONF
                        cache_oblivious:false: large blocks of the jemalloc in Rust's programs
                        (Polars) and in DuckDB begin a page, and not at a random place in it
  MAYFLY_SHARE_SOCKET   a page store of the command's own, which only this user can reach. It
                        ends with the command; what is shared stays shared
Python's small objects are shared once a process calls mayfly.later(mayfly.advise_process), where
all have allocated the same before. docs/share-servers.md has a recipe for each server.
A process that changes its user does not reach the store: start mayfly as that user.

What it costs in security:
  An address that one process discloses is right in all of them, and after the next start again:
  attacks on memory errors become easier. --keep-aslr leaves the layout random.
  Who finds the hash seed out can send keys that collide (hash flooding). Random is another seed
  at each start, of 32 bits; a NUMBER is for programs that take no keys from others.

Exit code: the command's, or 128 + the signal that ended it; 127 if it is not found, 126 if it
cannot be run, 125 if mayfly itself fails. mayfly becomes the command: that has its process id,
and receives its signals.";

/// Run a command whose processes share identical pages, with one address layout and one hash seed
#[derive(Args)]
#[command(after_long_help = EXAMPLES, after_help = "Examples and the costs in security: mayfly share run --help")]
pub struct RunArguments {
    /// Python's hash seed, the same in all processes: a number, where 0 is no randomisation, or another at
    /// each start [default: PYTHONHASHSEED if it is set, else random]
    #[arg(long, value_name = "random|NUMBER", value_parser = parse_seed)]
    hash_seed: Option<Seed>,
    /// Leave the layout of each process's addresses random: safer, and pages that hold addresses stay private
    #[arg(long)]
    keep_aslr: bool,
    /// The command and its arguments, after --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// jemalloc begins a large block at a random place in its first page, so that equal data have no equal pages.
/// This makes it begin the page (jemalloc 5.3).
const ALIGNED_BLOCKS: &str = "cache_oblivious:false";

/// Where the hash seed comes from.
#[derive(Clone, Copy)]
enum Seed {
    Random,
    Number(u32),
}

fn parse_seed(text: &str) -> Result<Seed, String> {
    match text {
        "random" => Ok(Seed::Random),
        _ => text.parse().map(Seed::Number).map_err(|_| "must be random, or 0 to 4294967295".to_owned()),
    }
}

impl Seed {
    /// A value for `PYTHONHASHSEED`.
    fn value(self) -> Result<String> {
        const SOURCE: &str = "/dev/urandom";
        let number = match self {
            Seed::Number(number) => number,
            Seed::Random => {
                let mut bytes = [0; 4];
                std::fs::File::open(SOURCE)
                    .and_then(|mut file| file.read_exact(&mut bytes))
                    .context(SOURCE)?;
                u32::from_ne_bytes(bytes).max(1) // 0 is no randomisation
            }
        };
        Ok(number.to_string())
    }
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}

impl RunArguments {
    /// Becomes the command. Returns only when that fails.
    ///
    /// # Errors
    /// The command or a library is not found, or the page store does not start.
    pub fn execute(self) -> Result<i32> {
        let error = self.prepared().map_or_else(|error| error, Preloaded::replace_this_process);
        Err(error
            .downcast::<Failure>()
            .unwrap_or_else(|error| Failure::new(OWN_FAILURE, format!("{error:#}")))
            .into())
    }

    /// The command with its variables, in a process with its layout, and its page store.
    fn prepared(self) -> Result<Preloaded> {
        let mut program = Preloaded::new(&self.command, &libraries::AUTOMATIC_MERGING)?;
        let merging = libraries::find("libmayfly_merge.so")?;
        let settings = [
            ("MAYFLY_MERGE_AUTO", OsStr::new("4M")),
            ("MAYFLY_MERGE_LIBRARY", merging.as_os_str()),
            ("_RJEM_MALLOC_CONF", OsStr::new(ALIGNED_BLOCKS)),
            ("DUCKDB_JE_MALLOC_CONF", OsStr::new(ALIGNED_BLOCKS)),
        ];
        for (variable, value) in settings.into_iter().filter(|(variable, _)| !is_set(variable)) {
            program.set(variable, value);
        }
        if self.hash_seed.is_some() || !is_set("PYTHONHASHSEED") {
            program.set("PYTHONHASHSEED", self.hash_seed.unwrap_or(Seed::Random).value()?);
        }
        if !is_set(socket_path::VARIABLE) {
            program.set(socket_path::VARIABLE, start_store()?);
        }
        if !self.keep_aslr {
            fix_layout();
        }
        Ok(program)
    }
}

/// Programs that this process becomes or starts get one address layout. Reports in one line if that is
/// refused.
fn fix_layout() {
    const ASK: libc::c_ulong = 0xffff_ffff;
    // SAFETY: personality takes a number, and changes nothing of the running program's memory.
    let is_refused = unsafe {
        let now = libc::personality(ASK);
        now < 0 || libc::personality((now | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong) < 0
    };
    if is_refused {
        let error = std::io::Error::last_os_error();
        eprintln!(
            "mayfly: warning: the layout of addresses stays random (personality: {}), so pages that hold \
             addresses stay private; a seccomp filter may have to permit ADDR_NO_RANDOMIZE",
            plain_reason(&error)
        );
    }
}

/// Starts a page store that ends with this process, whatever program it has become by then. Returns its
/// socket, which is served.
fn start_store() -> Result<PathBuf> {
    let this = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty())
        .context("cannot watch this process: pidfd_open")?;
    let mut store = Command::new(std::env::current_exe().context("cannot find the path of this program")?);
    store.args(["share", "--with-process"]).stdin(this).stdout(Stdio::piped());
    // SAFETY: `detach` makes system calls alone.
    unsafe { store.pre_exec(detach) };
    let mut started = store.spawn().context("cannot start the page store")?;
    let mut socket = Vec::new();
    let said = started.stdout.take().expect("its standard output is a pipe");
    BufReader::new(said).read_until(b'\n', &mut socket).context("cannot read from the page store")?;
    started.wait().context("cannot wait for the start of the page store")?;
    anyhow::ensure!(socket.pop().is_some(), "the page store has not started: the line above has the reason");
    Ok(OsString::from_vec(socket).into())
}

/// In a child of this process: becomes no child of the command, which may wait for all that it has, leaves
/// its terminal, whose signals are for the command, and closes its files at the next exec.
fn detach() -> std::io::Result<()> {
    // SAFETY: system calls with numbers alone, in a process of one thread. The process that ends here had
    // nothing to do but that.
    unsafe {
        libc::setsid();
        match libc::fork() {
            -1 => return Err(std::io::Error::last_os_error()),
            0 => {}
            _ => libc::_exit(0),
        }
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
    Ok(())
}
