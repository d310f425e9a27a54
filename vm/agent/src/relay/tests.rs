//! The guest's end of the relay, against a host whose frames the test sends.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use super::*;

/// How long without a frame counts as silence.
const SILENCE: Duration = Duration::from_secs(2);
/// Timeout for frames that must come.
const PATIENCE: Duration = Duration::from_secs(60);

struct Host(UnixStream);

impl Host {
    fn send(&mut self, stream: u32, kind: Kind, bytes: &[u8]) {
        self.0.write_all(&Header { stream, kind, bytes: bytes.len() }.encode()).unwrap();
        self.0.write_all(bytes).unwrap();
    }

    /// The next frame, which must come.
    fn receive(&mut self) -> (u32, Kind, Vec<u8>) {
        self.receive_within(PATIENCE).expect("a frame comes")
    }

    /// The next frame; `None` if none comes in this time.
    fn receive_within(&mut self, patience: Duration) -> Option<(u32, Kind, Vec<u8>)> {
        let mut head = [0; HEADER_BYTES];
        self.0.set_read_timeout(Some(patience)).unwrap();
        self.0.read_exact(&mut head[..1]).ok()?;
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        self.0.read_exact(&mut head[1..]).unwrap();
        let Header { stream, kind, bytes } = Header::decode(head).unwrap();
        let mut payload = vec![0; bytes];
        self.0.read_exact(&mut payload).unwrap();
        Some((stream, kind, payload))
    }

    /// Receives this many bytes of a stream, and then nothing more.
    fn receives_exactly(&mut self, stream: u32, wanted: usize) {
        let mut all = 0;
        while all < wanted {
            let (number, kind, bytes) = self.receive();
            assert_eq!((number, kind), (stream, Kind::Data));
            all += bytes.len();
        }
        assert_eq!(all, wanted);
        assert_eq!(self.receive_within(SILENCE), None);
    }
}

/// A listener without an instance: the test opens its connections.
fn instance() -> (Host, Listener, impl Fn(&mut Host) -> (u32, TcpStream)) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let relay = Streams::over(File::from(OwnedFd::from(theirs))).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serving = relay.serve("a", listener, 8).unwrap();
    let connect = move |host: &mut Host| {
        let connection = TcpStream::connect(address).unwrap();
        let (number, kind, name) = host.receive();
        assert_eq!((kind, &name[..]), (Kind::Open, &b"a"[..]));
        (number, connection)
    };
    (Host(ours), serving, connect)
}

/// Sends without end, in a thread of its own.
fn flood(connection: &TcpStream) {
    let mut connection = connection.try_clone().unwrap();
    std::thread::spawn(move || while connection.write_all(&[b'x'; MOST_BYTES]).is_ok() {});
}

#[test]
fn slow_host_delays_only_that_connection() {
    let (mut host, _serving, connect) = instance();
    let (slow, flooded) = connect(&mut host);
    flood(&flooded);
    host.receives_exactly(slow, WINDOW_BYTES);
    let (number, mut other) = connect(&mut host);
    other.write_all(b"ping").unwrap();
    assert_eq!(host.receive(), (number, Kind::Data, b"ping".to_vec()));
    host.send(number, Kind::Data, b"pong");
    let mut answer = [0; 4];
    other.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"pong");
    host.send(slow, Kind::Grant, &1000_u32.to_le_bytes());
    host.receives_exactly(slow, 1000);
}

#[test]
fn slow_instance_delays_only_that_connection_and_loses_no_data() {
    let (mut host, _serving, connect) = instance();
    let (number, mut slow) = connect(&mut host);
    // Far more than the sockets buffer, sent as it is granted; part of it waits.
    const WHOLE: usize = 64 << 20;
    let (mut credit, mut sent, mut waited) = (WINDOW_BYTES, 0, false);
    let reading = |mut slow: TcpStream| {
        std::thread::spawn(move || {
            let (mut bytes, mut read) = (vec![0; MOST_BYTES], 0);
            while let Ok(count @ 1..) = slow.read(&mut bytes) {
                assert!(
                    bytes[..count].iter().enumerate().all(|(at, byte)| *byte == ((read + at) % 251) as u8)
                );
                read += count;
            }
            read
        })
    };
    let mut reader = None;
    while sent < WHOLE {
        let count = credit.min(MOST_BYTES).min(WHOLE - sent);
        if count > 0 {
            host.send(
                number,
                Kind::Data,
                &(sent..sent + count).map(|at| (at % 251) as u8).collect::<Vec<_>>(),
            );
            (credit, sent) = (credit - count, sent + count);
            continue;
        }
        // Once the reader thread runs, a grant must come.
        let heard = if reader.is_none() { host.receive_within(SILENCE) } else { Some(host.receive()) };
        match heard {
            Some((_, kind, bytes)) => {
                assert_eq!(kind, Kind::Grant);
                credit += u32::from_le_bytes(bytes.try_into().unwrap()) as usize;
            }
            None => {
                waited = true;
                let (other_number, mut other) = connect(&mut host);
                host.send(other_number, Kind::Data, b"pong");
                let mut answer = [0; 4];
                other.read_exact(&mut answer).unwrap();
                assert_eq!(&answer, b"pong");
                drop(other);
                assert_eq!(host.receive(), (other_number, Kind::Close, vec![]));
                reader = Some(reading(slow.try_clone().unwrap()));
            }
        }
    }
    host.send(number, Kind::Close, &[]);
    assert!(waited, "it took {WHOLE} bytes unread");
    assert_eq!(reader.unwrap().join().unwrap(), WHOLE);
    assert_eq!(slow.read(&mut [0]).unwrap(), 0);
}

#[test]
fn host_that_exceeds_a_window_loses_only_that_connection() {
    let (mut host, _serving, connect) = instance();
    let (first, mut cut) = connect(&mut host);
    let (second, mut kept) = connect(&mut host);
    for _ in 0..1000 {
        host.send(first, Kind::Data, &[0; MOST_BYTES]);
    }
    let mut closed = false;
    while let Some((number, kind, _)) = host.receive_within(if closed { SILENCE } else { PATIENCE }) {
        assert!(number == first && matches!(kind, Kind::Grant | Kind::Close));
        closed |= kind == Kind::Close;
    }
    assert!(closed);
    let mut bytes = Vec::new();
    cut.read_to_end(&mut bytes).unwrap();
    assert!(bytes.len() < 1000 * MOST_BYTES);
    host.send(second, Kind::Data, b"pong");
    let mut answer = [0; 4];
    kept.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"pong");
}

#[test]
fn host_that_exceeds_a_window_closes_it_though_the_instance_never_reads() {
    let (mut host, _serving, connect) = instance();
    let (number, mut unread) = connect(&mut host);
    let mut credit = WINDOW_BYTES;
    // Until the socket's buffers are full: then a thread waits in a write to it.
    loop {
        while credit >= MOST_BYTES {
            host.send(number, Kind::Data, &[0; MOST_BYTES]);
            credit -= MOST_BYTES;
        }
        let Some((_, kind, bytes)) = host.receive_within(SILENCE) else { break };
        assert_eq!(kind, Kind::Grant);
        credit += u32::from_le_bytes(bytes.try_into().unwrap()) as usize;
    }
    (0..2).for_each(|_| host.send(number, Kind::Data, &[0; MOST_BYTES]));
    assert_eq!(host.receive(), (number, Kind::Close, vec![]));
    // What it was sent before can be read, and then the end.
    unread.read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn drops_output_after_instance_end() {
    let (mut host, serving, connect) = instance();
    let (number, connection) = connect(&mut host);
    flood(&connection);
    host.receives_exactly(number, WINDOW_BYTES);
    drop(serving);
    assert_eq!(host.receive(), (number, Kind::Close, vec![]));
    // Its data in the socket is dropped, too.
    let closed = (&connection).write_all(&[0; 64 << 20]);
    assert!(closed.is_err());
}

#[test]
fn host_reaches_a_server_inside() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let relay = Streams::over(File::from(OwnedFd::from(theirs))).unwrap();
    let mut host = Host(ours);
    let servers = Servers::new(&relay, File::open("/proc/thread-self/ns/net").unwrap());
    let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    match servers.connect(port, 7) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            eprintln!("skipped: host_reaches_a_server_inside: only root may enter a network namespace");
            return;
        }
        connected => connected.unwrap(),
    }
    let (mut inside, _) = server.accept().unwrap();
    let (number, kind, token) = host.receive();
    assert_eq!((kind, &token[..]), (Kind::Inside, &7_u32.to_le_bytes()[..]));
    host.send(number, Kind::Data, b"ping");
    let mut asked = [0; 4];
    inside.read_exact(&mut asked).unwrap();
    inside.write_all(b"pong").unwrap();
    assert_eq!((&asked, host.receive()), (b"ping", (number, Kind::Data, b"pong".to_vec())));
    // The instance's processes have ended, and with them its server.
    drop((inside, server));
    assert_eq!(host.receive(), (number, Kind::Close, vec![]));
    let refused = servers.connect(port, 8).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}
