//! A connection's windows (vm-protocol's `window`), shared by the two threads that serve it and the one that
//! reads from the host.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use vm_protocol::window::{Overrun, Window};

/// The connections of one instance in one direction.
pub struct Connections {
    count: AtomicUsize,
    /// How many there may be at one time.
    most: usize,
    /// The instance's last process has ended.
    ended: AtomicBool,
}

/// One connection, counted until its last reference is dropped.
pub struct Connection {
    window: Mutex<Window>,
    /// Data or a grant arrived, or the connection ended.
    changed: Condvar,
    of: Arc<Connections>,
}

impl Connections {
    /// None yet.
    pub fn new(most: u32) -> Arc<Connections> {
        Arc::new(Connections {
            count: AtomicUsize::new(0),
            most: most as usize,
            ended: AtomicBool::new(false),
        })
    }

    /// A new connection, unless the instance has the most that it may have.
    pub fn open(self: &Arc<Self>) -> Option<Arc<Connection>> {
        let allowed = self.count.fetch_add(1, Ordering::Relaxed) < self.most;
        let flow = Connection { window: Mutex::default(), changed: Condvar::new(), of: Arc::clone(self) };
        allowed.then(|| Arc::new(flow))
    }

    /// The instance's processes have ended: no thread waits any longer for the host to grant room for their
    /// data.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.of.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().expect("not poisoned")
    }

    fn change<T>(&self, change: impl FnOnce(&mut Window) -> T) -> T {
        let outcome = change(&mut self.window());
        self.changed.notify_all();
        outcome
    }

    /// Data arrived from the host. If it is more than was granted, the connection must be closed.
    pub fn arrive(&self, bytes: Vec<u8>) -> Result<(), Overrun> {
        self.change(|window| window.arrive(bytes))
    }

    /// The host grants more.
    pub fn granted(&self, grant: &[u8]) -> Result<(), Overrun> {
        self.change(|window| window.granted(grant))
    }

    /// The connection is closed both ways.
    pub fn close(&self) {
        self.change(Window::close);
    }

    /// Wakes the threads that wait, to check again.
    pub fn wake(&self) {
        self.change(|_| ());
    }

    pub fn is_of(&self, connections: &Arc<Connections>) -> bool {
        Arc::ptr_eq(&self.of, connections)
    }

    /// The next part of the host's data; waits for it. `None`: the connection is closed and all data was
    /// returned.
    pub fn next(&self) -> Option<Vec<u8>> {
        let mut window = self.window();
        loop {
            match window.pop() {
                None if !window.is_closed() => window = self.changed.wait(window).expect("not poisoned"),
                part => return part,
            }
        }
    }

    /// The instance has read this much. `Some`: the grant to send to the host.
    pub fn taken(&self, bytes: usize) -> Option<[u8; 4]> {
        self.window().taken(bytes)
    }

    /// How much may be sent to the host; waits until it is more than 0. `None`: nothing more may be sent.
    pub fn room(&self) -> Option<usize> {
        let mut window = self.window();
        loop {
            match window.room() {
                _ if window.is_closed() => return None,
                0 if self.of.ended.load(Ordering::Relaxed) => return None,
                0 => window = self.changed.wait(window).expect("not poisoned"),
                room => return Some(room),
            }
        }
    }

    /// This much was sent to the host.
    pub fn sent(&self, bytes: usize) {
        self.window().sent(bytes);
    }
}
