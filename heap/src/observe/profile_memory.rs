//! What a profile lies in while it is taken: in memory of this process, out of reach of any file system. A
//! mapped file would end the program where its disk is full, or where another process shortens it (SIGBUS).
//!
//! **A profiler collects it** (`socket:PATH`, as `mayfly profile` sets it). The memory is a memory file that
//! cannot shrink. Its descriptor goes to the profiler, which so has every sample of a killed process, and is
//! closed here: nothing is left that the program could close, and nothing to do at its end.
//!
//! **A file** (any other path). The memory is private, and what a sample changed is written to the file at
//! once. So a killed process leaves its samples there, and an error is one line and the profile's end.

use core::cell::UnsafeCell;

use crate::observe::profile_file::{FILE_BYTES, File};
use crate::system::claim::{self, Claimed};
use crate::system::files;
use crate::system::lock::Lock;
use crate::system::os;
use crate::system::raw::syscall;
use crate::system::text::warn;

/// The prefix of a profiler's address.
pub const SOCKET: &[u8] = b"socket:";
/// How long a profiler's queue may be full.
const PATIENCE_MS: i64 = 2000;
/// Offset of the process id in the header.
const PID_AT: usize = 12;

/// The file that is written, if it is one.
struct Out(UnsafeCell<Option<Claimed>>);
// SAFETY: used only with LOCK held.
unsafe impl Sync for Out {}
static OUT: Out = Out(UnsafeCell::new(None));
static LOCK: Lock = Lock::new();

/// Memory for a profile, all zeros.
pub struct Memory {
    /// Its address.
    pub at: usize,
    memory_file: Option<i32>,
}

/// Takes memory for the profile that `value` names; after one line `None`.
pub fn open(value: &[u8]) -> Option<Memory> {
    let shown = core::str::from_utf8(value).unwrap_or("(not UTF-8)");
    let no_memory = || warn(format_args!("profile {shown}: no memory for it; nothing is sampled"));
    if value.starts_with(SOCKET) {
        let memory_file = files::memory_file(b"mayfly-profile\0");
        let at = memory_file.and_then(|fd| files::map_sealed(fd, size_of::<File>()));
        let Some(at) = at else {
            memory_file.into_iter().for_each(files::close);
            no_memory();
            return None;
        };
        return Some(Memory { at, memory_file });
    }
    let claimed = match claim::claim(value, PID_AT) {
        Ok(claimed) => claimed,
        Err(refusal) => {
            claim::explain(refusal, "profile", value, "nothing is sampled");
            return None;
        }
    };
    if !claimed.is_regular {
        files::close(claimed.fd);
        warn(format_args!("profile {shown} is not a file; nothing is sampled"));
        return None;
    }
    let Some(at) = os::map_anywhere(size_of::<File>()) else {
        claimed.remove();
        no_memory();
        return None;
    };
    let _guard = LOCK.lock();
    // SAFETY: the lock is held.
    unsafe { *OUT.0.get() = Some(claimed) };
    Some(Memory { at, memory_file: None })
}

impl Memory {
    /// Gives the begun profile to the profiler, or writes it for the first time; after one line `false`.
    pub fn publish(&self, value: &[u8], file: &mut File) -> bool {
        let shown = core::str::from_utf8(value).unwrap_or("(not UTF-8)");
        let Some(memory_file) = self.memory_file else {
            let fd = {
                let _guard = LOCK.lock();
                // SAFETY: the lock is held.
                unsafe { (*OUT.0.get()).as_ref().map(|out| out.fd) }
            };
            let done = fd.is_some_and(|fd| files::set_length(fd, FILE_BYTES)) && write(file);
            if !done {
                // It stays locked: programs that this one starts are silent.
                fd.map(|fd| files::set_length(fd, 0));
                warn(format_args!("profile {shown} cannot be written; nothing is sampled"));
            }
            return done;
        };
        let sent = send(&value[SOCKET.len()..], memory_file);
        files::close(memory_file);
        if let Err(error) = sent {
            warn(format_args!("no profiler at {shown} (error {error}); nothing is sampled"));
        }
        sent.is_ok()
    }
}

/// Writes what has changed, if the profile is a file; whether that succeeded.
pub fn write(file: &mut File) -> bool {
    let _guard = LOCK.lock();
    // SAFETY: the lock is held.
    let out = unsafe { &mut *OUT.0.get() };
    // Twice, since another thread may close the descriptor before it is used.
    let done = out.as_mut().is_none_or(|out| write_to(out, file) || !is_open(out) && write_to(out, file));
    file.changes.clear();
    done
}

fn write_to(out: &mut Claimed, file: &File) -> bool {
    if files::are_forbidden() {
        return false; // a filter of system calls may end the process for any of these
    }
    // Programs such as daemons close descriptors that they did not open.
    if !is_open(out) {
        let Some(fd) = files::open_again(out.name.bytes()) else { return false };
        if files::identity(fd) != Some(out.identity) {
            files::close(fd);
            return false;
        }
        out.fd = files::at_high_number(fd, claim::LEAST_NUMBER);
    }
    let start = core::ptr::from_ref(file).addr();
    // SAFETY: the pieces lie in `file`.
    unsafe { files::write_at(out.fd, file.changes.pieces().map(|p| (start + p.start, p.len(), p.start))) }
}

fn is_open(out: &Claimed) -> bool {
    files::identity(out.fd) == Some(out.identity)
}

/// Forgets the file. A forked child closes its copy of the descriptor; the parent's stays locked.
pub fn close() {
    let _guard = LOCK.lock();
    // SAFETY: the lock is held.
    if let Some(out) = unsafe { (*OUT.0.get()).take() }
        && is_open(&out)
    {
        files::close(out.fd);
    }
}

/// Sends a file to the process that listens at `path`, without waiting for it. What was sent is there for it
/// even if this process ends now.
fn send(path: &[u8], file: i32) -> Result<(), i32> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut name: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if path.len() >= name.sun_path.len() {
        return Err(libc::ENAMETOOLONG);
    }
    if files::are_forbidden() {
        return Err(libc::EPERM);
    }
    name.sun_path.iter_mut().zip(path).for_each(|(to, &from)| *to = from as libc::c_char);
    let length = core::mem::offset_of!(libc::sockaddr_un, sun_path) + path.len() + 1;
    #[repr(C, align(8))]
    struct Room([u8; 24]);
    let mut room = Room([0; 24]);
    let mut byte = [0u8; 1];
    let wait = libc::timeval { tv_sec: PATIENCE_MS / 1000, tv_usec: PATIENCE_MS % 1000 * 1000 };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: all pointers are to values of the lengths given; the room has a header and a descriptor.
    unsafe {
        let socket = syscall!(SYS_socket, libc::AF_UNIX, kind, 0);
        if socket < 0 {
            return Err(-socket as i32);
        }
        let socket = socket as i32;
        let bytes = size_of::<libc::timeval>() as u32;
        syscall!(SYS_setsockopt, socket, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &raw const wait, bytes);
        let mut result = syscall!(SYS_connect, socket, &raw const name, length);
        while result == -(libc::EINTR as isize) {
            result = syscall!(SYS_connect, socket, &raw const name, length);
        }
        if result == 0 {
            let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
            let mut message: libc::msghdr = core::mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = (&raw mut room).cast();
            message.msg_controllen = libc::CMSG_SPACE(4) as _; // musl counts it in 32 bits
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(header).cast::<i32>().write_unaligned(file);
            result = -(libc::EINTR as isize);
            while result == -(libc::EINTR as isize) {
                result = syscall!(SYS_sendmsg, socket, &raw const message, libc::MSG_NOSIGNAL);
            }
        }
        files::close(socket);
        if result < 0 { Err(-result as i32) } else { Ok(()) }
    }
}
