//! The connection of a process that waits for a server's answer. A restored process has another one, to the
//! server that its own sandbox has at the same address, and its request is sent again.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

use crate::plan::{Operation, Plan, Slot};
use crate::{Error, status};

/// State of an established connection in /proc/net/tcp.
const ESTABLISHED: &str = "01";
/// Flags of an open socket that are set again; others are unknown here.
pub const FLAGS: i32 = libc::O_NONBLOCK | libc::O_CLOEXEC;

/// A request that a process has sent, and whose answer it waits for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The server's address, inside.
    pub server: SocketAddrV4,
    /// The port at the process's end.
    pub from: u16,
    /// All that it has sent.
    pub bytes: &'a [u8],
}

/// The open socket that a request was sent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Whether it is a socket of IPv6, whose address of the server has the IPv4 one in it.
    six: bool,
}

/// The connection that a descriptor with this link is; `None` if it is another file, or another socket than
/// the request's.
///
/// # Errors
/// It holds bytes, or has flags that are unknown here.
pub fn find(
    process: libc::pid_t,
    link: &str,
    flags: i32,
    request: Option<Request<'_>>,
) -> Result<Option<Connection>, Error> {
    let (Some(inode), Some(request)) = (inode(link), request) else { return Ok(None) };
    // A kernel without IPv6 has no second table.
    let [four, six] = ["net/tcp", "net/tcp6"].map(|name| status::text(process, name).unwrap_or_default());
    let (four, six) = (parse(&four, inode), parse(&six, inode));
    let server = match four {
        Some(_) => four_text(*request.server.ip()),
        None => six_text(request.server.ip().to_ipv6_mapped()),
    };
    let (six, found) = (four.is_none(), four.or(six));
    let server = format!("{server}:{:04X}", request.server.port());
    let from = format!(":{:04X}", request.from);
    let Some(found) = found.filter(|it| it.remote == server && it.local.ends_with(&from)) else {
        return Ok(None);
    };
    if found.state != ESTABLISHED || found.queues.chars().any(|digit| !matches!(digit, '0' | ':')) {
        return Err(Error::Unsupported("a connection to the Runtime API that is not at rest".into()));
    }
    if flags & !FLAGS != libc::O_RDWR {
        return Err(Error::Unsupported(format!("a connection with flags {flags:#o}")));
    }
    Ok(Some(Connection { six }))
}

/// The inode of a socket, by the link of its descriptor.
pub fn inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// What a line of /proc/net/tcp says.
#[derive(Debug, PartialEq, Eq)]
pub struct Line<'a> {
    local: &'a str,
    remote: &'a str,
    state: &'a str,
    /// Bytes to be sent, and to be read.
    queues: &'a str,
}

/// The line of a socket in /proc/net/tcp or tcp6.
pub fn parse(table: &str, inode: u64) -> Option<Line<'_>> {
    table.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, local, remote, state, queues, _, _, _, _, number, ..] = words[..] else { return None };
        (number.parse() == Ok(inode)).then_some(Line { local, remote, state, queues })
    })
}

/// An address as /proc/net/tcp has it: numbers of 32 bits in the processor's own order.
fn four_text(address: Ipv4Addr) -> String {
    format!("{:08X}", u32::from_ne_bytes(address.octets()))
}

fn six_text(address: Ipv6Addr) -> String {
    let parts = address.octets();
    let word = |part: &[u8]| u32::from_ne_bytes(part.try_into().expect("4 bytes"));
    parts.chunks_exact(4).map(|part| format!("{:08X}", word(part))).collect()
}

/// Appends what opens such a connection and sends the request; returns its descriptor.
///
/// # Errors
/// The plan has too much.
pub fn making(
    plan: &mut Plan,
    connection: Connection,
    flags: i32,
    request: Request<'_>,
) -> Result<Slot, Error> {
    let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u64;
    let family = if connection.six { libc::AF_INET6 } else { libc::AF_INET };
    let socket = plan.push_kept(Operation::call(libc::SYS_socket, &[family as u64, kind, 0]))?;
    let one = plan.data(&1_u32.to_ne_bytes())?;
    let no_delay = [0, libc::IPPROTO_TCP as u64, libc::TCP_NODELAY as u64, one, 4];
    plan.push(Operation::call(libc::SYS_setsockopt, &no_delay).plus(0, socket))?;
    // `struct sockaddr_in`, and `struct sockaddr_in6`.
    let mut address = (family as u16).to_ne_bytes().to_vec();
    address.extend(request.server.port().to_be_bytes());
    match connection.six {
        true => {
            address.extend([0; 4]);
            address.extend(request.server.ip().to_ipv6_mapped().octets());
            address.extend([0; 4]);
        }
        false => {
            address.extend(request.server.ip().octets());
            address.extend([0; 8]);
        }
    }
    let (at, bytes) = (plan.data(&address)?, address.len() as u64);
    plan.push(Operation::call(libc::SYS_connect, &[0, at, bytes]).plus(0, socket))?;
    let (at, bytes) = (plan.data(request.bytes)?, request.bytes.len() as u64);
    plan.push(Operation::call(libc::SYS_write, &[0, at, bytes]).plus(0, socket))?;
    if flags & libc::O_NONBLOCK != 0 {
        let set = [0, libc::F_SETFL as u64, libc::O_NONBLOCK as u64];
        plan.push(Operation::call(libc::SYS_fcntl, &set).plus(0, socket))?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn lines_are_found_by_the_sockets_number() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:2329 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0\n   \
            1: 0100007F:8B1E 0100007F:2329 01 00000000:00000007 00:00000000 00000000     0        0 777 1 0\n";
        let line = parse(table, 777).unwrap();
        assert_eq!((line.local, line.remote), ("0100007F:8B1E", "0100007F:2329"));
        assert_eq!((line.state, line.queues), ("01", "00000000:00000007"));
        assert_eq!(parse(table, 7), None);
        assert_eq!(parse("\n a b\n\n", 7), None);
    }

    #[test]
    fn connection_of_a_request_is_found_among_the_sockets_of_a_process() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let process = std::process::id() as i32;
        for (target, six) in [("127.0.0.1", false), ("::ffff:127.0.0.1", true)] {
            let client = TcpStream::connect((target, port)).unwrap();
            let (mut accepted, peer) = server.accept().unwrap();
            let request = Request { server: address, from: peer.port(), bytes: b"x" };
            let number = client.as_raw_fd();
            let link = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
            let of = |flags, request| find(process, link.to_str().unwrap(), flags, Some(request));
            assert_eq!(of(libc::O_RDWR, request).unwrap(), Some(Connection { six }));
            assert_eq!(of(libc::O_RDWR, Request { from: port, ..request }).unwrap(), None);
            assert!(of(libc::O_RDWR | libc::O_ASYNC, request).is_err());
            // An answer that is not read would be lost.
            accepted.write_all(b"early").unwrap();
            assert!(of(libc::O_RDWR, request).is_err());
        }
        assert_eq!(find(process, "pipe:[1]", 0, None).unwrap(), None);
    }
}
