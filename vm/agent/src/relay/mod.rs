//! Connections of confined instances, carried to the host (vm-protocol's `relay`).
//!
//! Each such instance has a network of its own with a loopback device, and a tunnel if it reaches further. The agent listens there, so that
//! the instance reaches the host's one service for it and nothing else. A reader and a writer thread serve each
//! connection, neither of which goes on before there is room in the window of the other side.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Error, Read, Result, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::Duration;

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::thread::UnshareFlags;
use vm_protocol::relay::{HEADER_BYTES, Header, Kind, MOST_BYTES, PORT};
use vm_protocol::window::{Overrun, WINDOW_BYTES};
use vm_sandbox::network;

use crate::flow_control::{Connections, Flow};
use crate::port;

pub const STACK_BYTES: usize = 128 << 10;
/// What an instance knows its tunnel by.
const OUTSIDE: &str = "eth0";
/// Before the next try where a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(10);

/// Where what comes from the host goes.
pub enum Stream {
    Bytes(Arc<Flow>),
    Packets(Arc<File>),
}

/// Those of all instances, over one line to the host.
pub struct Streams {
    writer: Mutex<File>,
    streams: Mutex<HashMap<u32, Stream>>,
    next: AtomicU32,
}

/// Listens for one instance. Dropping it ends that, once the instance's processes are gone; its connections end with them, for what
/// they have sent may lie in the instance's memory until it is read.
pub struct Listener {
    listener: TcpListener,
    relay: Arc<Streams>,
    connections: Arc<Connections>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: passes numbers; the listener is open. It wakes the thread that accepts.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        self.connections.end();
        for stream in self.relay.streams.lock().expect("not poisoned").values() {
            if let Stream::Bytes(flow) = stream
                && flow.is_of(&self.connections)
            {
                flow.wake();
            }
        }
    }
}

impl Streams {
    /// Opens the line, if the host has made one.
    pub fn open() -> Option<Arc<Streams>> {
        let device = File::from(port::find_named(PORT)?);
        rustix::fs::fcntl_setfl(&device, rustix::fs::OFlags::empty()).ok()?;
        Streams::over(device)
    }

    fn over(device: File) -> Option<Arc<Streams>> {
        let reader = device.try_clone().ok()?;
        // An agent that comes after another must not use its numbers: the host may still know them.
        let mut seed = [0; 4];
        let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
        let relay = Arc::new(Streams {
            writer: Mutex::new(device),
            streams: Mutex::default(),
            next: AtomicU32::new(u32::from_le_bytes(seed)),
        });
        let filled = Arc::clone(&relay);
        Builder::new().stack_size(2 * STACK_BYTES).spawn(move || filled.deliver(reader)).ok()?;
        Some(relay)
    }

    /// What the host sends, to the connections it is for.
    fn deliver(&self, mut reader: File) {
        let mut head = [0; HEADER_BYTES];
        while reader.read_exact(&mut head).is_ok() {
            let Some(header) = Header::decode(head) else {
                eprintln!("vm-agent: the host's relay is out of step");
                return;
            };
            let mut bytes = vec![0; header.bytes];
            if reader.read_exact(&mut bytes).is_err() {
                return;
            }
            if self.hear(header, bytes).is_err() {
                eprintln!("vm-agent: the host does not keep to a connection's window: it ends");
                self.forget(header.stream);
            }
        }
    }

    fn hear(&self, header: Header, bytes: Vec<u8>) -> std::result::Result<(), Overrun> {
        let streams = self.streams.lock().expect("not poisoned");
        match (header.kind, streams.get(&header.stream)) {
            (Kind::Data, Some(Stream::Bytes(flow))) => return flow.arrive(bytes),
            (Kind::Grant, Some(Stream::Bytes(flow))) => return flow.granted(&bytes),
            // One that is not taken is lost, as packets may be.
            (Kind::Data, Some(Stream::Packets(device))) => drop((&**device).write(&bytes)),
            (Kind::Close, Some(_)) => {
                drop(streams);
                self.forget(header.stream);
            }
            // It was closed here a moment ago.
            _ => {}
        }
        Ok(())
    }

    /// Opens a stream on behalf of an instance, and gives its number.
    pub fn open_stream(&self, kind: Kind, instance: &str, stream: Stream) -> Result<u32> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.streams.lock().expect("not poisoned").insert(number, stream);
        self.send(number, kind, instance.as_bytes()).inspect_err(|_| self.forget(number))?;
        Ok(number)
    }

    /// Nothing more will come or be taken.
    pub fn close_stream(&self, number: u32) {
        self.forget(number);
        let _ = self.send(number, Kind::Close, &[]);
    }

    fn forget(&self, number: u32) {
        let stream = self.streams.lock().expect("not poisoned").remove(&number);
        if let Some(Stream::Bytes(flow)) = stream {
            flow.close();
        }
    }

    pub fn send(&self, stream: u32, kind: Kind, bytes: &[u8]) -> Result<()> {
        let mut frame = Header { stream, kind, bytes: bytes.len() }.encode().to_vec();
        frame.extend(bytes);
        self.writer.lock().expect("not poisoned").write_all(&frame)
    }

    /// Accepts connections for an instance until its [`Listener`] is dropped.
    pub fn serve(self: &Arc<Self>, instance: &str, listener: TcpListener) -> Result<Listener> {
        let connections = Arc::new(Connections::default());
        let guard = Listener {
            listener: listener.try_clone()?,
            relay: Arc::clone(self),
            connections: Arc::clone(&connections),
        };
        let (relay, instance) = (Arc::clone(self), instance.to_string());
        Builder::new().stack_size(STACK_BYTES).spawn(move || {
            loop {
                let connection = match listener.accept() {
                    Ok((connection, _)) => connection,
                    // It was shut down.
                    Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return,
                    // The caller went away, or descriptors are used up for now.
                    Err(_) => {
                        std::thread::sleep(PAUSE);
                        continue;
                    }
                };
                if let Some(flow) = connections.begin() {
                    relay.carry(&instance, connection, flow);
                }
            }
        })?;
        Ok(guard)
    }

    /// Carries one connection; whatever fails ends it.
    fn carry(self: &Arc<Self>, instance: &str, connection: TcpStream, flow: Arc<Flow>) {
        let _ = connection.set_nodelay(true);
        let Ok(to_instance) = connection.try_clone() else { return };
        let Ok(number) = self.open_stream(Kind::Open, instance, Stream::Bytes(Arc::clone(&flow))) else {
            return;
        };
        let (giver, given) = (Arc::clone(self), Arc::clone(&flow));
        let giving =
            Builder::new().stack_size(STACK_BYTES).spawn(move || giver.give(number, &given, to_instance));
        let relay = Arc::clone(self);
        let started = giving.and_then(|_| {
            Builder::new().stack_size(STACK_BYTES).spawn(move || relay.take(number, &flow, connection))
        });
        if started.is_err() {
            self.close_stream(number);
        }
    }

    /// What an instance sends, to the host.
    fn take(&self, number: u32, flow: &Flow, mut connection: TcpStream) {
        let mut bytes = vec![0; MOST_BYTES];
        while let Some(room) = flow.room()
            && let Ok(count @ 1..) = connection.read(&mut bytes[..room])
        {
            flow.sent(count);
            if self.send(number, Kind::Data, &bytes[..count]).is_err() {
                break;
            }
        }
        // The other thread ends with it.
        self.close_stream(number);
    }

    /// What the host sends, to an instance.
    fn give(&self, number: u32, flow: &Flow, mut connection: TcpStream) {
        while let Some(part) = flow.next() {
            if connection.write_all(&part).is_err() {
                break;
            }
            if let Some(grant) = flow.taken(part.len())
                && self.send(number, Kind::Grant, &grant).is_err()
            {
                break;
            }
        }
        // The other thread's read ends with it.
        let _ = connection.shutdown(Shutdown::Both);
    }
}

/// What there is of a network for the agent.
#[derive(Debug, Default)]
pub struct Ends {
    /// Accepts connections to the host.
    pub listener: Option<TcpListener>,
    /// Packets, if it has a way out.
    pub tunnel: Option<File>,
}

/// Starts a command as the first process of a PID namespace and in a network of its own, where this port leads to the host, and
/// packets too if there is an address for that.
pub fn spawn_apart(
    mut command: Command,
    port: Option<u16>,
    address: Option<Ipv4Addr>,
) -> Result<(Child, Ends)> {
    // A thread of its own is what changes namespaces; it ends with this.
    let apart = std::thread::scope(|scope| {
        let apart = move || {
            // SAFETY: only this thread's network and its children's PIDs change; no descriptor table is split by that.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWPID)? };
            network::loopback_up()?;
            let listener = port.map(|port| TcpListener::bind(("127.0.0.1", port))).transpose()?;
            if let Some(listener) = &listener {
                // Connections have the same: what a slow one leaves in the kernel would grow to some MiB.
                set_socket_recv_buffer_size(listener, WINDOW_BYTES)?;
                set_socket_send_buffer_size(listener, WINDOW_BYTES)?;
            }
            let tunnel = address.map(|address| network::tunnel(OUTSIDE, address)).transpose()?;
            if tunnel.is_some() {
                network::lead_out_by(OUTSIDE)?;
            }
            Ok((command.spawn()?, Ends { listener, tunnel }))
        };
        Builder::new().stack_size(2 * STACK_BYTES).spawn_scoped(scope, apart).map(|thread| thread.join())
    });
    apart?.unwrap_or_else(|_| Err(Error::other("the thread that starts instances panicked")))
}

#[cfg(test)]
mod tests;
