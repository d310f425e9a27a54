//! `mayfly share`: the page store, in the foreground; `mayfly share top` shows its state, `mayfly share run`
//! runs a command with a store of its own.

#[cfg(feature = "objects")]
pub mod run;
pub mod top;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use merge::daemon::{Charge, Configuration, Endpoint, Rule, Server};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tempfile::TempDir;

use self::top::TopArguments;
use crate::quantity::parse_bytes;

const EXAMPLES: &str = "\
Examples:
  mayfly share                          serve this user's programs (as root: every user's, apart from one another)
  mayfly share --limit 8GiB             hold at most that much for each trust domain
  mayfly share --metrics 127.0.0.1:9109 and answer GET /metrics there
  mayfly share --charge store           pay for the pages itself, in its own cgroup
  mayfly share top                      what is shared, as a live table
  mayfly share run -- COMMAND           a command whose processes share, with a store of its own
  LD_LIBRARY_PATH=target/release ./app  a program that calls mayfly_advise (libmayfly_merge.so)

The socket is MAYFLY_SHARE_SOCKET, or $XDG_RUNTIME_DIR/mayfly/share.socket, or for root
/run/mayfly/share.socket; programs look in the same places. SIGTERM and SIGINT stop the store;
what programs share stays shared.";

/// Run the page store through which programs share identical pages
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct ShareArguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// The socket to serve
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// A file whose lock keeps other stores from the socket; put it where clients cannot open it [default:
    /// beside the socket]
    #[arg(long, value_name = "FILE")]
    lock: Option<PathBuf>,
    /// Which programs share with one another
    #[arg(long, value_name = "WHO", value_enum, default_value_t = Domains::User)]
    domain: Domains,
    /// Serve only programs in the cgroups that FILE names, one a line, as /proc/PID/cgroup names them; it may
    /// change
    #[arg(long, value_name = "FILE")]
    members: Option<PathBuf>,
    /// Memory that each trust domain's store may hold, such as 8GiB [default: half of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    limit: Option<u64>,
    /// Connections that each trust domain may have
    #[arg(long, value_name = "NUMBER", default_value_t = 4096)]
    clients: usize,
    /// Whose memory the pages are, and so the cgroup that is charged for them
    #[arg(long, value_name = "WHOM", value_enum, default_value_t = Charged::First)]
    charge: Charged,
    /// Serve GET /metrics at a loopback ADDRESS:PORT or on the Unix socket PATH
    #[arg(long, value_name = "WHERE")]
    metrics: Option<Endpoint>,
    /// For `mayfly share run`: serve in a private folder, print the socket once it is served, and end with
    /// the process whose pidfd is standard input
    #[arg(long, hide = true)]
    with_process: bool,
}

#[derive(Subcommand)]
enum Verb {
    #[cfg(feature = "objects")]
    Run(run::RunArguments),
    Top(TopArguments),
}

#[derive(Clone, Copy, ValueEnum)]
enum Domains {
    /// Programs of one user
    User,
    /// Programs of one user in one cgroup: containers
    Cgroup,
    /// All programs that can reach the socket: tenants can then find out what others have in memory
    Everyone,
}

#[derive(Clone, Copy, ValueEnum)]
enum Charged {
    /// The program that uploads them first
    First,
    /// The store, which copies them
    Store,
}

fn half_of_memory() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Ok(kib.context("/proc/meminfo: no MemTotal")? * 512)
}

/// A folder that this user alone can enter, for a socket.
fn private_folder() -> Result<TempDir> {
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
    let above = given.unwrap_or_else(std::env::temp_dir);
    let own = std::fs::Permissions::from_mode(0o700);
    let made = tempfile::Builder::new().prefix("mayfly-share-").permissions(own).tempdir_in(&above);
    made.with_context(|| format!("cannot make a folder for the socket in {}", above.display()))
}

/// Stops the server once the process whose pidfd is standard input has ended.
fn stop_with_process(stop: UnixStream) {
    let input = std::io::stdin();
    let mut watched = [PollFd::new(&input, PollFlags::IN)];
    while poll(&mut watched, None) == Err(Errno::INTR) {}
    let _ = (&stop).write_all(&[0]); // fails only if the server has stopped
}

impl ShareArguments {
    /// Whether the command serves, rather than shows, a store of many programs; only then it logs each step.
    pub fn serves(&self) -> bool {
        self.verb.is_none() && !self.with_process
    }

    /// Serves until SIGTERM or SIGINT, shows the store's state, or becomes a command.
    ///
    /// # Errors
    /// The socket cannot be served, there is no store to show, or the command cannot be run.
    pub fn execute(self) -> Result<i32> {
        match self.verb {
            #[cfg(feature = "objects")]
            Some(Verb::Run(run)) => return run.execute(),
            Some(Verb::Top(top)) => return top.execute(),
            None => {}
        }
        let (stop, stopped) = UnixStream::pair().context("a pipe for signals")?;
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::low_level::pipe::register(signal, stop.try_clone()?).context("signal handler")?;
        }
        let folder = if self.with_process { Some(private_folder()?) } else { None };
        let socket = match &folder {
            Some(folder) => folder.path().join("share.socket"),
            None => self.socket.unwrap_or_else(merge::socket_path::to_serve),
        };
        let rule = match self.domain {
            Domains::User => Rule::User,
            Domains::Cgroup => Rule::Cgroup,
            Domains::Everyone => Rule::Everyone,
        };
        let max_bytes = match self.limit {
            Some(bytes) => bytes,
            None => half_of_memory()?,
        };
        let max_clients = self.clients;
        let metrics = self.metrics.clone();
        let members = self.members;
        let charge = match self.charge {
            Charged::First => Charge::First,
            Charged::Store => Charge::Store,
        };
        let configuration = Configuration {
            socket: socket.clone(),
            lock: self.lock,
            rule,
            members,
            max_bytes,
            max_clients,
            charge,
            metrics,
        };
        let mut server = Server::new(configuration)?;
        if let Some(endpoint) = &self.metrics {
            tracing::info!("metrics at {endpoint}: GET /metrics");
        }
        tracing::info!("page store ready at {}", socket.display());
        if self.with_process {
            let line = [socket.as_os_str().as_encoded_bytes(), b"\n"].concat();
            std::io::stdout().write_all(&line).context("standard output")?;
            std::thread::spawn(move || stop_with_process(stop));
        }
        server.run(&stopped)?;
        tracing::info!("page store stopped; what is shared stays shared");
        Ok(0)
    }
}
