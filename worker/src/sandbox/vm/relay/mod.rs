//! The host's end of the relay: each connection that an instance in the guest makes becomes a socket here,
//! on which the worker serves the Runtime API (vm-protocol's `relay` defines the frames). So does each that
//! the guest makes to a server of an instance when the worker asks. Packets of an instance that reaches the
//! outside world go to its tunnel.
//!
//! The guest is not trusted: if it sends more than it was granted, or grants more than it was sent, the
//! connection is closed, and no other ([`Flow`]).

mod servers;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use vm::protocol::relay::{HEADER_BYTES, Header, Kind, MOST_BYTES};

use super::flow::Flow;
use super::tunnel::Tunnel;
use servers::Awaited;

/// Frames that wait for the guest to take them.
const TO_GUEST: usize = 64;
/// Connections to servers of one instance at one time.
const SERVERS: usize = 16;

/// The line to one VM's instances; ends with the VM.
pub struct Relay(Arc<Shared>);

struct Shared {
    listeners: Mutex<HashMap<String, Arc<Expected>>>,
    links: Mutex<HashMap<String, Linked>>,
    awaited: Mutex<HashMap<u32, Awaited>>,
    /// The last token that was used.
    token: AtomicU32,
    to_guest: mpsc::Sender<Vec<u8>>,
}

/// Where an instance's connections go.
struct Expected {
    instance: String,
    connections: mpsc::Sender<UnixStream>,
    /// Bounds its connections at one time. One that the worker has closed counts until the guest is sent
    /// its end.
    places: Arc<Semaphore>,
    /// The same for those to its servers.
    servers: Arc<Semaphore>,
    /// A warning was logged that the guest does not keep to a window.
    said: Once,
}

/// An instance's way out, and what carries packets there once the guest has asked for them.
struct Linked {
    tunnel: Arc<Tunnel>,
    carrying: Option<AbortHandle>,
}

/// What comes from the guest for a connection; dropping it marks the end.
struct Arriving {
    flow: Arc<Flow>,
    expected: Arc<Expected>,
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.flow.close();
    }
}

/// The receiver of a stream of the guest.
enum Stream {
    Bytes(Arriving),
    Packets(Weak<Tunnel>),
}

impl Stream {
    /// False if it is over.
    fn take(&self, kind: Kind, payload: Vec<u8>) -> bool {
        let Arriving { flow, expected } = match self {
            Stream::Bytes(arriving) => arriving,
            Stream::Packets(tunnel) => return tunnel.upgrade().map(|tunnel| tunnel.take(&payload)).is_some(),
        };
        let kept = match kind {
            Kind::Grant => flow.granted(&payload),
            _ => flow.arrive(payload),
        };
        if kept.is_err() {
            expected.said.call_once(|| {
                tracing::warn!(
                    "{}: the guest does not keep to a connection's window: such connections end",
                    expected.instance
                );
            });
        }
        kept.is_ok()
    }

    fn is_over(&self) -> bool {
        match self {
            // The task that carries it has ended.
            Stream::Bytes(arriving) => Arc::strong_count(&arriving.flow) == 1,
            Stream::Packets(tunnel) => tunnel.strong_count() == 0,
        }
    }
}

/// An instance's way out, until it is dropped.
pub struct Link {
    shared: Arc<Shared>,
    instance: String,
    address: Ipv4Addr,
}

impl Link {
    /// The instance's address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let linked = self.shared.links().remove(&self.instance);
        if let Some(carrying) = linked.and_then(|linked| linked.carrying) {
            carrying.abort();
        }
    }
}

/// Accepts the connections of one instance, until it is dropped.
pub struct Listener {
    shared: Arc<Shared>,
    instance: String,
    connections: mpsc::Receiver<UnixStream>,
}

impl Listener {
    /// The next connection; never, once the VM has ended.
    pub async fn accept(&mut self) -> UnixStream {
        match self.connections.recv().await {
            Some(connection) => connection,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.listeners().remove(&self.instance);
    }
}

impl Shared {
    fn listeners(&self) -> MutexGuard<'_, HashMap<String, Arc<Expected>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn links(&self) -> MutexGuard<'_, HashMap<String, Linked>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a connection of this instance, if the instance is expected and has not too many.
    fn connect(&self, instance: &str, stream: u32) -> Option<Stream> {
        let expected = self.listeners().get(instance).cloned()?;
        let place = expected.places.clone().try_acquire_owned().ok()?;
        let (ours, theirs) = UnixStream::pair().ok()?;
        expected.connections.try_send(theirs).ok()?;
        Some(self.begin_to_carry(stream, ours, expected, place))
    }

    fn begin_to_carry(
        &self,
        stream: u32,
        ours: UnixStream,
        expected: Arc<Expected>,
        place: OwnedSemaphorePermit,
    ) -> Stream {
        let flow = Arc::<Flow>::default();
        tokio::spawn(carry(stream, ours, flow.clone(), expected.clone(), self.to_guest.clone(), place));
        Stream::Bytes(Arriving { flow, expected })
    }

    /// Carries packets for this instance from now on, if it has a way out; only once.
    fn begin(&self, instance: &str, stream: u32) -> Option<Stream> {
        let mut links = self.links();
        let linked = links.get_mut(instance).filter(|linked| linked.carrying.is_none())?;
        let carrying = tokio::spawn(carry_packets(stream, linked.tunnel.clone(), self.to_guest.clone()));
        linked.carrying = Some(carrying.abort_handle());
        Some(Stream::Packets(Arc::downgrade(&linked.tunnel)))
    }
}

impl Relay {
    /// Begins to serve the line to a guest. Must be called within a runtime.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub fn new(line: std::os::unix::net::UnixStream) -> Result<Relay> {
        line.set_nonblocking(true).context("the VM's relay")?;
        let (reader, writer) = UnixStream::from_std(line).context("the VM's relay")?.into_split();
        let (to_guest, frames) = mpsc::channel(TO_GUEST);
        let shared = Arc::new(Shared {
            listeners: Mutex::default(),
            links: Mutex::default(),
            awaited: Mutex::default(),
            token: AtomicU32::default(),
            to_guest,
        });
        tokio::spawn(send(writer, frames));
        tokio::spawn(receive(reader, shared.clone()));
        Ok(Relay(shared))
    }

    /// Lets an instance of this name connect, so many times at once.
    pub fn listen(&self, instance: &str, connections: usize) -> Listener {
        let places = Arc::new(Semaphore::new(connections));
        let (sender, connections) = mpsc::channel(connections);
        let (servers, said) = (Arc::new(Semaphore::new(SERVERS)), Once::new());
        let expected =
            Expected { instance: instance.to_string(), connections: sender, places, servers, said };
        self.0.listeners().insert(instance.to_string(), Arc::new(expected));
        Listener { shared: self.0.clone(), instance: instance.to_string(), connections }
    }

    /// Lets an instance of this name have a way out.
    pub fn link(&self, instance: &str, tunnel: Tunnel) -> Link {
        let address = tunnel.address();
        let linked = Linked { tunnel: Arc::new(tunnel), carrying: None };
        self.0.links().insert(instance.to_string(), linked);
        Link { shared: self.0.clone(), instance: instance.to_string(), address }
    }
}

async fn send(mut writer: OwnedWriteHalf, mut frames: mpsc::Receiver<Vec<u8>>) {
    while let Some(frame) = frames.recv().await {
        if writer.write_all(&frame).await.is_err() {
            return;
        }
    }
}

async fn receive(mut reader: OwnedReadHalf, shared: Arc<Shared>) {
    let mut streams: HashMap<u32, Stream> = HashMap::new();
    let mut head = [0; HEADER_BYTES];
    while reader.read_exact(&mut head).await.is_ok() {
        let Some(Header { stream, kind, bytes }) = Header::decode(head) else {
            return tracing::error!(
                "the guest's relay is out of step: no instance of this VM can be reached any more"
            );
        };
        let mut payload = vec![0; bytes];
        if reader.read_exact(&mut payload).await.is_err() {
            return;
        }
        match kind {
            Kind::Open | Kind::Inside | Kind::Link => {
                let instance = String::from_utf8_lossy(&payload);
                let begun = match kind {
                    Kind::Open => shared.connect(&instance, stream),
                    Kind::Inside => shared.connected(&payload, stream),
                    _ => shared.begin(&instance, stream),
                };
                match begun {
                    Some(begun) => drop(streams.insert(stream, begun)),
                    None => drop(shared.to_guest.send(frame(stream, Kind::Close, &[])).await),
                }
            }
            Kind::Data | Kind::Grant => {
                if streams.get(&stream).is_some_and(|to| !to.take(kind, payload)) {
                    streams.remove(&stream);
                }
            }
            Kind::Close => drop(streams.remove(&stream)),
        }
        streams.retain(|_, to| !to.is_over());
    }
}

/// One connection, both ways; it ends with either.
async fn carry(
    stream: u32,
    connection: UnixStream,
    flow: Arc<Flow>,
    expected: Arc<Expected>,
    to_guest: mpsc::Sender<Vec<u8>>,
    _place: OwnedSemaphorePermit,
) {
    let (mut reader, mut writer) = connection.into_split();
    let inwards = async {
        while let Some(part) = flow.next().await {
            // A failure is ignored: the worker reads no more, so these bytes are lost, but its own last
            // bytes must still reach the guest.
            let _ = writer.write_all(&part).await;
            let grant = flow.taken(part.len());
            if let Some(grant) = grant
                && to_guest.send(frame(stream, Kind::Grant, &grant)).await.is_err()
            {
                return;
            }
        }
    };
    let outwards = async {
        let mut bytes = vec![0; MOST_BYTES];
        loop {
            let room = flow.room().await;
            let Ok(count @ 1..) = reader.read(&mut bytes[..room]).await else { return };
            flow.sent(count);
            if to_guest.send(frame(stream, Kind::Data, &bytes[..count])).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = inwards => {}
        () = outwards => {}
        // The instance has ended, and perhaps its agent, too: no task serves it, and nothing more is granted.
        () = expected.connections.closed() => {}
    }
    let _ = to_guest.send(frame(stream, Kind::Close, &[])).await;
}

/// Packets for an instance. Where the guest takes them slowly, they wait at the interface, which has room
/// for some.
async fn carry_packets(stream: u32, tunnel: Arc<Tunnel>, to_guest: mpsc::Sender<Vec<u8>>) {
    while let Ok(packet) = tunnel.next().await {
        if to_guest.send(frame(stream, Kind::Data, &packet)).await.is_err() {
            return;
        }
    }
}

fn frame(stream: u32, kind: Kind, bytes: &[u8]) -> Vec<u8> {
    let mut frame = Header { stream, kind, bytes: bytes.len() }.encode().to_vec();
    frame.extend(bytes);
    frame
}

#[cfg(test)]
mod tests;
