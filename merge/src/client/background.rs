//! The asynchronous form (UPM §VII): one thread, started on demand, that runs calls in order.

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::base::error::Error;
use crate::client::flags::Flags;
use crate::client::remap::BlockedSignals;

/// Identifies a call that has begun.
pub type Ticket = i64;

/// The call that the thread runs.
pub type Advise = fn(&[(usize, usize)], Flags) -> Result<(), Error>;

#[derive(Default)]
struct State {
    next: Ticket,
    /// Calls whose result has not been fetched; None while they run.
    open: HashMap<Ticket, Option<Result<(), Error>>>,
    queue: Option<Sender<(Ticket, usize, usize, Flags)>>,
    /// Tickets up to here belong to a parent of this process.
    inherited: Ticket,
}

/// The calls of this process.
#[derive(Default)]
pub struct Background {
    state: Mutex<State>,
    done: Condvar,
}

impl Background {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A child's, in place of its parent's: fork does not copy the thread.
    pub fn of_child(parent: &Background) -> Background {
        let next = parent.state.try_lock().map_or(i64::MAX / 2, |state| state.next);
        let state = State { next, inherited: next, ..State::default() };
        Background { state: Mutex::new(state), done: Condvar::new() }
    }

    /// Begins a call.
    pub fn begin(
        self: &Arc<Self>,
        address: usize,
        length: usize,
        flags: Flags,
        advise: Advise,
    ) -> Result<Ticket, Error> {
        let mut state = self.state();
        if state.queue.is_none() {
            let (sender, receiver) = channel::<(Ticket, usize, usize, Flags)>();
            let background = self.clone();
            let run = move || {
                for (ticket, address, length, flags) in receiver {
                    let result = advise(&[(address, length)], flags);
                    background.state().open.insert(ticket, Some(result));
                    background.done.notify_all();
                }
            };
            // The program's signals are for its own threads: this thread starts with all of them blocked.
            let _blocked = BlockedSignals::new();
            std::thread::Builder::new().name("mayfly-merge".into()).spawn(run).map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
                Error::new(errno, format!("a thread to merge in the background: {error}"))
            })?;
            state.queue = Some(sender);
        }
        state.next += 1;
        let ticket = state.next;
        state.open.insert(ticket, None);
        if let Some(queue) = &state.queue {
            let _ = queue.send((ticket, address, length, flags));
        }
        Ok(ticket)
    }

    /// Waits for a call, up to `timeout` if there is one.
    pub fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<(), Error> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut state = self.state();
        loop {
            match state.open.get(&ticket) {
                None if ticket > 0 && ticket <= state.inherited => {
                    return Err(Error::new(
                        libc::ECANCELED,
                        format!("ticket {ticket} was begun before the fork"),
                    ));
                }
                None => {
                    return Err(Error::new(
                        libc::EINVAL,
                        format!("no ticket {ticket}, or its result was fetched before"),
                    ));
                }
                Some(Some(_)) => return state.open.remove(&ticket).flatten().unwrap_or(Ok(())),
                Some(None) => {}
            }
            state = match deadline {
                None => self.done.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner()),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(Error::new(libc::ETIMEDOUT, format!("ticket {ticket} is not done yet")));
                    }
                    self.done.wait_timeout(state, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0
                }
            };
        }
    }
}
