//! A connection's windows (vm-protocol's `window`), between the two threads that serve it and the one that hears the host.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use vm_protocol::window::{Overrun, Window};

/// Connections of one instance at one time.
const CONNECTIONS: usize = 8;

/// Those of one instance.
#[derive(Default)]
pub struct Connections {
    open: AtomicUsize,
    /// None of its processes is left.
    ended: AtomicBool,
}

/// One connection, until all that know it have dropped it.
pub struct Flow {
    window: Mutex<Window>,
    /// Something came, was granted, or ended.
    changed: Condvar,
    of: Arc<Connections>,
}

impl Connections {
    /// One more, unless they are as many as there may be.
    pub fn begin(self: &Arc<Self>) -> Option<Arc<Flow>> {
        let few = self.open.fetch_add(1, Ordering::Relaxed) < CONNECTIONS;
        let flow = Flow { window: Mutex::default(), changed: Condvar::new(), of: Arc::clone(self) };
        few.then(|| Arc::new(flow))
    }

    /// Its processes are gone: nobody waits any longer for the host to take what they have sent.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.of.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Flow {
    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().expect("not poisoned")
    }

    fn change<T>(&self, change: impl FnOnce(&mut Window) -> T) -> T {
        let outcome = change(&mut self.window());
        self.changed.notify_all();
        outcome
    }

    /// The host sent this. It does not send more than it was granted; if it does, the connection is over.
    pub fn arrive(&self, bytes: Vec<u8>) -> Result<(), Overrun> {
        self.change(|window| window.arrive(bytes))
    }

    /// The host grants more.
    pub fn granted(&self, grant: &[u8]) -> Result<(), Overrun> {
        self.change(|window| window.granted(grant))
    }

    /// Nothing more will come or be taken.
    pub fn close(&self) {
        self.change(Window::close);
    }

    /// Those who wait look again.
    pub fn wake(&self) {
        self.change(|_| ());
    }

    pub fn is_of(&self, connections: &Arc<Connections>) -> bool {
        Arc::ptr_eq(&self.of, connections)
    }

    /// The next part of what the host sends; waits for it. `None`: that was all.
    pub fn next(&self) -> Option<Vec<u8>> {
        let mut window = self.window();
        loop {
            match window.pop() {
                None if !window.is_closed() => window = self.changed.wait(window).expect("not poisoned"),
                part => return part,
            }
        }
    }

    /// The instance has so much of it. `Some`: what is to be granted to the host.
    pub fn taken(&self, bytes: usize) -> Option<[u8; 4]> {
        self.window().taken(bytes)
    }

    /// How much may be sent to the host; waits until it is something. `None`: nothing more will be taken.
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

    /// So much of it is sent.
    pub fn sent(&self, bytes: usize) {
        self.window().sent(bytes);
    }
}
