//! The port to the host: a virtio-serial port, which the host may close and open again while the agent runs,
//! or else a connection through vsock ([`vsock`]), which ends with the agent.
//!
//! The agent's main thread reads. A thread of its own writes, so that a host that does not read blocks no
//! other thread. While no host is connected, messages are dropped: a host that reconnects asks again.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use vm_protocol::{Decoder, FromAgent, Outcome, PORT, Refusal, VSOCK_PORT};

use crate::vsock;

/// Messages that may wait for a slow host; more than requests can be under way.
const WAITING_MESSAGES: usize = 4096;
const RETRY_EVERY: Duration = Duration::from_millis(10);

/// The agent's end of the port.
pub struct Port {
    device: Arc<OwnedFd>,
    decoder: Decoder,
    is_vsock: bool,
}

/// What arrives from the host.
pub enum Incoming {
    /// The JSON text of a frame.
    Frame(Vec<u8>),
    /// Bytes that are no frame; how many were dropped.
    Garbage(String),
    /// The host closed its end.
    Disconnected,
}

/// Sends messages to the host, in order, from any thread.
#[derive(Clone)]
pub struct SendQueue(SyncSender<FromAgent>);

impl SendQueue {
    /// Queues a message. When the queue is full the host has stopped reading: the message is dropped.
    pub fn send(&self, message: FromAgent) {
        let _ = self.0.try_send(message);
    }
}

impl Port {
    /// Waits for the port and opens it.
    pub fn open() -> (Port, SendQueue) {
        let (device, is_vsock) = loop {
            if let Some(device) = find_named(PORT) {
                break (Arc::new(device), false);
            }
            if let Some(connection) = vsock::connect(VSOCK_PORT) {
                break (Arc::new(connection), true);
            }
            std::thread::sleep(RETRY_EVERY);
        };
        let (sender, receiver) = sync_channel(WAITING_MESSAGES);
        let writer = Arc::clone(&device);
        std::thread::spawn(move || write_all(&writer, &receiver));
        (Port { device, decoder: Decoder::new(), is_vsock }, SendQueue(sender))
    }

    /// Whether it is a vsock connection.
    pub fn is_vsock(&self) -> bool {
        self.is_vsock
    }

    /// Waits for the next frame.
    pub fn receive(&mut self) -> Incoming {
        let mut buffer = [0; 16384];
        loop {
            match self.decoder.next_frame() {
                Ok(Some(text)) => return Incoming::Frame(text),
                Ok(None) => {}
                Err(error) => return Incoming::Garbage(error.to_string()),
            }
            match rustix::io::read(&*self.device, &mut buffer) {
                Ok(0) | Err(Errno::CONNRESET) if self.is_vsock => {
                    // The next agent connects again.
                    eprintln!("vm-agent: the host has closed the connection");
                    std::process::exit(1);
                }
                Ok(0) => {
                    // No host is connected. The rest of a half-received frame will never come.
                    self.decoder.reset();
                    wait_for_host(&self.device);
                    return Incoming::Disconnected;
                }
                Ok(count) => self.decoder.push(&buffer[..count]),
                Err(Errno::AGAIN) => wait(&self.device, PollFlags::IN),
                Err(_) => std::thread::sleep(RETRY_EVERY),
            }
        }
    }
}

/// Opens the virtio-serial port of this name, if there is one.
pub fn find_named(wanted: &str) -> Option<OwnedFd> {
    for entry in fs::read_dir("/sys/class/virtio-ports").ok()?.flatten() {
        if fs::read_to_string(entry.path().join("name")).is_ok_and(|name| name.trim() == wanted) {
            let path = format!("/dev/{}", entry.file_name().to_string_lossy());
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
            return rustix::fs::openat(CWD, path, flags, Mode::empty()).ok();
        }
    }
    None
}

fn write_all(device: &OwnedFd, messages: &Receiver<FromAgent>) {
    for message in messages {
        let frame =
            vm_protocol::encode(&message).unwrap_or_else(|error| too_long(message, &error.to_string()));
        let mut rest = &frame[..];
        while !rest.is_empty() {
            match rustix::io::write(device, rest) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::AGAIN) if host_is_connected(device) => wait(device, PollFlags::OUT),
                // Drops the message. If half of it was sent, the host's decoder resynchronizes at the next
                // frame.
                Err(_) => break,
            }
        }
    }
}

/// The reply to send instead of one that is too long for a frame.
fn too_long(message: FromAgent, why: &str) -> Vec<u8> {
    let FromAgent::Reply(mut reply) = message else { return Vec::new() };
    let kind = vm_protocol::ErrorKind::Failed;
    reply.outcome = Outcome::Error(Refusal { kind, message: why.to_string() });
    vm_protocol::encode(&FromAgent::Reply(reply)).unwrap_or_default()
}

fn host_is_connected(device: &OwnedFd) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && !polled[0].revents().contains(PollFlags::HUP)
}

fn wait_for_host(device: &OwnedFd) {
    while !host_is_connected(device) {
        std::thread::sleep(RETRY_EVERY);
    }
}

fn wait(device: &OwnedFd, what: PollFlags) {
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    let _ = poll(&mut [PollFd::from_borrowed_fd(device.as_fd(), what)], Some(&second));
}
