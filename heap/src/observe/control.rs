//! Profiles a running program (LLAMA §4: "periodically connects to servers"): a profiler attaches for a while
//! and detaches.
//!
//! The profiler listens on a socket named after this process. Maintenance in the heap tries to connect four
//! times a second, or less often if maintenance runs less often, as in a process that takes nearly all its
//! memory from caches. So the heap needs no thread, keeps no descriptor that the program could close or
//! collide with, leaves no file behind, and a forked child is a process like any other. The connection
//! carries one request: the heap receives a memory file and the mean distance of samples, and answers whether
//! it agrees. From then on it writes the profile into that file, whose header has the profiler's commands:
//! [`SAMPLE`](lifetime_model::attach::SAMPLE), [`WATCH`], [`ENDED`]. If the profiler dies, the heap stops
//! after [`PATIENCE_NS`].
//!
//! In a container the socket lies in a folder that the container's operator mounts there
//! (`MAYFLY_HEAP_CONTROL=/FOLDER`): abstract names end at the network namespace, and most containers have
//! their own.
//!
//! The heap trusts only root and the process' own user (SO_PEERCRED), and does not wait for a listener before
//! it knows who it is: any user may listen on a name and never accept.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use lifetime_model::attach::{AGREED, CANNOT_MAP, ENDED, HAS_A_PROFILE, WATCH};

use crate::observe::profile;
use crate::observe::profile_file::File;
use crate::system::files;
use crate::system::lock::Lock;
use crate::system::observers::{self, Observer};
use crate::system::os;
use crate::system::raw::syscall;
use crate::system::text::{Text, warn};
use crate::thread::sample;

/// Between two attempts to connect to a profiler.
const LOOK_MS: u64 = 250;
/// A profiler that was not seen for this long has ended.
const PATIENCE_NS: u64 = 10_000_000_000;
/// How long to wait for a profiler's answer.
const ANSWER_MS: i64 = 500;

static LISTENS: AtomicBool = AtomicBool::new(false);
static ATTACHED: AtomicBool = AtomicBool::new(false);
static NEXT_LOOK_MS: AtomicU64 = AtomicU64::new(0);
static LOCK: Lock = Lock::new();

/// The prefix of the sockets' names; the process id follows.
struct Prefix(UnsafeCell<Text<NAME_BYTES>>);
// SAFETY: written before `LISTENS` is set, and only read afterwards.
unsafe impl Sync for Prefix {}
static PREFIX: Prefix = Prefix(UnsafeCell::new(Text::new()));
/// The longest socket name; the process id takes up to ten bytes of it.
const NAME_BYTES: usize = 107;

/// Allows a profiler to attach, by a socket in `folder`, or by an abstract name if that is empty. Called
/// once, before the first allocation.
pub fn start(folder: &str) {
    // SAFETY: see `Prefix`.
    let prefix = unsafe { &mut *PREFIX.0.get() };
    let _ = match folder {
        "" => prefix.write_str("\0mayfly-profile-"), // a NUL first: no file
        _ => write!(prefix, "{folder}/"),
    };
    if prefix.bytes().len() + 10 > NAME_BYTES {
        return warn(format_args!("MAYFLY_HEAP_CONTROL={folder} is too long; no profiler can attach"));
    }
    LISTENS.store(true, Relaxed);
    observers::register(&OBSERVER);
}

static OBSERVER: Observer = Observer {
    tick: |_, now_ms| attend(now_ms),
    in_child: || {
        ATTACHED.store(false, Relaxed); // no profiler is attached to the child
        NEXT_LOOK_MS.store(0, Relaxed);
    },
    ..Observer::IDLE
};

/// Serves an attached profiler or looks for one; once a tick, in a section that no fork interrupts.
fn attend(now_ms: u64) {
    if !LISTENS.load(Relaxed) || files::are_forbidden() {
        return;
    }
    let Some(_guard) = LOCK.try_lock() else { return };
    if ATTACHED.load(Relaxed) {
        serve();
    } else if now_ms >= NEXT_LOOK_MS.load(Relaxed) {
        NEXT_LOOK_MS.store(now_ms + LOOK_MS, Relaxed);
        os::keep_errno(|| {
            if let Some(socket) = Socket::connect_to_listener() {
                let answer = meet(&socket);
                socket.send(answer);
            }
        });
    }
}

/// Follows the profiler's commands.
fn serve() {
    let (phase, seen_ns) = profile::attached().unwrap_or((ENDED, 0));
    if phase >= WATCH {
        sample::stop();
    }
    if (phase >= ENDED || os::precise_ns().saturating_sub(seen_ns) > PATIENCE_NS)
        && let Some(at) = profile::end()
    {
        os::unmap(at, size_of::<File>());
        ATTACHED.store(false, Relaxed);
    }
}

/// Receives the memory file and starts the profile; returns the answer.
fn meet(socket: &Socket) -> u64 {
    let Some((mean_bytes, file)) = socket.receive() else { return CANNOT_MAP };
    if observers::observes_samples() {
        return HAS_A_PROFILE;
    }
    let Some(at) = files::map_sealed(file.0, size_of::<File>()) else { return CANNOT_MAP };
    // SAFETY: a fresh mapping of that size, of a file that cannot shrink; `serve` unmaps it after the end.
    if !unsafe { profile::begin(at, mean_bytes.clamp(1, 1 << 40) as usize) } {
        os::unmap(at, size_of::<File>());
        return CANNOT_MAP;
    }
    profile::seen();
    ATTACHED.store(true, Relaxed);
    AGREED
}

/// A descriptor, closed when dropped.
struct Descriptor(libc::c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        files::close(self.0);
    }
}

struct Socket(Descriptor);

impl Socket {
    /// Connects to a profiler that is allowed to attach.
    fn connect_to_listener() -> Option<Self> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut name: libc::sockaddr_un = unsafe { core::mem::zeroed() };
        name.sun_family = libc::AF_UNIX as libc::sa_family_t;
        // SAFETY: see `Prefix`; `LISTENS` is set.
        let prefix = unsafe { &*PREFIX.0.get() };
        let mut text = prefix.clone();
        let _ = write!(text, "{}", os::process_id());
        let path = &mut name.sun_path;
        path.iter_mut().zip(text.bytes()).for_each(|(to, &from)| *to = from as libc::c_char);
        let length = core::mem::offset_of!(libc::sockaddr_un, sun_path) + text.bytes().len();
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let wait = libc::timeval { tv_sec: 0, tv_usec: ANSWER_MS * 1000 };
        // SAFETY: all pointers are to values of the lengths given.
        unsafe {
            let socket = Descriptor(syscall!(SYS_socket, libc::AF_UNIX, kind, 0) as libc::c_int);
            if socket.0 < 0 {
                core::mem::forget(socket);
                LISTENS.store(false, Relaxed); // sockets are forbidden: do not try again
                return None;
            }
            for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
                let bytes = size_of::<libc::timeval>() as u32;
                syscall!(SYS_setsockopt, socket.0, libc::SOL_SOCKET, option, &raw const wait, bytes);
            }
            if syscall!(SYS_connect, socket.0, &raw const name, length) != 0 {
                return None;
            }
            let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
            let mut bytes = size_of::<libc::ucred>() as u32;
            let known = syscall!(
                SYS_getsockopt,
                socket.0,
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                &raw mut peer,
                &raw mut bytes
            ) == 0;
            let may = known && (peer.uid == 0 || peer.uid as isize == syscall!(SYS_geteuid));
            (may && syscall!(SYS_fcntl, socket.0, libc::F_SETFL, 0) == 0).then_some(Socket(socket))
        }
    }

    /// Receives a number and a file.
    fn receive(&self) -> Option<(u64, Descriptor)> {
        let mut number = [0u8; 8];
        #[repr(C, align(8))]
        struct Room([u8; 64]);
        let mut room = Room([0; 64]);
        // SAFETY: the message's parts are valid for their lengths; a descriptor is read only from a complete
        // header.
        unsafe {
            let mut part = libc::iovec { iov_base: number.as_mut_ptr().cast(), iov_len: number.len() };
            let mut message: libc::msghdr = core::mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = (&raw mut room).cast::<c_void>();
            message.msg_controllen = size_of::<Room>() as _; // musl counts it in 32 bits
            if syscall!(SYS_recvmsg, self.0.0, &raw mut message, libc::MSG_CMSG_CLOEXEC) != 8 {
                return None;
            }
            let header = libc::CMSG_FIRSTHDR(&raw const message).as_ref()?;
            let one = header.cmsg_len == libc::CMSG_LEN(4) as _;
            if header.cmsg_level != libc::SOL_SOCKET || header.cmsg_type != libc::SCM_RIGHTS || !one {
                return None;
            }
            let file = libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned();
            Some((u64::from_le_bytes(number), Descriptor(file)))
        }
    }

    fn send(&self, number: u64) {
        let bytes = number.to_le_bytes();
        // SAFETY: the bytes are valid; MSG_NOSIGNAL, since a profiler that has ended must not end the
        // program.
        unsafe {
            syscall!(SYS_sendto, self.0.0, bytes.as_ptr(), bytes.len(), libc::MSG_NOSIGNAL, 0usize, 0usize)
        };
    }
}
