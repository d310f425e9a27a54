//! Memory that the kernel itself writes to: the stacks of threads; what lies at their ends, which is a
//! thread's storage with its rseq area, list of robust locks and thread ID; and signal stacks. Where only the
//! userfaultfd for user mode is permitted, a write of the kernel to a frozen page ends the thread. So these
//! pages are excluded.
//!
//! Thread stacks are mappings without a name. But the kernel reports the address of each thread's list of
//! robust locks, and the C library keeps that at the end of the stack.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::base::page::PAGE_BYTES;
use crate::client::address_space;

/// A stack's length where no limit is set.
const STACK: usize = 8 << 20;
/// Before the list, the thread ID; of the list, its three words; of the rseq area, the part that the kernel
/// has ever written. No more: other memory may begin right behind them.
const BEFORE: usize = 64;
const LIST: usize = 24;
const RSEQ: usize = 32;

/// How long the ranges stay valid. A refresh takes some microseconds for each thread.
const MAX_AGE: Duration = Duration::from_millis(5);

/// The ranges to leave alone, refreshed during a call: threads start and exit.
#[derive(Default)]
pub struct ExcludedRanges {
    ranges: Vec<Range<usize>>,
    since: Option<Instant>,
}

impl ExcludedRanges {
    /// Finds the ranges again.
    pub fn refresh(&mut self) {
        self.ranges = find_excluded();
        self.since = Some(Instant::now());
    }

    /// Finds the ranges again if they are older than [`MAX_AGE`].
    pub fn refresh_if_stale(&mut self) {
        if self.since.is_none_or(|since| since.elapsed() > MAX_AGE) {
            self.refresh();
        }
    }

    /// The ranges at the last refresh.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }
}

/// The ranges to leave alone now, in whole pages.
fn find_excluded() -> Vec<Range<usize>> {
    let here = 0u8;
    let mut all = vec![stack_at(&raw const here as usize)];
    all.extend(signal_stack());
    let to_rseq = rseq().zip(robust_list(0)).map(|(rseq, own)| rseq.wrapping_sub(own));
    // SAFETY: takes no arguments.
    let first = unsafe { libc::getpid() };
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let Some(thread) = task.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Some(list) = robust_list(thread) else { continue };
        let rseq = to_rseq.map_or(list, |distance| list.wrapping_add(distance));
        let low = (list - BEFORE).min(rseq) / PAGE_BYTES * PAGE_BYTES;
        let high = (list + LIST).max(rseq + RSEQ).next_multiple_of(PAGE_BYTES);
        // The main thread's stack has a name, and is a mapping apart from this.
        all.push(if thread == first { low..high } else { stack_at(list).start.min(low)..high });
    }
    all
}

/// This thread's rseq area, if the C library has one: every thread's is at the same distance from its list.
fn rseq() -> Option<usize> {
    let thread: usize;
    // SAFETY: the first word at fs is its own address.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, preserves_flags, readonly));
    }
    // SAFETY: every process may read the register.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) thread, options(nostack, preserves_flags, nomem));
    }
    // SAFETY: a C string; the C library's variable of this name has this type.
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
        (!offset.is_null()).then(|| thread.wrapping_add_signed(*offset))
    }
}

fn robust_list(thread: i32) -> Option<usize> {
    let (mut head, mut bytes) = (0usize, 0usize);
    // SAFETY: the kernel writes two words.
    let failed =
        unsafe { libc::syscall(libc::SYS_get_robust_list, thread, &raw mut head, &raw mut bytes) } != 0;
    (!failed && head != 0).then_some(head)
}

fn longest_stack() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    limit.map_or(STACK, |bytes| STACK.max(bytes.min(1 << 30) as usize))
}

/// The stack around an address: as far down as memory is writable without a gap, for a stack has a gap below
/// it.
fn stack_at(address: usize) -> Range<usize> {
    let top = (address + LIST).next_multiple_of(PAGE_BYTES);
    let lowest = address.saturating_sub(longest_stack()) / PAGE_BYTES * PAGE_BYTES;
    let own = writable_run(address..address + 1);
    // Nearly always a stack is one mapping with a gap below. Others, parts of which were advised before, are
    // walked through.
    let is_whole = own.start > lowest && writable_run(own.start - 1..own.start).is_empty();
    let run = if is_whole { own } else { writable_run(lowest..address + 1) };
    if run.contains(&address) { run.start.max(lowest)..run.end.min(top) } else { lowest..top }
}

/// The last run of writable mappings in a range, whole.
fn writable_run(range: Range<usize>) -> Range<usize> {
    let mut run = 0..0;
    let result = address_space::each(&range, |view| {
        if !view.writable || view.shared {
            run = 0..0;
        } else if view.range.start == run.end {
            run.end = view.range.end;
        } else {
            run = view.range;
        }
    });
    if result.is_ok() { run } else { 0..0 }
}

/// This thread's signal stack, if it has one.
fn signal_stack() -> Option<Range<usize>> {
    // SAFETY: only reads the setting.
    let stack = unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        (libc::sigaltstack(std::ptr::null(), &mut stack) == 0 && stack.ss_flags & libc::SS_DISABLE == 0)
            .then_some(stack)?
    };
    let start = stack.ss_sp as usize;
    Some(start / PAGE_BYTES * PAGE_BYTES..(start + stack.ss_size).next_multiple_of(PAGE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_the_stacks_of_all_threads() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let local = [1u8; 64];
            sender.send(&raw const local as usize).unwrap();
            let _ = ended.recv();
        });
        let other = receiver.recv().unwrap();
        let own = 0u8;
        let block = vec![1u8; 64 << 20];
        let all = find_excluded();
        let is_excluded = |address: usize| all.iter().any(|range| range.contains(&address));
        assert!(is_excluded(other) && is_excluded(&raw const own as usize));
        let block = block.as_ptr() as usize;
        let lost = (block..block + (64 << 20)).step_by(PAGE_BYTES).filter(|&at| is_excluded(at)).count();
        assert!(lost < 16, "{lost} pages of other memory");
        drop(end);
        thread.join().unwrap();
    }
}
