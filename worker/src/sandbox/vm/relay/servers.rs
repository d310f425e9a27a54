//! Connections of the worker to servers inside instances, which the guest makes when it is asked. Each
//! arrives as a stream with the token of the request.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::oneshot;

use super::{Expected, Relay, Shared, Stream};

/// How long the guest's stream may come after its answer that it has connected to a server.
const STREAM_PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a server of an instance, which the guest is to make.
pub(super) struct Awaited {
    expected: Arc<Expected>,
    connected: oneshot::Sender<UnixStream>,
}

/// The wait for a connection to a server, until it is dropped.
pub struct Waiting {
    shared: Arc<Shared>,
    /// What the guest sends with the connection.
    pub token: u32,
    connected: oneshot::Receiver<UnixStream>,
}

impl Waiting {
    /// The connection, once the guest says that it has made one.
    ///
    /// # Errors
    /// The guest does not send it.
    pub async fn connection(mut self) -> std::io::Result<UnixStream> {
        match tokio::time::timeout(STREAM_PATIENCE, &mut self.connected).await {
            Ok(Ok(connection)) => Ok(connection),
            _ => Err(std::io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.awaited().remove(&self.token);
    }
}

impl Shared {
    fn awaited(&self) -> MutexGuard<'_, HashMap<u32, Awaited>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts the connection to a server for which the worker waits with this token.
    pub(super) fn connected(&self, token: &[u8], stream: u32) -> Option<Stream> {
        let token = u32::from_le_bytes(token.try_into().ok()?);
        let Awaited { expected, connected } = self.awaited().remove(&token)?;
        let place = expected.servers.clone().try_acquire_owned().ok()?;
        let (ours, theirs) = UnixStream::pair().ok()?;
        connected.send(theirs).ok()?;
        Some(self.begin_to_carry(stream, ours, expected, place))
    }
}

impl Relay {
    /// Waits for a connection to a server of this instance.
    ///
    /// # Errors
    /// The instance has ended.
    pub fn await_connection(&self, instance: &str) -> std::io::Result<Waiting> {
        let expected = self.0.listeners().get(instance).cloned();
        let expected = expected.ok_or(std::io::ErrorKind::NotConnected)?;
        let token = self.0.token.fetch_add(1, Ordering::Relaxed);
        let (sender, connected) = oneshot::channel();
        self.0.awaited().insert(token, Awaited { expected, connected: sender });
        Ok(Waiting { shared: self.0.clone(), token, connected })
    }
}
