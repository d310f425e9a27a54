//! Services of the host that a function reaches (`--reach`): the instance listens on their addresses inside,
//! and the worker connects each connection to the service.
//!
//! ```text
//!   function ── 127.0.0.1:6379, inside ── worker ── 127.0.0.1:6379 of the host ── the service
//! ```

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::sandbox::accept::accept;

/// The host's name inside, as containers have it. It is the loopback address.
pub(crate) const HOST_NAME: &str = "host.docker.internal";
/// Connections of one instance to all services at once; more wait.
const CONNECTIONS: usize = 64;
/// How long a service may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// The addresses that an instance listens on, each with its service: the service's own, and one of
/// [`HOST_NAME`].
pub(crate) fn listened(services: &[SocketAddr]) -> Vec<(SocketAddr, SocketAddr)> {
    let mut all = Vec::new();
    for service in services {
        for inside in [*service, (Ipv4Addr::LOCALHOST, service.port()).into()] {
            if !all.iter().any(|(known, _)| *known == inside) {
                all.push((inside, *service));
            }
        }
    }
    all
}

/// Serves the sockets of an instance, each of which leads to a service, until the set is dropped.
pub(crate) fn serve(reached: &[(TcpListener, SocketAddr)], label: &str) -> JoinSet<()> {
    let (mut all, places) = (JoinSet::new(), Arc::new(Semaphore::new(CONNECTIONS)));
    for (listener, service) in reached {
        let (listener, service) = (listener.try_clone(), *service);
        let (places, label) = (places.clone(), format!("{label}: --reach {service}"));
        all.spawn(async move {
            let serve = |stream| {
                let label = label.clone();
                async move {
                    if let Err(error) = relay(stream, service).await {
                        tracing::debug!("{label}: {error}");
                    }
                }
            };
            let served = async { accept(&listener?, places, &label, serve).await };
            if let Err(error) = served.await {
                tracing::error!("{label}: {error}");
            }
        });
    }
    all
}

async fn relay(mut inside: TcpStream, service: SocketAddr) -> io::Result<()> {
    // Reset and not just closed if the service cannot be reached.
    inside.set_zero_linger()?;
    let connected = tokio::time::timeout(CONNECT, TcpStream::connect(service)).await;
    let mut outside = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    for stream in [&inside, &outside] {
        stream.set_nodelay(true)?;
    }
    rustix::net::sockopt::set_socket_linger(&inside, None)?;
    copy_bidirectional(&mut inside, &mut outside).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listens_on_each_address_once() {
        let services: Vec<SocketAddr> =
            ["127.0.0.1:1", "192.0.2.1:2", "[::1]:3"].map(|text| text.parse().unwrap()).into();
        let inside: Vec<String> = listened(&services).iter().map(|(inside, _)| inside.to_string()).collect();
        assert_eq!(inside, ["127.0.0.1:1", "192.0.2.1:2", "127.0.0.1:2", "[::1]:3", "127.0.0.1:3"]);
    }
}
