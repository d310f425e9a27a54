//! Takes a node's memory blocks offline and brings them back online. In mode `nodes` the agent takes an empty
//! partition offline before the host requests the unplug; then the virtio-mem driver only has to hand the
//! blocks over. For a block that is online the driver first allocates every page, which Debian's kernel
//! zeroes (`init_on_alloc`), and if a page is in use for a moment it retries after one second, then two, then
//! four.

use std::fs;
use std::fs::File;
use std::io::Write;
use std::os::unix::thread::JoinHandleExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The kernel retries without end to move the pages left in a block. After this time the driver gets the
/// rest.
const PATIENCE: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(50);
/// The kernel changes one block at a time. Partitions that are unplugged at the same time go one after the
/// other: with their blocks interleaved each would take as long as all of them.
static TURN: Mutex<()> = Mutex::new(());

/// Takes the blocks of a node offline. Blocks that take too long stay online, for the driver to unplug.
pub fn take_offline(node: u32) {
    let (done, end) = channel();
    let work = move || {
        change(node, "online", "offline");
        let _ = done.send(());
    };
    if !can_interrupt() {
        return;
    }
    let _turn = TURN.lock().expect("not poisoned");
    let Ok(worker) = std::thread::Builder::new().spawn(work) else { return };
    let mut patience = PATIENCE;
    while end.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
        // SAFETY: the thread was not joined, so it can be named; the signal's handler does nothing.
        unsafe { libc::pthread_kill(worker.as_pthread_t(), libc::SIGUSR1) };
        patience = RETRY;
    }
    let _ = worker.join();
}

/// Undoes [`take_offline`] when an unplug is cancelled. Newly plugged blocks come online by themselves.
pub fn bring_online(node: u32) {
    change(node, "offline", "online_movable");
}

/// Changes the blocks of a node that are in state `from`; stops at the first failure.
fn change(node: u32, from: &str, to: &str) {
    for state in states_of(node) {
        let is = fs::read_to_string(&state).unwrap_or_default();
        // One attempt: a write that a signal has interrupted is not retried.
        if is.trim() == from && !File::options().write(true).open(&state).is_ok_and(|file| write(file, to)) {
            return;
        }
    }
}

fn write(mut file: File, text: &str) -> bool {
    file.write(text.as_bytes()).is_ok()
}

/// The `state` files of this node's blocks.
fn states_of(node: u32) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(format!("/sys/devices/system/node/node{node}")).into_iter().flatten().flatten();
    let is_block = |name: &str| {
        name.strip_prefix("memory").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let blocks = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_block));
    blocks.map(|entry| entry.path().join("state")).collect()
}

/// Makes SIGUSR1 interrupt a system call, and do nothing else.
fn can_interrupt() -> bool {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: all zeros is a valid value of this structure: an empty mask, no flags, so that calls are not
    // restarted.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: a handler that does nothing may run at any time; nothing else here uses this signal.
    unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) == 0 }
}
