//! Forwards connections of confined instances to the host (vm-protocol's `relay`).
//!
//! Each such instance has a network namespace with a loopback device, and a TUN device if it has network
//! access. The agent listens on the loopback device, so the instance reaches one service of the host and
//! nothing else. At the host's request it connects to the instance's own servers there. A reader and a writer
//! thread serve each connection; each waits until there is room in the receiver's window.

mod servers;

pub use servers::Servers;

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

use crate::flow_control::{Connection, Connections};
use crate::port;

pub const STACK_BYTES: usize = 128 << 10;
/// The name of an instance's TUN device.
const TUNNEL: &str = "eth0";
/// Before the next attempt when a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(10);

/// Where data from the host goes.
pub enum Stream {
    /// To a connection of the instance, by this socket.
    Bytes(Arc<Connection>, Arc<TcpStream>),
    Packets(Arc<File>),
}

/// The streams of all instances, over one virtio-serial port.
pub struct Streams {
    writer: Mutex<File>,
    streams: Mutex<HashMap<u32, Stream>>,
    next: AtomicU32,
}

/// Listens for one instance, until its processes have ended.
pub struct Listener {
    listener: TcpListener,
    _running: Running,
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: passes numbers; the listener is open. This wakes the thread that accepts.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

/// Connections of one instance. This is dropped when the instance's processes have ended. That closes the
/// connections, because data that they have sent may lie in the instance's memory until it is read.
struct Running {
    relay: Arc<Streams>,
    connections: Arc<Connections>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.connections.end();
        for stream in self.relay.streams.lock().expect("not poisoned").values() {
            if let Stream::Bytes(connection, _) = stream
                && connection.is_of(&self.connections)
            {
                connection.wake();
            }
        }
    }
}

impl Streams {
    /// Opens the port, if the VM has one.
    pub fn open() -> Option<Arc<Streams>> {
        let device = File::from(port::find_named(PORT)?);
        rustix::fs::fcntl_setfl(&device, rustix::fs::OFlags::empty()).ok()?;
        Streams::over(device)
    }

    fn over(device: File) -> Option<Arc<Streams>> {
        let reader = device.try_clone().ok()?;
        // Random, because the host may still have streams of an agent that died.
        let mut seed = [0; 4];
        let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
        let relay = Arc::new(Streams {
            writer: Mutex::new(device),
            streams: Mutex::default(),
            next: AtomicU32::new(u32::from_le_bytes(seed)),
        });
        let receiving = Arc::clone(&relay);
        Builder::new().stack_size(2 * STACK_BYTES).spawn(move || receiving.receive_all(reader)).ok()?;
        Some(relay)
    }

    /// Passes frames from the host to their streams, until the port closes.
    fn receive_all(&self, mut reader: File) {
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
            if self.receive(header, bytes).is_err() {
                eprintln!("vm-agent: the host exceeds a connection's window; closing it");
                self.cut(header.stream);
            }
        }
    }

    fn receive(&self, header: Header, bytes: Vec<u8>) -> std::result::Result<(), Overrun> {
        let streams = self.streams.lock().expect("not poisoned");
        match (header.kind, streams.get(&header.stream)) {
            (Kind::Data, Some(Stream::Bytes(connection, _))) => return connection.arrive(bytes),
            (Kind::Grant, Some(Stream::Bytes(connection, _))) => return connection.granted(&bytes),
            // A packet that cannot be written is lost, as packets may be.
            (Kind::Data, Some(Stream::Packets(device))) => drop((&**device).write(&bytes)),
            (Kind::Close, Some(_)) => {
                drop(streams);
                drop(self.forget(header.stream));
            }
            // This end has just closed it.
            _ => {}
        }
        Ok(())
    }

    /// Opens a stream, whose first frame has this kind and payload; returns its number.
    pub fn open_stream(&self, kind: Kind, payload: &[u8], stream: Stream) -> Result<u32> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.streams.lock().expect("not poisoned").insert(number, stream);
        self.send(number, kind, payload).inspect_err(|_| drop(self.forget(number)))?;
        Ok(number)
    }

    /// Closes a stream both ways.
    pub fn close_stream(&self, number: u32) {
        drop(self.forget(number));
        let _ = self.send(number, Kind::Close, &[]);
    }

    /// Removes a stream. Its threads end once the instance has what the host sent.
    fn forget(&self, number: u32) -> Option<Stream> {
        let stream = self.streams.lock().expect("not poisoned").remove(&number);
        if let Some(Stream::Bytes(connection, _)) = &stream {
            connection.close();
        }
        stream
    }

    /// Closes a stream that the host broke. Its threads end even if the instance never reads.
    fn cut(&self, number: u32) {
        if let Some(Stream::Bytes(_, socket)) = self.forget(number) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    pub fn send(&self, stream: u32, kind: Kind, bytes: &[u8]) -> Result<()> {
        let mut frame = Header { stream, kind, bytes: bytes.len() }.encode().to_vec();
        frame.extend(bytes);
        self.writer.lock().expect("not poisoned").write_all(&frame)
    }

    /// Accepts connections for an instance, so many at one time, until its [`Listener`] is dropped.
    pub fn serve(self: &Arc<Self>, instance: &str, listener: TcpListener, most: u32) -> Result<Listener> {
        let connections = Connections::new(most);
        let running = Running { relay: Arc::clone(self), connections: Arc::clone(&connections) };
        let guard = Listener { listener: listener.try_clone()?, _running: running };
        let (relay, instance) = (Arc::clone(self), instance.to_string());
        Builder::new().stack_size(STACK_BYTES).spawn(move || {
            loop {
                let connection = match listener.accept() {
                    Ok((connection, _)) => connection,
                    // It was shut down.
                    Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return,
                    // The client has disconnected, or descriptors are used up for now.
                    Err(_) => {
                        std::thread::sleep(PAUSE);
                        continue;
                    }
                };
                if let Some(window) = connections.open() {
                    // Any failure closes it.
                    let _ = relay.forward(Kind::Open, instance.as_bytes(), connection, window);
                }
            }
        })?;
        Ok(guard)
    }

    /// Forwards one connection, by a stream whose first frame has this kind and payload.
    fn forward(
        self: &Arc<Self>,
        kind: Kind,
        payload: &[u8],
        socket: TcpStream,
        connection: Arc<Connection>,
    ) -> Result<()> {
        let _ = socket.set_nodelay(true);
        let socket = Arc::new(socket);
        let stream = Stream::Bytes(Arc::clone(&connection), Arc::clone(&socket));
        let number = self.open_stream(kind, payload, stream)?;
        let (writer, same, to_instance) = (Arc::clone(self), Arc::clone(&connection), Arc::clone(&socket));
        let writing = Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(move || writer.to_instance(number, &same, &to_instance));
        let relay = Arc::clone(self);
        let started = writing.and_then(|_| {
            Builder::new().stack_size(STACK_BYTES).spawn(move || relay.to_host(number, &connection, &socket))
        });
        started.map(drop).inspect_err(|_| self.close_stream(number))
    }

    /// Sends an instance's data to the host.
    fn to_host(&self, number: u32, connection: &Connection, mut socket: &TcpStream) {
        let mut bytes = vec![0; MOST_BYTES];
        while let Some(room) = connection.room()
            && let Ok(count @ 1..) = socket.read(&mut bytes[..room])
        {
            connection.sent(count);
            if self.send(number, Kind::Data, &bytes[..count]).is_err() {
                break;
            }
        }
        // This also ends the writer thread.
        self.close_stream(number);
    }

    /// Writes the host's data to an instance.
    fn to_instance(&self, number: u32, connection: &Connection, mut socket: &TcpStream) {
        while let Some(part) = connection.next() {
            if socket.write_all(&part).is_err() {
                break;
            }
            if let Some(grant) = connection.taken(part.len())
                && self.send(number, Kind::Grant, &grant).is_err()
            {
                break;
            }
        }
        // This also ends the reader thread.
        let _ = socket.shutdown(Shutdown::Both);
    }
}

/// The agent's ends of an instance's network.
#[derive(Debug)]
pub struct Ends {
    /// Its network namespace.
    pub namespace: File,
    /// Accepts connections to the host.
    pub listener: Option<TcpListener>,
    /// Its TUN device, if it has network access.
    pub tunnel: Option<File>,
}

/// Starts a command in PID and network namespaces of its own, as their first process. There `port` leads to
/// the host; with an `address` there is a TUN device, too.
pub fn spawn_in_namespaces(
    mut command: Command,
    port: Option<u16>,
    address: Option<Ipv4Addr>,
) -> Result<(Child, Ends)> {
    // In a thread of its own, which ends here, because a change of namespaces is the thread's.
    let outcome = std::thread::scope(|scope| {
        let spawn = move || {
            // SAFETY: changes only this thread's network and its children's PID namespace; no descriptor
            // table is unshared.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWPID)? };
            network::loopback_up()?;
            let listener = port.map(|port| TcpListener::bind(("127.0.0.1", port))).transpose()?;
            if let Some(listener) = &listener {
                // Connections inherit this. By default the kernel would buffer some MiB for a slow one.
                set_socket_recv_buffer_size(listener, WINDOW_BYTES)?;
                set_socket_send_buffer_size(listener, WINDOW_BYTES)?;
            }
            let tunnel = address.map(|address| network::tunnel(TUNNEL, address)).transpose()?;
            if tunnel.is_some() {
                network::set_default_route(TUNNEL)?;
            }
            let namespace = File::open("/proc/thread-self/ns/net")?;
            Ok((command.spawn()?, Ends { namespace, listener, tunnel }))
        };
        Builder::new().stack_size(2 * STACK_BYTES).spawn_scoped(scope, spawn).map(|thread| thread.join())
    });
    outcome?.unwrap_or_else(|_| Err(Error::other("the thread that starts instances panicked")))
}

#[cfg(test)]
mod tests;
