//! `mayfly profile --pid`: samples a program that is running, for a while (LLAMA §4).
//!
//! This process listens on a socket named after the other one, whose heap looks there now and then (`heap/src/observe/control.rs`): it
//! gets a memory file, writes the profile into it, and leaves when the file's header says so or when nobody has touched it for
//! some seconds. So whoever dies, the other goes on.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use lifetime::attach::{AGREED, ENDED, HAS_A_PROFILE, PHASE_AT, SEEN_AT, WATCH};
use memmap2::MmapRaw;
use signal_hook::consts::{SIGINT, SIGTERM};

/// How long the program may take to answer: it does when it allocates.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// Samples process `pid` for `time`, one object every `every` bytes; writes the profile to `raw`. `control` is the folder that it
/// looks for sockets in, where it lies here; without one it looks for abstract names, in its network namespace.
///
/// # Errors
/// The process is not there, not ours, has no heap of Mayfly's that can be attached to, or is being profiled already.
pub fn profile(pid: u32, control: Option<&Path>, time: Duration, every: u64, raw: &Path) -> Result<()> {
    check(pid)?;
    let (listener, _socket) = listen(pid, control)?;
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stopped.clone()).context("cannot take signals")?;
    }
    let began = Instant::now();
    let (file, answer) = loop {
        let Some(stream) = wait_for(pid, &listener, began, &stopped)? else {
            bail!("stopped before process {pid} answered");
        };
        let file = memory_file()?;
        // It does not wait long, for it serves an allocation: when this machine is busy it gives up, and comes again.
        if let Ok(answer) = hand_over(&stream, &file, every) {
            break (file, answer);
        }
    };
    match answer {
        AGREED => {}
        HAS_A_PROFILE => bail!("process {pid} is being profiled from its start"),
        _ => bail!("process {pid} cannot map the profile: is it short of memory?"),
    }
    let map = MmapRaw::map_raw(&file).context("cannot map the profile")?;
    ensure!(map.len() > SEEN_AT + 8, "process {pid} made a profile of {} bytes", map.len());
    // SAFETY: the words lie in the mapping, aligned, and both processes use them as atomics. The file cannot shrink.
    let word = |at: usize| unsafe { &*map.as_mut_ptr().add(at).cast::<AtomicU64>() };
    let bar = ProgressBar::new(time.as_millis() as u64).with_message(format!("sampling process {pid}"));
    bar.set_style(ProgressStyle::with_template("{msg} {bar:30} {eta} left").expect("the template is right"));
    let began = Instant::now();
    while began.elapsed() < time && !stopped.load(Relaxed) && is_running(pid) {
        // What is sampled in the first half has the second half to be freed in.
        if began.elapsed() >= time / 2 {
            word(PHASE_AT).store(WATCH, Relaxed);
        }
        word(SEEN_AT).store(now_ns(), Relaxed);
        bar.set_position(began.elapsed().as_millis() as u64);
        std::thread::sleep(PAUSE.min(time.saturating_sub(began.elapsed())));
    }
    word(PHASE_AT).store(ENDED, Relaxed);
    bar.finish_and_clear();
    if began.elapsed() < time && !stopped.load(Relaxed) {
        eprintln!("mayfly: process {pid} ended after {:.1} s", began.elapsed().as_secs_f64());
    }
    std::thread::sleep(PAUSE); // a sample in work is finished
    copy(&file, raw, map.len() as u64).with_context(|| format!("cannot write {}", raw.display()))
}

/// A socket with a file's name, which goes with this.
struct Named(PathBuf);

impl Drop for Named {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens where the heap of process `pid` looks.
fn listen(pid: u32, control: Option<&Path>) -> Result<(UnixListener, Option<Named>)> {
    let in_use = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AddrInUse => anyhow!("process {pid} is being profiled by another mayfly profile"),
        _ => anyhow!("cannot make a socket: {error}"),
    };
    let Some(folder) = control else {
        let name = SocketAddr::from_abstract_name(format!("mayfly-profile-{pid}"))?;
        return Ok((UnixListener::bind_addr(&name).map_err(in_use)?, None));
    };
    // It knows itself by the number that it has in its container.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let own = numbers.and_then(|numbers| numbers.split_whitespace().next_back());
    let Some(own) = own else { bail!("there is no process {pid}") };
    let path = folder.join(own);
    if path.exists() && UnixStream::connect(&path).is_err() {
        let _ = std::fs::remove_file(&path); // left by one that was killed
    }
    let listener = UnixListener::bind(&path).map_err(in_use)?;
    // Programs in containers have other users than this one.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
    Ok((listener, Some(Named(path))))
}

/// Most of a profile is zeros, which are left out.
fn copy(from: &File, to: &Path, bytes: u64) -> std::io::Result<()> {
    let out = File::create(to)?;
    out.set_len(bytes)?;
    let mut block = [0; 4096];
    let mut at = 0;
    while at < bytes {
        let have = from.read_at(&mut block, at)?;
        if have == 0 {
            break;
        }
        if block[..have].iter().any(|&byte| byte != 0) {
            out.write_all_at(&block[..have], at)?;
        }
        at += have as u64;
    }
    Ok(())
}

/// Says what speaks against attaching, as far as can be seen from outside.
fn check(pid: u32) -> Result<()> {
    let read = |what: &str| std::fs::read(format!("/proc/{pid}/{what}"));
    ensure!(is_running(pid), "there is no process {pid}");
    let Ok(maps) = read("maps") else { bail!("process {pid} is another user's") };
    if !contains(&maps, b"libmayfly_heap") {
        bail!("process {pid} does not run on Mayfly's heap: start it with mayfly run");
    }
    let variables = read("environ").unwrap_or_default();
    let name = b"MAYFLY_HEAP_CONTROL=";
    let mut values = variables.split(|&byte| byte == 0).filter_map(|line| line.strip_prefix(name));
    if !values.any(|value| value == b"on" || value.starts_with(b"/")) {
        bail!("process {pid} cannot be attached to: start it with mayfly run, or MAYFLY_HEAP_CONTROL=on");
    }
    Ok(())
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

/// A process that has ended and was not waited for does not run.
fn is_running(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may hold anything.
    let state = status.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    state.is_some_and(|state| !matches!(state, "Z" | "X"))
}

fn memory_file() -> Result<File> {
    // SAFETY: the name ends in NUL; the descriptor is new and nobody else's.
    let file = unsafe {
        let fd = libc::memfd_create(c"mayfly-profile".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        (fd >= 0).then(|| File::from_raw_fd(fd))
    };
    file.with_context(|| format!("cannot make a memory file: {}", std::io::Error::last_os_error()))
}

/// The connection of process `pid`; `None` if this one was told to stop.
fn wait_for(
    pid: u32,
    listener: &UnixListener,
    began: Instant,
    stopped: &AtomicBool,
) -> Result<Option<UnixStream>> {
    listener.set_nonblocking(true)?;
    while !stopped.load(Relaxed) {
        match listener.accept() {
            // Anybody may connect.
            Ok((stream, _)) if peer_of(&stream) == Some(pid) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                return Ok(Some(stream));
            }
            Ok(_) => continue,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("cannot accept a connection"),
        }
        ensure!(is_running(pid), "process {pid} ended before it answered");
        if began.elapsed() > PATIENCE {
            bail!(
                "process {pid} did not answer within {} s: it does so when it allocates. Is it idle, or in another network namespace?",
                PATIENCE.as_secs()
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(None)
}

fn peer_of(stream: &UnixStream) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to values of the length given.
    let known = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    } == 0;
    known.then(|| peer.pid.cast_unsigned())
}

/// Sends the mean distance of samples and the file; the answer.
fn hand_over(stream: &UnixStream, file: &File, every: u64) -> std::io::Result<u64> {
    let number = every.to_le_bytes();
    #[repr(C, align(8))]
    struct Room([u8; 24]);
    let mut room = Room([0; 24]);
    // SAFETY: one header with one descriptor, for which there is room; the parts are valid for their lengths.
    let sent = unsafe {
        let mut part = libc::iovec { iov_base: number.as_ptr().cast_mut().cast(), iov_len: number.len() };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut room).cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<libc::c_int>().write_unaligned(file.as_raw_fd());
        libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    if sent != number.len() as isize {
        return Err(std::io::Error::last_os_error());
    }
    let mut answer = [0; 8];
    (&*stream).read_exact(&mut answer)?;
    Ok(u64::from_le_bytes(answer))
}

fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid; the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
