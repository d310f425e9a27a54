//! `mayfly who`: which part of a process's memory is malloc's, and so a heap's to save, and who has the rest.

pub mod account;
mod cpython;
mod glibc;
pub mod mapping;
mod mayfly;
mod memory;
pub mod owner;

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;

use self::account::{Account, Accountant};

const EXAMPLES: &str = "\
Examples:
  mayfly who 1234                  a line for malloc, and one for each other that has memory
  mayfly who --json $(pidof node)

A heap in place of malloc can save of malloc's part alone. Past malloc are runtimes (V8, Go, a JVM, CPython's arenas) and
allocators that are linked into a library under names of their own (jemalloc, mimalloc). Where a part may be
either's, the line names both. Objects of glibc's malloc that have a mapping of their own are read from the process's
memory, for which the kernel wants root, or the process's user if it lets one user's processes look at each other.";

/// Show who has a process's memory: malloc, a runtime, an allocator of a library's own
#[derive(Args)]
#[command(after_long_help = EXAMPLES, after_help = "Examples: mayfly who --help")]
pub struct WhoArguments {
    /// The processes
    #[arg(value_name = "PID", required = true)]
    pids: Vec<u32>,
    /// Print one JSON object for each
    #[arg(long)]
    json: bool,
}

impl WhoArguments {
    /// Prints the accounts; returns 0.
    ///
    /// # Errors
    /// There is no such process, or it is another user's.
    pub fn execute(self) -> Result<i32> {
        let mut accountant = Accountant::default();
        for pid in self.pids {
            let account = accountant.account(pid)?;
            if self.json {
                println!("{}", serde_json::Value::Object(account.as_json()));
            } else {
                print!("{}", account.described());
            }
        }
        Ok(0)
    }
}

/// Looks at a process now and then while it runs: at its end the kernel has no account of it any more.
pub struct Watch {
    accountant: Accountant,
    next: Instant,
    last: Option<Account>,
}

/// Between two looks; more where one takes long, files aside that it reads for the first time.
const EVERY: Duration = Duration::from_secs(1);
const PART_OF_THE_TIME: u32 = 50;

impl Watch {
    /// Begins.
    pub fn new() -> Watch {
        Watch { accountant: Accountant::default(), next: Instant::now(), last: None }
    }

    /// Looks, if it is time.
    pub fn look(&mut self, pid: u32) {
        let begun = Instant::now();
        if begun < self.next {
            return;
        }
        let known = self.accountant.files();
        if let Some(account) = self.accountant.account(pid).ok().filter(|account| account.total() > 0) {
            self.last = Some(account);
        }
        let is_usual = self.accountant.files() == known;
        let took = if is_usual { begun.elapsed() } else { Duration::ZERO };
        self.next = Instant::now() + EVERY.max(took * PART_OF_THE_TIME);
    }

    /// The last account before the end; none of a program that was too short.
    pub fn last(self) -> Option<Account> {
        self.last
    }
}

impl Default for Watch {
    fn default() -> Self {
        Watch::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_read_once_do_not_delay_the_next_look() {
        let mut watch = Watch::new();
        let begun = Instant::now();
        watch.look(std::process::id()); // reads this program and all its symbols
        assert!(begun.elapsed() * PART_OF_THE_TIME > EVERY, "it was not long: {:?}", begun.elapsed());
        assert!(watch.next <= Instant::now() + EVERY);
    }
}
