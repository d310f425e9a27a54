//! The network namespace of an instance: its loopback device, which is down at first, and the TUN device
//! through which packets of an instance in a VM reach the host.

use std::ffi::{CString, c_int, c_short, c_ulong, c_void};
use std::fs::File;
use std::io::{Error, Result};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// The longest packet of a tunnel.
pub const PACKET_BYTES: usize = 1500;
/// A tunnel's subnet has four addresses.
const NET_MASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 252);

/// Brings up the loopback device of this thread's network namespace.
///
/// # Errors
/// There is none, or this process lacks the capability.
pub fn loopback_up() -> Result<()> {
    up(&any_socket()?, "lo")
}

/// Gives the loopback device of this thread's network namespace another address; each has a number of its
/// own.
///
/// # Errors
/// There is no loopback device, or this process lacks the capability.
pub fn add_loopback_address(number: usize, address: Ipv4Addr) -> Result<()> {
    let (socket, label) = (any_socket()?, format!("lo:{number}"));
    set(&socket, libc::SIOCSIFADDR, &label, |value| value.ifru_addr = socket_address(address))?;
    // Otherwise all of its network would be inside.
    set(&socket, libc::SIOCSIFNETMASK, &label, |value| {
        value.ifru_netmask = socket_address(Ipv4Addr::BROADCAST)
    })
}

/// Makes a TUN device of this name and address in this thread's network namespace, and brings it up. A read
/// of the file returns one packet sent there; a write to it is a packet received there. Neither blocks. The
/// device is removed when the file is closed.
///
/// # Errors
/// There is a device of that name, or this process lacks the capability.
pub fn tunnel(name: &str, address: Ipv4Addr) -> Result<File> {
    let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let flags = (libc::IFF_TUN | libc::IFF_NO_PI) as c_short;
    set(&file, libc::TUNSETIFF as c_ulong, name, |value| value.ifru_flags = flags)?;
    let socket = any_socket()?;
    set(&socket, libc::SIOCSIFADDR, name, |value| value.ifru_addr = socket_address(address))?;
    set(&socket, libc::SIOCSIFNETMASK, name, |value| value.ifru_netmask = socket_address(NET_MASK))?;
    up(&socket, name)?;
    Ok(file)
}

/// `struct rtentry` of linux/route.h.
#[repr(C)]
struct Route {
    pad1: c_ulong,
    destination: libc::sockaddr,
    gateway: libc::sockaddr,
    mask: libc::sockaddr,
    flags: u16,
    pad2: c_short,
    pad3: c_ulong,
    pad4: *const c_void,
    metric: c_short,
    device: *const libc::c_char,
    mtu: c_ulong,
    window: c_ulong,
    round_trip: u16,
}

/// Makes this device the default route of this thread's network namespace.
///
/// # Errors
/// There is no such device, or it is down.
pub fn set_default_route(name: &str) -> Result<()> {
    let (socket, name) = (any_socket()?, CString::new(name)?);
    let anywhere = socket_address(Ipv4Addr::UNSPECIFIED);
    let route = Route {
        pad1: 0,
        destination: anywhere,
        gateway: anywhere,
        mask: anywhere,
        flags: libc::RTF_UP,
        pad2: 0,
        pad3: 0,
        pad4: std::ptr::null(),
        metric: 0,
        device: name.as_ptr(),
        mtu: 0,
        window: 0,
        round_trip: 0,
    };
    // SAFETY: SIOCADDRT reads a route and the name that it points to, which both outlive the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT as _, &raw const route) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// Any socket, for the ioctls that configure interfaces.
fn any_socket() -> Result<UdpSocket> {
    UdpSocket::bind(("0.0.0.0", 0))
}

fn up(socket: &UdpSocket, name: &str) -> Result<()> {
    let flags = (libc::IFF_UP | libc::IFF_RUNNING) as c_short;
    set(socket, libc::SIOCSIFFLAGS, name, |value| value.ifru_flags = flags)
}

/// Makes an ioctl about the interface of this name.
fn set(
    to: &impl AsRawFd,
    request: c_ulong,
    name: &str,
    value: impl FnOnce(&mut libc::__c_anonymous_ifr_ifru),
) -> Result<()> {
    // SAFETY: an all-zero ifreq is valid.
    let mut all: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= all.ifr_name.len() {
        return Err(Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in all.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    value(&mut all.ifr_ifru);
    // SAFETY: the requests above read an ifreq and write at most that, which outlives the call.
    let outcome: c_int = unsafe { libc::ioctl(to.as_raw_fd(), request as _, &raw mut all) };
    if outcome == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) },
        sin_zero: [0; 8],
    };
    // SAFETY: both are 16 bytes, and any bytes are a sockaddr.
    unsafe { std::mem::transmute(address) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Gives this thread a network namespace; if the kernel refuses, prints that and returns false.
    fn enter_network_namespace() -> bool {
        // SAFETY: takes nothing.
        let as_user = if unsafe { libc::geteuid() } == 0 { 0 } else { libc::CLONE_NEWUSER };
        // SAFETY: changes the namespaces of this thread only.
        if unsafe { libc::unshare(libc::CLONE_NEWNET | as_user) } == 0 {
            return true;
        }
        // Not by eprintln, whose output the test harness captures: a skipped test must be visible.
        let why = Error::last_os_error();
        writeln!(std::io::stderr(), "\nskipped: vm-sandbox: no network namespace: {why}").unwrap();
        false
    }

    #[test]
    fn loopback_connects_once_up() {
        if !enter_network_namespace() {
            return;
        }
        let reaches = || {
            let listener = TcpListener::bind(("127.0.0.1", 7001))?;
            TcpStream::connect(listener.local_addr()?).map(drop)
        };
        assert!(reaches().is_err(), "before");
        loopback_up().unwrap();
        reaches().unwrap();
    }

    #[test]
    fn default_route_leads_through_tunnel() {
        if !enter_network_namespace() {
            return;
        }
        let own = Ipv4Addr::new(100, 64, 0, 2);
        let mut file = match tunnel("eth0", own) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                writeln!(std::io::stderr(), "\nskipped: vm-sandbox: no TUN devices: {error}").unwrap();
                return;
            }
            made => made.unwrap(),
        };
        let send = || {
            let socket = UdpSocket::bind(("0.0.0.0", 0))?;
            socket.send_to(b"hello", ("192.0.2.7", 9))
        };
        assert!(send().is_err(), "no way there");
        set_default_route("eth0").unwrap();
        send().unwrap();
        // The kernel may send packets of its own first, in another protocol.
        let mut packet = [0; PACKET_BYTES];
        let length = loop {
            let length = file.read(&mut packet).unwrap();
            if packet[0] >> 4 == 4 {
                break length;
            }
        };
        let packet = &packet[..length];
        assert_eq!((&packet[12..16], &packet[16..20]), (&own.octets()[..], &[192, 0, 2, 7][..]));
        assert!(packet.ends_with(b"hello"));
    }
}
