//! The monitor and process 1 of a sandbox: what runs between the worker and the function's runtime.

use std::ffi::CStr;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use cgroups::{THREADS, Thawing};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{
    Pid, PidfdFlags, Resource, Signal, getegid, geteuid, kill_process, pidfd_open,
    set_parent_process_death_signal, setsid,
};
use rustix::system::sethostname;
use rustix::thread::UnshareFlags;
use vm_sandbox::syscalls::{Filter, Placement};
use vm_sandbox::{extensions, network, termination};
use worker_snapshot::{Entry, MappedFile};

use super::proc::Proc;
use super::rights::worker_is_root;
use super::steps::Steps;
use super::{Beginning, INSIDE_USER, OPEN_FILES, Preparation, RUNTIME_PORT, Spec, order, root, syscalls};

/// The name of process 1 while its sandbox is empty.
const WAITS: &CStr = c"mayfly-ready";
/// The descriptor of the control socket; 0 becomes the function's stdin.
const CONTROL: RawFd = 3;
/// First byte of a message to the worker: the sandbox is empty, and process 1 waits for its order. The
/// [`Steps`] come with it.
pub(super) const READY: u8 = b'E';
/// First byte of a message to the worker: the order is carried out, and the runtime starts next. The
/// listener of the Runtime API comes with it, so no later message is received together with this one; the
/// names of extensions, a line each; after a zero byte the [`Steps`].
pub(super) const STARTS: u8 = b'L';
/// First byte of a message to the worker: a listener of [`Spec::listen`] comes with it, in their order.
pub(super) const REACHES: u8 = b'R';
/// First byte of a message to the worker: the error follows, a line of text.
pub(super) const FAILED: u8 = b'F';
/// First byte of a message to the worker: a process has ended. Its wait status follows, four bytes, then the
/// length of its name, one byte, and the name, which is empty for the runtime.
pub(super) const EXITED: u8 = b'X';
/// To the monitor: end the runtime, by SIGTERM, and the next time by SIGKILL.
pub(super) const TERMINATE: u8 = b'T';
/// To the monitor: make a TCP socket inside, and send it.
pub(super) const CONNECT: u8 = b'S';

/// The whole life of a monitor; returns its exit code. Called first thing in `main`, while there is one
/// thread.
pub fn launch() -> i32 {
    match keep() {
        Ok(()) => 0,
        Err(error) => {
            let mut message = vec![FAILED];
            message.extend(format!("{error:#}").bytes().take(2000));
            // Without a control socket, a user has typed the verb: print it.
            if syscalls::send_with(CONTROL, &message, None).is_err() {
                eprintln!("mayfly: {error:#}");
            }
            1
        }
    }
}

fn keep() -> Result<()> {
    let mut steps = Steps::default();
    steps.done("monitor runs");
    // Before anything else: a monitor whose worker has died meanwhile must not go on.
    syscalls::die_with_parent()?;
    syscalls::duplicate_to(0, CONTROL, true).context("no control socket")?;
    let nothing = std::fs::File::open("/dev/null")?;
    syscalls::duplicate_to(nothing.as_raw_fd(), 0, false)?;
    // SAFETY: this process has just made the descriptor and owns it; it lives until the process ends.
    let control = std::mem::ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(CONTROL) });
    let Some((spec, Some(orders))) = order::receive::<Preparation>(&control)? else {
        bail!("`mayfly up` starts this, it is not a command of its own")
    };
    let commands = order::receive_file(&control)?;
    steps.done("order read");
    let thawing = match &spec.freezer {
        // It must thaw what it kills, so it must not be killed itself: it notices the worker's end by the
        // control socket.
        Some(folder) => {
            set_parent_process_death_signal(None)?;
            Some(Thawing::open(folder).with_context(|| format!("no freezer in {}", folder.display()))?)
        }
        None => None,
    };
    ensure!(std::os::unix::process::parent_id() == spec.worker, "the worker has ended");
    for file in &spec.cgroup_files {
        std::fs::write(file, "0").with_context(|| format!("cannot enter the cgroup {}", file.display()))?;
    }
    steps.done("cgroup entered");
    setsid()?;
    enter_namespaces().context("cannot make namespaces")?;
    steps.done("namespaces");
    match syscalls::fork()? {
        None => {
            syscalls::die_with_parent()?;
            drop(commands);
            wait_inside(&spec, UnixStream::from(orders), steps)
        }
        Some(init) => {
            drop(orders);
            if !obey_until_end(init, &control, commands)? {
                let _ = kill_process(init, Signal::KILL);
                if let Some(thawing) = thawing {
                    thawing.thaw().context("cannot thaw the sandbox")?;
                }
            }
            // Process 1 can be waited for once everything in its namespace has ended.
            syscalls::wait(init).context("cannot wait for the sandbox")
        }
    }
}

/// Carries out the worker's commands. Returns whether process 1 has ended: otherwise the worker has closed
/// the control socket.
fn obey_until_end(init: Pid, control: &UnixStream, commands: OwnedFd) -> Result<bool> {
    let ended = pidfd_open(init, PidfdFlags::empty())?;
    let mut commands = Some(UnixStream::from(commands));
    loop {
        let mut polled = vec![PollFd::new(&ended, PollFlags::IN), PollFd::new(control, PollFlags::IN)];
        polled.extend(commands.as_ref().map(|commands| PollFd::new(commands, PollFlags::IN)));
        while poll(&mut polled, None).is_err() {}
        let ready: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
        if ready[0] || ready[1] {
            return Ok(ready[0]);
        }
        let Some(open) = &mut commands else { continue };
        let mut command = [0];
        match open.read_exact(&mut command) {
            Ok(()) => obey(command[0], init, open),
            // The worker closes the control socket next.
            Err(_) => commands = None,
        }
    }
}

fn obey(command: u8, init: Pid, commands: &UnixStream) {
    // Where something fails, the worker has ended, or the sandbox has.
    match command {
        TERMINATE => {
            let _ = kill_process(init, Signal::TERM);
        }
        CONNECT => {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).ok();
            let descriptor = socket.as_ref().map(AsRawFd::as_raw_fd);
            let _ = syscalls::send_with(commands.as_raw_fd(), &[CONNECT], descriptor);
        }
        _ => {}
    }
}

/// Makes the files in /tmp of the process that was taken, before extensions write some there. Returns the
/// reason why it cannot be restored.
fn lay_out(files: &[MappedFile], entries: &[Entry], pages: BorrowedFd) -> Result<(), String> {
    if let Some(file) = files.iter().find(|file| !file.is_unchanged()) {
        return Err(format!("{} has changed", file.path.display()));
    }
    worker_snapshot::lay_out(Path::new("/tmp"), entries, pages)
        .map_err(|error| format!("its files in /tmp cannot be made: {error}"))
}

/// Sends the worker a socket that listens on each of these addresses.
fn reach(addresses: &[SocketAddr]) -> Result<()> {
    for (number, address) in addresses.iter().enumerate() {
        if let IpAddr::V4(own) = address.ip()
            && !own.is_loopback()
        {
            network::add_loopback_address(number, own)
                .with_context(|| format!("cannot have {own} inside"))?;
        }
        let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
        syscalls::send_with(CONTROL, &[REACHES], Some(listener.as_raw_fd()))
            .context("the worker has ended")?;
    }
    Ok(())
}

/// As root, the monitor keeps its user namespace: the function becomes a user that owns nothing. Otherwise
/// a new user namespace gives the right to make the others. The host's mounts are copied once there is an
/// order: an empty sandbox must neither keep them in use nor miss those that are made meanwhile.
fn enter_namespaces() -> Result<()> {
    let namespaces = UnshareFlags::NEWPID
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    if user == 0 {
        return Ok(syscalls::unshare(namespaces)?);
    }
    syscalls::unshare(UnshareFlags::NEWUSER | namespaces)?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{INSIDE_USER} {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{INSIDE_USER} {group} 1"))?;
    Ok(())
}

/// Process 1: makes what is any function's, and waits for its order. Returns with an error, or where none
/// comes.
fn wait_inside(empty: &Preparation, orders: UnixStream, mut steps: Steps) -> Result<()> {
    if let Some(folder) = &empty.freezer {
        std::fs::write(folder.join(THREADS), "0")
            .with_context(|| format!("cannot enter the freezer {}", folder.display()))?;
    }
    network::loopback_up().context("cannot bring up the loopback device")?;
    let listener = TcpListener::bind(("127.0.0.1", RUNTIME_PORT)).context("cannot listen")?;
    let filter = Filter::new(Placement::Free).context("no filter of system calls")?;
    steps.done("sockets, filter");
    let proc = Proc::new(&empty.mount_point)?;
    let name = rustix::thread::name()?;
    rustix::thread::set_name(WAITS)?;
    steps.done("/proc");
    let message = [&[READY], steps.to_text().as_bytes()].concat();
    syscalls::send_with(CONTROL, &message, None).context("the worker has ended")?;
    let Some((spec, disk)) = order::receive::<Spec>(&orders)? else { return Ok(()) };
    let files = (0..spec.beginning.descriptors()).map(|_| order::receive_file(&orders));
    let handed = files.collect::<Result<_>>()?;
    drop(orders);
    rustix::thread::set_name(&name)?;
    let mut steps = Steps::default();
    steps.done("order");
    let inside = Inside { mount_point: &empty.mount_point, listener, filter, proc, steps };
    Err(inside.run(&spec, disk, handed).expect_err("process 1 ends by itself only when it fails"))
}

/// The inside of an empty sandbox, for process 1.
struct Inside<'a> {
    mount_point: &'a Path,
    listener: TcpListener,
    filter: Filter,
    proc: Proc,
    steps: Steps,
}

impl Inside<'_> {
    /// Prepares it for a function, starts the runtime and reaps. Returns only with an error.
    fn run(self, spec: &Spec, disk: Option<OwnedFd>, handed: Vec<OwnedFd>) -> Result<()> {
        let Inside { mount_point, listener, filter, proc, mut steps } = self;
        let was_root = worker_is_root();
        syscalls::unshare(UnshareFlags::NEWNS).context("cannot make a namespace of mounts")?;
        root::enter(mount_point, spec, proc, disk)?;
        steps.done("root");
        sethostname(spec.host_name.as_bytes())?;
        reach(&spec.listen)?;
        let names = extensions::names()?;
        syscalls::limit(Resource::Core, 0)?;
        syscalls::limit(Resource::Nofile, OPEN_FILES)?;
        syscalls::drop_bounding_set()?;
        if was_root {
            syscalls::become_user(spec.user)?;
        }
        syscalls::drop_privileges()?;
        // A change of user has cleared the parent-death signal.
        syscalls::die_with_parent()?;
        if spec.fixed_layout {
            syscalls::fix_layout().context("cannot fix the layout")?;
        }
        filter.apply().context("cannot confine the system calls")?;
        termination::pass_on().context("cannot handle signals")?;
        steps.done("confined");
        let message = [&[STARTS], names.join("\n").as_bytes(), &[0], steps.to_text().as_bytes()].concat();
        syscalls::send_with(CONTROL, &message, Some(listener.as_raw_fd())).context("the worker has ended")?;
        drop(listener);
        let laid_out = match (&spec.beginning, &handed[..]) {
            (Beginning::Restored { files, entries }, [_, pages, _]) => lay_out(files, entries, pages.as_fd()),
            _ => Ok(()),
        };
        let environment = spec.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let extensions = extensions::start(&names, environment, Some(std::io::stderr().as_fd()))?;
        let Some(runtime) = syscalls::fork()? else {
            setsid()?;
            let folder = &spec.folder;
            std::env::set_current_dir(folder)
                .with_context(|| format!("cannot start in the folder {folder}"))?;
            match (&spec.beginning, &handed[..]) {
                (Beginning::Command, _) => {}
                (Beginning::Taken, [line]) => {
                    worker_snapshot::wait_at(line.as_fd()).context("no line for a snapshot")?;
                }
                (Beginning::Restored { .. }, [program, pages, line]) => {
                    syscalls::duplicate_to(1, 2, false)?;
                    // Returns only with the reason why not.
                    let becomes = || worker_snapshot::restore(program.as_fd(), pages.as_fd(), line.as_fd());
                    // Read by the worker, if it is more than an end.
                    let why = laid_out.err().unwrap_or_else(|| becomes().to_string());
                    let _ = rustix::io::write(line, why.as_bytes());
                    std::process::exit(worker_snapshot::FAILED)
                }
                _ => bail!("the worker's order is wrong"),
            }
            let (program, arguments) = spec.command.split_first().context("no program to run")?;
            let mut command = Command::new(program);
            command.args(arguments).env_clear().envs(spec.environment.clone());
            // What is stderr here is the output of extensions.
            let error = command.stderr(std::io::stdout().as_fd().try_clone_to_owned()?).exec();
            return Err(error).with_context(|| format!("cannot run {program}"));
        };
        drop(handed);
        termination::reap(runtime.as_raw_nonzero().get(), extensions, |status, extension| {
            let name = extension.unwrap_or_default();
            let mut message = vec![EXITED];
            message.extend(status.to_le_bytes());
            message.push(name.len() as u8);
            message.extend(name.bytes());
            // If the send fails, the worker has ended and so do we.
            syscalls::send_with(CONTROL, &message, None)
        })?;
        std::process::exit(0)
    }
}
