//! What the kernel itself writes to: the stacks of threads, and what lies at their ends, a thread's storage with its rseq area, its
//! list of robust locks and its id; and stacks for signals. Where only the userfaultfd for user mode is permitted, a write of
//! the kernel to a frozen page ends the thread. So these pages stay out.
//!
//! Stacks of threads are mappings without a name. But the kernel tells where each thread's list of robust locks is, and the C
//! library keeps that at the end of the stack.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::base::page::PAGE_BYTES;
use crate::client::address_space;

/// A stack's length where nothing else is said.
const STACK: usize = 8 << 20;
/// Before the list, the thread's id; of the list, its three words; of the rseq area, what the kernel has ever written. No more: other
/// memory may begin right behind them.
const BEFORE: usize = 64;
const LIST: usize = 24;
const RSEQ: usize = 32;

/// How long what was found out is believed. A look takes some microseconds for each thread.
const FRESH: Duration = Duration::from_millis(5);

/// The ranges to leave alone, looked at again while a call goes on: threads come and go.
#[derive(Default)]
pub struct KeptOut {
    ranges: Vec<Range<usize>>,
    since: Option<Instant>,
}

impl KeptOut {
    /// Looks.
    pub fn look(&mut self) {
        self.ranges = kept_out();
        self.since = Some(Instant::now());
    }

    /// Looks, unless it has just looked.
    pub fn look_again(&mut self) {
        if self.since.is_none_or(|since| since.elapsed() > FRESH) {
            self.look();
        }
    }

    /// As they were when it looked last.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }
}

/// The ranges to leave alone now, whole pages.
fn kept_out() -> Vec<Range<usize>> {
    let here = 0u8;
    let mut all = vec![stack_at(&raw const here as usize)];
    all.extend(signal_stack());
    let to_rseq = rseq().zip(robust_list(0)).map(|(rseq, own)| rseq.wrapping_sub(own));
    // SAFETY: takes nothing.
    let first = unsafe { libc::getpid() };
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let Some(thread) = task.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Some(list) = robust_list(thread) else { continue };
        let rseq = to_rseq.map_or(list, |distance| list.wrapping_add(distance));
        let low = (list - BEFORE).min(rseq) / PAGE_BYTES * PAGE_BYTES;
        let high = (list + LIST).max(rseq + RSEQ).next_multiple_of(PAGE_BYTES);
        // The first thread's stack has a name, and is a mapping apart from this.
        all.push(if thread == first { low..high } else { stack_at(list).start.min(low)..high });
    }
    all
}

/// Where this thread's rseq area is, if the C library has one: as far from its list as any other thread's.
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

/// What lies around an address: as far down as memory can be written without a gap, as a stack has one below it.
fn stack_at(address: usize) -> Range<usize> {
    let top = (address + LIST).next_multiple_of(PAGE_BYTES);
    let lowest = address.saturating_sub(longest_stack()) / PAGE_BYTES * PAGE_BYTES;
    let own = written_in(address..address + 1);
    // Nearly always a stack is one mapping with a gap below. Others, parts of what was advised before, are walked through.
    let is_whole = own.start > lowest && written_in(own.start - 1..own.start).is_empty();
    let run = if is_whole { own } else { written_in(lowest..address + 1) };
    if run.contains(&address) { run.start.max(lowest)..run.end.min(top) } else { lowest..top }
}

/// The last run of mappings in a range that can be written, whole.
fn written_in(range: Range<usize>) -> Range<usize> {
    let mut run = 0..0;
    let told = address_space::each(&range, |view| {
        if !view.writable || view.shared {
            run = 0..0;
        } else if view.range.start == run.end {
            run.end = view.range.end;
        } else {
            run = view.range;
        }
    });
    if told.is_ok() { run } else { 0..0 }
}

/// Where this thread's signal handlers run, if not on its stack.
fn signal_stack() -> Option<Range<usize>> {
    // SAFETY: only asks.
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
    fn stacks_of_all_threads_are_kept_out() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let local = [1u8; 64];
            tell.send(&raw const local as usize).unwrap();
            let _ = ended.recv();
        });
        let other = told.recv().unwrap();
        let own = 0u8;
        let block = vec![1u8; 64 << 20];
        let all = kept_out();
        let is_kept_out = |address: usize| all.iter().any(|range| range.contains(&address));
        assert!(is_kept_out(other) && is_kept_out(&raw const own as usize));
        let block = block.as_ptr() as usize;
        let lost = (block..block + (64 << 20)).step_by(PAGE_BYTES).filter(|&at| is_kept_out(at)).count();
        assert!(lost < 16, "{lost} pages of other memory");
        drop(end);
        thread.join().unwrap();
    }
}
