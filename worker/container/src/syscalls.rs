//! System calls that neither the standard library nor rustix has as a safe function, and sequences of them.
//! For single-threaded use.

use std::ffi::CString;
use std::io::{Error, Result};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use merge::channel;
use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{
    DumpableBehavior, Gid, Pid, PidfdFlags, Resource, Rlimit, Signal, Uid, WaitOptions, pidfd_open,
    set_dumpable_behavior, set_parent_process_death_signal, setrlimit, waitpid,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    unshare_unsafe,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

fn checked(outcome: libc::c_int) -> Result<libc::c_int> {
    if outcome < 0 { Err(Error::last_os_error()) } else { Ok(outcome) }
}

/// Has the kernel kill this process when the thread that started it ends.
pub fn die_with_parent() -> Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Moves this process into new namespaces.
pub fn unshare(namespaces: UnshareFlags) -> Result<()> {
    // SAFETY: descriptors stay shared; only called while the process has one thread.
    Ok(unsafe { unshare_unsafe(namespaces) }?)
}

/// Forks; `None` in the child.
pub fn fork() -> Result<Option<Pid>> {
    // SAFETY: the launcher has one thread, so the child finds no lock held by another thread.
    Ok(Pid::from_raw(checked(unsafe { libc::fork() })?))
}

/// Has the kernel page out part of another process's memory, whose pidfd this is.
pub fn page_out(process: &OwnedFd, range: std::ops::Range<usize>) -> Result<()> {
    let part = libc::iovec { iov_base: range.start as *mut libc::c_void, iov_len: range.len() };
    // SAFETY: reads one iovec, which outlives the call; it holds an address of the other process,
    // whose memory keeps its contents.
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

/// Becomes readable when a child ends, without a thread that waits.
pub fn ending_of(child: &Child) -> Result<AsyncFd<OwnedFd>> {
    let descriptor = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    // SAFETY: an OwnedFd names one open descriptor, always the same, until it is dropped with the AsyncFd.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}

/// Waits for the end of a child.
pub fn wait(process: Pid) -> Result<()> {
    retry_on_intr(|| waitpid(Some(process), WaitOptions::empty()))?;
    Ok(())
}

/// Adds attributes (`MOUNT_ATTR_*`) to a mount and all below it.
pub fn restrict_mount(target: &Path, attributes: u64) -> Result<()> {
    change_mount(target, attributes, 0, libc::AT_RECURSIVE)
}

/// Removes `MOUNT_ATTR_RDONLY` from a mount, and not from those below it.
pub fn allow_writing(target: &Path) -> Result<()> {
    change_mount(target, 0, libc::MOUNT_ATTR_RDONLY, 0)
}

fn change_mount(target: &Path, set: u64, clear: u64, flags: libc::c_int) -> Result<()> {
    let target = CString::new(target.as_os_str().as_bytes())?;
    // SAFETY: an all-zero mount_attr is valid and asks for nothing.
    let mut change: libc::mount_attr = unsafe { zeroed() };
    (change.attr_set, change.attr_clr) = (set, clear);
    // SAFETY: a zero-terminated path and a structure whose size is passed, both outlive the call.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            target.as_ptr(),
            flags,
            &raw const change,
            size_of::<libc::mount_attr>(),
        )
    };
    checked(outcome as libc::c_int).map(drop)
}

/// The number of a loop device that has no file yet; another process may take it first.
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

/// Puts a file into a loop device, until the last process that has the device open or mounted closes it.
/// EBUSY: it has one.
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
pub fn limit(resource: Resource, value: u64) -> Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })?)
}

/// Becomes this user with no group besides.
pub fn become_user(user: u32) -> Result<()> {
    let (group, user) = (Gid::from_raw(user), Uid::from_raw(user));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    Ok(set_thread_res_uid(user, user, user)?)
}

/// Lets no program that is executed from now on gain a capability. Needs CAP_SETPCAP.
pub fn drop_bounding_set() -> Result<()> {
    for number in 0..u64::BITS {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            // There is no capability of this number: the one before was the last.
            Err(rustix::io::Errno::INVAL) => break,
            dropped => dropped?,
        }
    }
    Ok(())
}

/// Gives up every capability for good, any way to gain privileges, and being inspected by other processes.
pub fn drop_privileges() -> Result<()> {
    clear_ambient_capability_set()?;
    set_no_new_privs(true)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

/// Programs that are executed from now on have the same addresses each time.
pub fn fix_layout() -> Result<()> {
    // SAFETY: passes a number.
    checked(unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) }).map(drop)
}

/// Has a program run as this user, if given, with the one right to ask whether other processes use files
/// that are not its own (CAP_LEASE), and end with the thread that starts it.
pub fn own_user_with_leases(command: &mut Command, user: Option<u32>) {
    let prepare = move || {
        if let Some(user) = user {
            set_keep_capabilities(true)?;
            become_user(user)?;
            let lease = CapabilitySet::LEASE;
            set_capabilities(
                None,
                CapabilitySets { effective: lease, permitted: lease, inheritable: lease },
            )?;
            configure_capability_in_ambient_set(lease, true)?;
        }
        set_no_new_privs(true)?;
        die_with_parent()
    };
    // SAFETY: between fork and exec only system calls are made: nothing is allocated and no lock is taken.
    unsafe { command.pre_exec(prepare) };
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
