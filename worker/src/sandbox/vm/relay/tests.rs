//! The host's end, against a guest's side of the line that is spoken by hand.

use std::time::Duration;

use vm::protocol::window::WINDOW_BYTES;

use super::*;
use crate::sandbox::interface::CONNECTIONS;

/// The guest's side of the line, spoken by hand.
fn line() -> (Relay, UnixStream) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    (Relay::new(ours).unwrap(), UnixStream::from_std(theirs).unwrap())
}

/// The next frame that the guest gets.
async fn heard(guest: &mut UnixStream) -> (u32, Kind, Vec<u8>) {
    let mut head = [0; HEADER_BYTES];
    guest.read_exact(&mut head).await.unwrap();
    let Header { stream, kind, bytes } = Header::decode(head).unwrap();
    let mut payload = vec![0; bytes];
    guest.read_exact(&mut payload).await.unwrap();
    (stream, kind, payload)
}

async fn says(guest: &mut UnixStream, stream: u32, kind: Kind, bytes: &[u8]) {
    guest.write_all(&frame(stream, kind, bytes)).await.unwrap();
}

/// Sends all of a window.
async fn fills(guest: &mut UnixStream, stream: u32) {
    for _ in 0..WINDOW_BYTES / MOST_BYTES {
        says(guest, stream, Kind::Data, &[b'x'; MOST_BYTES]).await;
    }
}

async fn reads(connection: &mut UnixStream, bytes: usize) -> Vec<u8> {
    let mut read = vec![0; bytes];
    connection.read_exact(&mut read).await.unwrap();
    read
}

#[tokio::test]
async fn carries_a_connection_both_ways_and_closes_unexpected_ones() {
    let (relay, mut guest) = line();
    let mut listener = relay.listen("a", CONNECTIONS);
    says(&mut guest, 7, Kind::Open, b"a").await;
    says(&mut guest, 7, Kind::Data, b"ping").await;
    let mut connection = listener.accept().await;
    assert_eq!(reads(&mut connection, 4).await, b"ping");
    connection.write_all(b"pong").await.unwrap();
    assert_eq!(heard(&mut guest).await, (7, Kind::Data, b"pong".to_vec()));
    // An unexpected instance is closed at once; the other goes on.
    says(&mut guest, 8, Kind::Open, b"b").await;
    assert_eq!(heard(&mut guest).await, (8, Kind::Close, vec![]));
    says(&mut guest, 7, Kind::Close, &[]).await;
    assert_eq!(connection.read(&mut [0; 4]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_slow_reader_on_either_side_holds_up_its_own_connection_and_no_other() {
    let (relay, mut guest) = line();
    let mut listener = relay.listen("a", CONNECTIONS);
    says(&mut guest, 1, Kind::Open, b"a").await;
    let mut slow = listener.accept().await;
    // Neither the worker nor the guest reads what the other sends: each may send a window, and what the
    // worker's socket holds.
    fills(&mut guest, 1).await;
    let (mut taken, mut given) = slow.split();
    let (mut sent, mut granted) = (0, 0);
    let endless = async {
        loop {
            given.write_all(&[b'y'; MOST_BYTES]).await.unwrap();
        }
    };
    let until_it_stops = async {
        loop {
            let patience = Duration::from_secs(if sent < WINDOW_BYTES { 60 } else { 1 });
            match tokio::time::timeout(patience, heard(&mut guest)).await {
                Ok((1, Kind::Data, bytes)) => sent += bytes.len(),
                Ok((1, Kind::Grant, bytes)) => granted += u32::from_le_bytes(bytes.try_into().unwrap()),
                Ok(other) => panic!("{other:?}"),
                Err(_) => break,
            }
        }
    };
    tokio::select! {
        () = until_it_stops => {}
        () = endless => {}
    }
    assert_eq!(sent, WINDOW_BYTES);
    assert!(granted < WINDOW_BYTES as u32, "{granted} bytes");
    // Others of the same instance are carried meanwhile.
    says(&mut guest, 2, Kind::Open, b"a").await;
    says(&mut guest, 2, Kind::Data, b"ping").await;
    let mut other = listener.accept().await;
    assert_eq!(reads(&mut other, 4).await, b"ping");
    other.write_all(b"pong").await.unwrap();
    assert_eq!(heard(&mut guest).await, (2, Kind::Data, b"pong".to_vec()));
    // What is read is granted again, on either side.
    let mut bytes = vec![0; WINDOW_BYTES];
    taken.read_exact(&mut bytes).await.unwrap();
    assert!(bytes.iter().all(|byte| *byte == b'x'));
    while granted < WINDOW_BYTES as u32 {
        let (stream, kind, bytes) = heard(&mut guest).await;
        assert_eq!((stream, kind), (1, Kind::Grant));
        granted += u32::from_le_bytes(bytes.try_into().unwrap());
    }
    says(&mut guest, 1, Kind::Grant, &1000_u32.to_le_bytes()).await;
    assert_eq!(heard(&mut guest).await, (1, Kind::Data, vec![b'y'; 1000]));
}

#[tokio::test]
async fn a_guest_that_ignores_a_window_loses_that_connection_and_no_other() {
    let (relay, mut guest) = line();
    let mut listener = relay.listen("a", CONNECTIONS);
    let mut connections = Vec::new();
    for stream in 1..=4 {
        says(&mut guest, stream, Kind::Open, b"a").await;
        connections.push(listener.accept().await);
    }
    let mut kept = connections.pop().unwrap();
    // It sends for ever, grants what it was not sent, and says nonsense.
    for _ in 0..200 {
        says(&mut guest, 1, Kind::Data, &[0; MOST_BYTES]).await;
    }
    says(&mut guest, 2, Kind::Grant, &1_u32.to_le_bytes()).await;
    says(&mut guest, 3, Kind::Grant, b"?").await;
    let mut read = 0;
    for connection in &mut connections {
        let mut bytes = vec![0; MOST_BYTES];
        while let Ok(count @ 1..) = connection.read(&mut bytes).await {
            read += count;
        }
    }
    // What the socket itself holds was granted again.
    assert!(read < 3 * WINDOW_BYTES, "{read} bytes");
    let mut closed = Vec::new();
    while closed.len() < 3 {
        match heard(&mut guest).await {
            (stream, Kind::Close, _) => closed.push(stream),
            (stream, kind, _) => assert_eq!((stream, kind), (1, Kind::Grant)),
        }
    }
    closed.sort_unstable();
    assert_eq!(closed, [1, 2, 3]);
    says(&mut guest, 4, Kind::Data, b"ping").await;
    assert_eq!(reads(&mut kept, 4).await, b"ping");
}

#[tokio::test]
async fn an_instance_has_only_so_many_connections() {
    let (relay, mut guest) = line();
    let mut listener = relay.listen("a", CONNECTIONS);
    for stream in 0..=CONNECTIONS as u32 {
        says(&mut guest, stream, Kind::Open, b"a").await;
    }
    assert_eq!(heard(&mut guest).await, (CONNECTIONS as u32, Kind::Close, vec![]));
    // One that the worker closes has room for another.
    drop(listener.accept().await);
    assert_eq!(heard(&mut guest).await, (0, Kind::Close, vec![]));
    says(&mut guest, 100, Kind::Open, b"a").await;
    says(&mut guest, 100, Kind::Data, b"ping").await;
    for _ in 1..CONNECTIONS {
        listener.accept().await;
    }
    assert_eq!(reads(&mut listener.accept().await, 4).await, b"ping");
}

#[tokio::test]
async fn a_connection_to_a_server_arrives_with_the_token_of_its_request() {
    let (relay, mut guest) = line();
    let _listener = relay.listen("a", CONNECTIONS);
    assert!(relay.await_connection("b").is_err());
    let (given_up, waiting) = (relay.await_connection("a").unwrap(), relay.await_connection("a").unwrap());
    let (unused, token) = (given_up.token.to_le_bytes(), waiting.token.to_le_bytes());
    assert_ne!(unused, token);
    drop(given_up);
    // Those that no request waits for are closed.
    for (stream, unknown) in [(1, &unused[..]), (2, b"?")] {
        says(&mut guest, stream, Kind::Inside, unknown).await;
        assert_eq!(heard(&mut guest).await, (stream, Kind::Close, vec![]));
    }
    says(&mut guest, 3, Kind::Inside, &token).await;
    says(&mut guest, 3, Kind::Data, b"ping").await;
    let mut connection = waiting.connection().await.unwrap();
    assert_eq!(reads(&mut connection, 4).await, b"ping");
    connection.write_all(b"pong").await.unwrap();
    assert_eq!(heard(&mut guest).await, (3, Kind::Data, b"pong".to_vec()));
    // A token is for one connection.
    says(&mut guest, 4, Kind::Inside, &token).await;
    assert_eq!(heard(&mut guest).await, (4, Kind::Close, vec![]));
}

#[tokio::test]
async fn a_guest_that_has_fallen_silent_keeps_nothing_of_an_instance_that_has_ended() {
    let (relay, mut guest) = line();
    let mut listener = relay.listen("a", CONNECTIONS);
    says(&mut guest, 1, Kind::Open, b"a").await;
    let mut connection = listener.accept().await;
    // It grants nothing, and never says that the connection is closed.
    let full = tokio::time::timeout(Duration::from_secs(1), connection.write_all(&[b'y'; 4 * WINDOW_BYTES]));
    let hearing = async {
        let mut sent = 0;
        while sent < WINDOW_BYTES {
            sent += heard(&mut guest).await.2.len();
        }
    };
    assert!(tokio::join!(full, hearing).0.is_err());
    let expected = Arc::downgrade(&relay.0.listeners()["a"]);
    drop((connection, listener));
    assert_eq!(heard(&mut guest).await, (1, Kind::Close, vec![]));
    // Whatever it says next.
    says(&mut guest, 2, Kind::Close, &[]).await;
    while expected.strong_count() > 0 {
        tokio::task::yield_now().await;
    }
}
