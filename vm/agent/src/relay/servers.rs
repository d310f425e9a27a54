//! Servers inside an instance, to which the worker connects: extensions that receive events of Lambda's
//! Telemetry API.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use vm_protocol::relay::Kind;
use vm_protocol::window::WINDOW_BYTES;

use super::{Running, STACK_BYTES, Streams};
use crate::flow_control::Connections;

/// How many connections to an instance's servers there may be: one for each extension, and some that are
/// being closed.
const MOST: u32 = 16;
/// How long a server whose queue is full may take to accept one.
const PATIENCE: Duration = Duration::from_secs(5);

/// The servers of one instance, until its processes have ended.
pub struct Servers {
    namespace: File,
    running: Running,
}

impl Servers {
    /// Those on the loopback device of this network namespace.
    pub fn new(relay: &Arc<Streams>, namespace: File) -> Servers {
        Servers {
            namespace,
            running: Running { relay: Arc::clone(relay), connections: Connections::new(MOST) },
        }
    }

    /// Connects to the one at this port, and opens a stream for the connection with the host's token.
    pub fn connect(&self, port: u16, token: u32) -> Result<()> {
        let many = || Error::new(ErrorKind::QuotaExceeded, "there are too many connections to its servers");
        let connection = self.running.connections.open().ok_or_else(many)?;
        let socket = self.socket(port)?;
        self.running.relay.forward(Kind::Inside, &token.to_le_bytes(), socket, connection)
    }

    /// A socket that is connected to the one at this port.
    fn socket(&self, port: u16) -> Result<TcpStream> {
        let connect = || {
            // In a thread of its own, which ends here, because the change of namespace is the thread's.
            move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            let socket = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), PATIENCE)?;
            // As for connections to the host.
            set_socket_recv_buffer_size(&socket, WINDOW_BYTES)?;
            set_socket_send_buffer_size(&socket, WINDOW_BYTES)?;
            Ok(socket)
        };
        let outcome = std::thread::scope(|scope| {
            Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, connect).map(|thread| thread.join())
        });
        outcome?.unwrap_or_else(|_| Err(Error::other("the thread that connects panicked")))
    }
}
