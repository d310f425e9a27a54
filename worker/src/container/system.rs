//! System calls that the standard library does not have, each as one safe function. For single-threaded use.

use std::ffi::CString;
use std::io::{Error, Result};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr::null;

use merge::channel;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

fn checked(outcome: libc::c_int) -> Result<libc::c_int> {
    if outcome < 0 { Err(Error::last_os_error()) } else { Ok(outcome) }
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("paths from the worker hold no zero byte")
}

/// Effective user id.
pub fn effective_user() -> u32 {
    // SAFETY: takes and touches nothing.
    unsafe { libc::geteuid() }
}

/// Effective group id.
pub fn effective_group() -> u32 {
    // SAFETY: takes and touches nothing.
    unsafe { libc::getegid() }
}

/// Has the kernel kill this process when the thread that started it ends.
pub fn die_with_parent() -> Result<()> {
    // SAFETY: sets an attribute of this process, no memory is passed.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }).map(drop)
}

/// Has this process live on when the thread that started it ends.
pub fn outlive_parent() -> Result<()> {
    // SAFETY: sets an attribute of this process, no memory is passed.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) }).map(drop)
}

/// Moves this process into new namespaces.
pub fn unshare(namespaces: libc::c_int) -> Result<()> {
    // SAFETY: no memory is passed; only called while the process has one thread.
    checked(unsafe { libc::unshare(namespaces) }).map(drop)
}

/// Forks; `None` in the child.
pub fn fork() -> Result<Option<libc::pid_t>> {
    // SAFETY: the launcher has one thread, so the child finds no lock held by another.
    match checked(unsafe { libc::fork() })? {
        0 => Ok(None),
        child => Ok(Some(child)),
    }
}

/// A descriptor that becomes readable when the process ends.
pub fn pidfd(process: libc::pid_t) -> Result<OwnedFd> {
    // SAFETY: passes two numbers.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    if descriptor < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor, nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) })
}

/// Has the kernel page out part of another process's memory, whose [`pidfd`] this is.
pub fn page_out(process: &OwnedFd, range: std::ops::Range<usize>) -> Result<()> {
    let part = libc::iovec { iov_base: range.start as *mut libc::c_void, iov_len: range.len() };
    // SAFETY: reads one iovec, which outlives the call; what it says is an address of the other process, of which the contents stay
    // as they are.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            &raw const part,
            1_usize,
            libc::MADV_PAGEOUT,
            0_u32,
        )
    };
    if outcome < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// Tells when the process ends, without a thread that waits.
pub fn ending_of(process: libc::pid_t) -> Result<AsyncFd<OwnedFd>> {
    let descriptor = pidfd(process)?;
    // SAFETY: an OwnedFd names one open descriptor, always the same, until it is dropped with the AsyncFd.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}

/// Kills a process that has not been waited for.
pub fn kill(process: libc::pid_t) {
    // SAFETY: no memory is passed. The caller has not reaped the process, so the number is still its own.
    unsafe { libc::kill(process, libc::SIGKILL) };
}

/// Waits for a child, or for any with -1: its id and wait status.
pub fn wait(process: libc::pid_t) -> Result<(libc::pid_t, i32)> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a valid place for the kernel to write to.
        match checked(unsafe { libc::waitpid(process, &mut status, 0) }) {
            Ok(child) => return Ok((child, status)),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until one of the two descriptors is readable or closed; true if the first is.
pub fn first_is_readable(first: RawFd, second: RawFd) -> bool {
    let wanted = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut both = [wanted(first), wanted(second)];
    loop {
        // SAFETY: the array outlives the call and its length is passed.
        if unsafe { libc::poll(both.as_mut_ptr(), 2, -1) } > 0 {
            return both[0].revents != 0;
        }
    }
}

/// `mount(2)`.
pub fn mount(source: &Path, target: &Path, kind: &str, flags: u64, options: &str) -> Result<()> {
    let (source, target) = (text(source), text(target));
    let (kind, options) = (CString::new(kind)?, CString::new(options)?);
    // SAFETY: four zero-terminated strings that outlive the call.
    checked(unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast())
    })
    .map(drop)
}

/// Adds attributes (`MOUNT_ATTR_*`) to a mount and all below it.
pub fn restrict_mount(target: &Path, attributes: u64) -> Result<()> {
    let target = text(target);
    // SAFETY: an all-zero mount_attr is valid and asks for nothing.
    let mut change: libc::mount_attr = unsafe { zeroed() };
    change.attr_set = attributes;
    // SAFETY: a zero-terminated path and a structure whose size is passed, both outlive the call.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            target.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const change,
            size_of::<libc::mount_attr>(),
        )
    };
    checked(outcome as libc::c_int).map(drop)
}

/// Makes the current folder the root and takes the old root away.
pub fn change_root_to_current_folder() -> Result<()> {
    let here = c".".as_ptr();
    // SAFETY: zero-terminated strings. With both arguments ".", the old root is stacked upon the new one, where
    // the second call finds it (pivot_root(2)).
    checked(unsafe { libc::syscall(libc::SYS_pivot_root, here, here) } as libc::c_int)?;
    // SAFETY: a zero-terminated string.
    checked(unsafe { libc::umount2(here, libc::MNT_DETACH) })?;
    std::env::set_current_dir("/")
}

/// Sets the host name of this UTS namespace.
pub fn set_host_name(name: &str) -> Result<()> {
    // SAFETY: pointer and length of one string.
    checked(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

/// The number of a loop device that has no file yet; another may take it before us.
pub fn free_loop_device(control: BorrowedFd<'_>) -> Result<libc::c_int> {
    const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
    // SAFETY: passes numbers only.
    checked(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) })
}

/// `struct loop_config` of linux/loop.h, of which only what is set here has a name.
#[repr(C)]
struct LoopConfiguration {
    descriptor: u32,
    block_bytes: u32,
    _device_to_key_size: [u32; 13],
    flags: u32,
    _names_to_reserved: [u64; 30],
}

/// Puts a file into a loop device, until the last who has the device open or mounted lets it go. EBUSY: it has one.
pub fn configure_loop_device(device: BorrowedFd<'_>, image: BorrowedFd<'_>) -> Result<()> {
    const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
    const LO_FLAGS_AUTOCLEAR: u32 = 4;
    const { assert!(size_of::<LoopConfiguration>() == 304) };
    let configuration = LoopConfiguration {
        descriptor: image.as_raw_fd() as u32,
        block_bytes: 4096,
        _device_to_key_size: [0; 13],
        flags: LO_FLAGS_AUTOCLEAR,
        _names_to_reserved: [0; 30],
    };
    // SAFETY: LOOP_CONFIGURE reads a loop_config, which outlives the call.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const configuration) }).map(drop)
}

/// Sets a limit of this process and those it starts.
pub fn limit(resource: libc::__rlimit_resource_t, value: u64) -> Result<()> {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: the structure outlives the call.
    checked(unsafe { libc::setrlimit(resource, &limit) }).map(drop)
}

/// Becomes this user with no group besides.
pub fn become_user(user: u32) -> Result<()> {
    // SAFETY: an empty list of groups is passed as a null pointer with length 0; then only numbers.
    unsafe {
        checked(libc::setgroups(0, null()))?;
        checked(libc::setresgid(user, user, user))?;
        checked(libc::setresuid(user, user, user)).map(drop)
    }
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    process: i32,
}

/// Lets no program that is executed from now on gain a capability. Needs CAP_SETPCAP.
pub fn drop_bounding_set() -> Result<()> {
    for capability in 0.. {
        // SAFETY: passes numbers only.
        if let Err(error) = checked(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) }) {
            // There is none of this number: the one before was the last.
            return if error.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(error) };
        }
    }
    Ok(())
}

/// Gives up every capability for good, any way to gain privileges, and being inspected by other processes.
pub fn drop_privileges() -> Result<()> {
    // SAFETY: the calls pass numbers only.
    unsafe {
        checked(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))?;
        checked(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        checked(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0))?;
    }
    let header = CapabilityHeader { version: 0x2008_0522, process: 0 };
    let none = [0_u32; 6];
    // SAFETY: version 3 of the header takes two sets of three words, which `none` has; both outlive the call.
    checked(unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) } as libc::c_int)
        .map(drop)
}

/// Programs that are executed from now on have the same addresses each time.
pub fn fix_layout() -> Result<()> {
    // SAFETY: passes a number.
    checked(unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) }).map(drop)
}

/// CAP_LEASE of linux/capability.h.
const LEASES: u32 = 28;

/// Has a program run as this user, if given, with the one right to ask who uses files that are not its own
/// (CAP_LEASE), and end with the thread that starts it.
pub fn own_user_with_leases(command: &mut Command, user: Option<u32>) {
    let prepare = move || {
        if let Some(user) = user {
            // SAFETY: passes numbers only; nothing is allocated.
            checked(unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) })?;
            become_user(user)?;
            let header = CapabilityHeader { version: 0x2008_0522, process: 0 };
            let sets = [1 << LEASES, 1 << LEASES, 1 << LEASES, 0_u32, 0, 0];
            // SAFETY: version 3 of the header takes two sets of three words, which `sets` has; both outlive the call.
            checked(
                unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) } as libc::c_int
            )?;
            // SAFETY: passes numbers only.
            checked(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, LEASES, 0, 0) })?;
        }
        // SAFETY: passes numbers only.
        checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
        die_with_parent()
    };
    // SAFETY: between fork and exec only system calls are made: nothing is allocated and no lock is taken.
    unsafe { command.pre_exec(prepare) };
}

/// A new session, so that no signal of a terminal reaches it.
pub fn new_session() -> Result<()> {
    // SAFETY: takes nothing.
    checked(unsafe { libc::setsid() }).map(drop)
}

/// Sends bytes and, with them, a descriptor.
pub fn send_with(socket: RawFd, bytes: &[u8], descriptor: Option<RawFd>) -> Result<()> {
    // SAFETY: the callers own both, and keep them open during the call.
    let (socket, descriptor) =
        unsafe { (BorrowedFd::borrow_raw(socket), descriptor.map(|each| BorrowedFd::borrow_raw(each))) };
    Ok(channel::send(socket, bytes, descriptor, SendFlags::empty())?)
}

/// Receives bytes and, if one came with them, a descriptor.
pub fn receive_with(socket: RawFd, buffer: &mut [u8]) -> Result<(usize, Option<OwnedFd>)> {
    // SAFETY: the callers own it, and keep it open during the call.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    let received = channel::receive(socket, buffer, RecvFlags::empty(), true)?;
    Ok((received.bytes, received.file))
}

/// Puts a copy of the descriptor at `place`, to be closed on exec or not.
pub fn duplicate_to(descriptor: RawFd, place: RawFd, close_on_exec: bool) -> Result<()> {
    let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: passes numbers; the caller owns whatever is at `place`.
    checked(unsafe { libc::dup3(descriptor, place, flags) }).map(drop)
}
