//! A connection's windows (vm-protocol's `window`), between the task that carries it and the one that reads
//! from the guest.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use vm::protocol::window::{Overrun, Window};

/// One connection's.
#[derive(Default)]
pub struct Flow {
    window: Mutex<Window>,
    came: Notify,
    granted: Notify,
}

impl Flow {
    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores bytes that the guest has sent.
    ///
    /// # Errors
    /// The guest has sent more than it was granted.
    pub fn arrive(&self, bytes: Vec<u8>) -> Result<(), Overrun> {
        self.window().arrive(bytes)?;
        self.came.notify_one();
        Ok(())
    }

    /// Adds to the bytes that may be sent to the guest.
    ///
    /// # Errors
    /// The guest has granted more than it was sent.
    pub fn granted(&self, grant: &[u8]) -> Result<(), Overrun> {
        self.window().granted(grant)?;
        self.granted.notify_one();
        Ok(())
    }

    /// Nothing more will come.
    pub fn close(&self) {
        self.window().close();
        self.came.notify_one();
    }

    /// The next part of what the guest sends. `None`: that was all.
    pub async fn next(&self) -> Option<Vec<u8>> {
        loop {
            {
                let mut window = self.window();
                match window.pop() {
                    None if !window.is_closed() => {}
                    part => return part,
                }
            }
            self.came.notified().await;
        }
    }

    /// Counts bytes that the worker has received. `Some`: a grant to send to the guest.
    pub fn taken(&self, bytes: usize) -> Option<[u8; 4]> {
        self.window().taken(bytes)
    }

    /// Waits until something may be sent to the guest, and returns how much.
    pub async fn room(&self) -> usize {
        loop {
            match self.window().room() {
                0 => {}
                room => return room,
            }
            self.granted.notified().await;
        }
    }

    /// Counts bytes that were sent to the guest.
    pub fn sent(&self, bytes: usize) {
        self.window().sent(bytes);
    }
}
