//! The host's end of the relay: each connection that an instance in the guest makes becomes a socket here, on which the
//! worker serves the Runtime API (vm-protocol's `relay` says what is sent). Packets of one that reaches the outside world go to its tunnel.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use vm::protocol::relay::{HEADER_BYTES, Header, Kind, MOST_BYTES};

use super::tunnel::Tunnel;

/// Frames that wait for the guest to take them.
const TO_GUEST: usize = 64;
/// Frames of all connections of an instance that wait for the worker: more than the longest answer of a function.
const FROM_INSTANCE: usize = 128;

/// The line to one VM's instances; ends with the VM.
pub struct Relay(Arc<Shared>);

struct Shared {
    listeners: Mutex<HashMap<String, Expected>>,
    links: Mutex<HashMap<String, Linked>>,
    to_guest: mpsc::Sender<Vec<u8>>,
}

/// Where an instance's connections go, and places for what they send.
#[derive(Clone)]
struct Expected {
    connections: mpsc::Sender<UnixStream>,
    places: Arc<Semaphore>,
}

/// Part of what a connection sends, which has a place until it is taken.
type Placed = (Vec<u8>, OwnedSemaphorePermit);

/// An instance's way out, and what carries packets there once the guest has asked for them.
struct Linked {
    tunnel: Arc<Tunnel>,
    carrying: Option<AbortHandle>,
}

/// Where what comes from the guest goes.
enum Stream {
    Bytes(mpsc::Sender<Placed>, Arc<Semaphore>),
    Packets(Weak<Tunnel>),
}

impl Stream {
    /// False if it is over.
    fn take(&self, payload: Vec<u8>) -> bool {
        match self {
            // A function that sends more than is taken loses its connection, and holds up no other.
            Stream::Bytes(sender, places) => match places.clone().try_acquire_owned() {
                Ok(place) => sender.try_send((payload, place)).is_ok(),
                Err(_) => false,
            },
            Stream::Packets(tunnel) => tunnel.upgrade().map(|tunnel| tunnel.take(&payload)).is_some(),
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Stream::Bytes(sender, _) => sender.is_closed(),
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

/// Where connections of one instance come in, until it is dropped.
pub struct Listener {
    shared: Arc<Shared>,
    instance: String,
    connections: mpsc::Receiver<UnixStream>,
}

impl Listener {
    /// The next connection; never, once the VM is gone.
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
    fn listeners(&self) -> MutexGuard<'_, HashMap<String, Expected>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn links(&self) -> MutexGuard<'_, HashMap<String, Linked>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guest carries packets for this instance from now on: once, if the instance has a way out.
    fn begin(&self, instance: &str, stream: u32) -> Option<Stream> {
        let mut links = self.links();
        let linked = links.get_mut(instance).filter(|linked| linked.carrying.is_none())?;
        let carrying = tokio::spawn(carry_packets(stream, linked.tunnel.clone(), self.to_guest.clone()));
        linked.carrying = Some(carrying.abort_handle());
        Some(Stream::Packets(Arc::downgrade(&linked.tunnel)))
    }
}

impl Relay {
    /// Takes the line; called where a runtime is.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub fn new(line: std::os::unix::net::UnixStream) -> Result<Relay> {
        line.set_nonblocking(true).context("the VM's relay")?;
        let (reader, writer) = UnixStream::from_std(line).context("the VM's relay")?.into_split();
        let (to_guest, frames) = mpsc::channel(TO_GUEST);
        let shared = Arc::new(Shared { listeners: Mutex::default(), links: Mutex::default(), to_guest });
        tokio::spawn(send(writer, frames));
        tokio::spawn(receive(reader, shared.clone()));
        Ok(Relay(shared))
    }

    /// Lets an instance of this name connect.
    pub fn listen(&self, instance: &str) -> Listener {
        let (sender, connections) = mpsc::channel(4);
        let expected = Expected { connections: sender, places: Arc::new(Semaphore::new(FROM_INSTANCE)) };
        self.0.listeners().insert(instance.to_string(), expected);
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
            Kind::Open => {
                let expected = shared.listeners().get(&*String::from_utf8_lossy(&payload)).cloned();
                let pair = expected.zip(UnixStream::pair().ok());
                if let Some((Expected { connections, places }, (ours, theirs))) = pair
                    && connections.try_send(theirs).is_ok()
                {
                    let (sender, frames) = mpsc::channel(FROM_INSTANCE);
                    streams.insert(stream, Stream::Bytes(sender, places));
                    tokio::spawn(carry(stream, ours, frames, shared.to_guest.clone()));
                } else {
                    let _ = shared.to_guest.try_send(frame(stream, Kind::Close, &[]));
                }
            }
            Kind::Link => match shared.begin(&String::from_utf8_lossy(&payload), stream) {
                Some(packets) => drop(streams.insert(stream, packets)),
                None => drop(shared.to_guest.try_send(frame(stream, Kind::Close, &[]))),
            },
            Kind::Data => {
                if streams.get(&stream).is_some_and(|to| !to.take(payload)) {
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
    mut frames: mpsc::Receiver<Placed>,
    to_guest: mpsc::Sender<Vec<u8>>,
) {
    let (mut reader, mut writer) = connection.into_split();
    let inwards = async {
        while let Some((payload, _place)) = frames.recv().await {
            if writer.write_all(&payload).await.is_err() {
                return;
            }
        }
    };
    let outwards = async {
        let mut bytes = vec![0; MOST_BYTES];
        while let Ok(count @ 1..) = reader.read(&mut bytes).await {
            if to_guest.send(frame(stream, Kind::Data, &bytes[..count])).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = inwards => {}
        () = outwards => {}
    }
    let _ = to_guest.send(frame(stream, Kind::Close, &[])).await;
}

/// Packets for an instance. Where the guest takes them slowly, they wait at the interface, which has room for some.
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
mod tests {
    use super::*;

    /// The guest's side of the line, spoken by hand.
    #[tokio::test]
    async fn a_connection_is_carried_both_ways_and_strangers_are_closed() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let relay = Relay::new(ours).unwrap();
        let mut listener = relay.listen("a");
        theirs.set_nonblocking(true).unwrap();
        let mut guest = UnixStream::from_std(theirs).unwrap();
        guest.write_all(&frame(7, Kind::Open, b"a")).await.unwrap();
        guest.write_all(&frame(7, Kind::Data, b"ping")).await.unwrap();
        let mut connection = listener.accept().await;
        let mut bytes = [0; 4];
        connection.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"ping");
        connection.write_all(b"pong").await.unwrap();
        let mut answer = [0; HEADER_BYTES + 4];
        guest.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer.to_vec(), frame(7, Kind::Data, b"pong"));
        // An instance that nobody expects is closed at once; the other goes on.
        guest.write_all(&frame(8, Kind::Open, b"b")).await.unwrap();
        let mut answer = [0; HEADER_BYTES];
        guest.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer.to_vec(), frame(8, Kind::Close, &[]));
        guest.write_all(&frame(7, Kind::Close, &[])).await.unwrap();
        assert_eq!(connection.read(&mut bytes).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn what_nobody_takes_is_bounded_for_all_connections_of_an_instance() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let relay = Relay::new(ours).unwrap();
        let mut listener = relay.listen("a");
        theirs.set_nonblocking(true).unwrap();
        let mut guest = UnixStream::from_std(theirs).unwrap();
        guest.write_all(&frame(1, Kind::Open, b"a")).await.unwrap();
        let _unread = listener.accept().await;
        guest.write_all(&frame(2, Kind::Open, b"a")).await.unwrap();
        let mut other = listener.accept().await;
        for stream in [1, 2] {
            let whole = frame(stream, Kind::Data, &vec![0; MOST_BYTES]);
            for _ in 0..2 * FROM_INSTANCE {
                guest.write_all(&whole).await.unwrap();
            }
        }
        let (mut read, mut bytes) = (0, vec![0; MOST_BYTES]);
        while let Ok(count @ 1..) = other.read(&mut bytes).await {
            read += count;
        }
        // What the sockets themselves hold is the kernel's to say.
        assert!(read < FROM_INSTANCE * MOST_BYTES / 2, "{read} bytes");
    }
}
