//! Orders of the worker, to the monitor and to process 1: a length, a text in JSON, and descriptors, each
//! with a byte.

use std::io::Read;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::syscalls;

const CUT_SHORT: &str = "the worker's order is cut short";

/// Sends an order with one descriptor, or none, and those that it names. Blocks until it is read.
///
/// # Errors
/// The receiver has ended.
pub fn send(
    socket: &UnixStream,
    order: &impl Serialize,
    with: Option<BorrowedFd<'_>>,
    files: &[BorrowedFd<'_>],
) -> Result<()> {
    let text = serde_json::to_vec(order)?;
    let mut message = (text.len() as u32).to_le_bytes().to_vec();
    message.extend(text);
    syscalls::send_with(socket.as_raw_fd(), &message, with.map(|file| file.as_raw_fd()))?;
    for file in files {
        syscalls::send_with(socket.as_raw_fd(), &[0], Some(file.as_raw_fd()))?;
    }
    Ok(())
}

/// Receives an order and its one descriptor; none, if the worker has closed the socket.
///
/// # Errors
/// It is cut short, or of another kind.
pub fn receive<T: DeserializeOwned>(mut socket: &UnixStream) -> Result<Option<(T, Option<OwnedFd>)>> {
    let mut length = [0; 4];
    let file = match syscalls::receive_with(socket.as_raw_fd(), &mut length) {
        Ok((4, file)) => file,
        _ => return Ok(None),
    };
    let mut text = vec![0; u32::from_le_bytes(length) as usize];
    socket.read_exact(&mut text).context(CUT_SHORT)?;
    Ok(Some((serde_json::from_slice(&text).context("the worker's order is wrong")?, file)))
}

/// Receives a descriptor that an order names.
///
/// # Errors
/// It is not there.
pub fn receive_file(socket: &UnixStream) -> Result<OwnedFd> {
    match syscalls::receive_with(socket.as_raw_fd(), &mut [0]) {
        Ok((1, Some(file))) => Ok(file),
        _ => Err(anyhow::anyhow!(CUT_SHORT)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn order_arrives_with_its_files() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (one, two) =
            (std::fs::File::open("/dev/null").unwrap(), std::fs::File::open("/dev/zero").unwrap());
        let long = vec!["x".repeat(100_000)];
        let (sent, files) = (long.clone(), (one.try_clone().unwrap(), two.try_clone().unwrap()));
        let sender = std::thread::spawn(move || {
            send(&ours, &sent, Some(files.0.as_fd()), &[files.1.as_fd()]).unwrap();
        });
        let (order, with) = receive::<Vec<String>>(&theirs).unwrap().unwrap();
        let file = receive_file(&theirs).unwrap();
        sender.join().unwrap();
        assert_eq!(order, long);
        let device = |file: BorrowedFd| rustix::fs::fstat(file).unwrap().st_rdev;
        assert_eq!(device(with.unwrap().as_fd()), device(one.as_fd()));
        assert_eq!(device(file.as_fd()), device(two.as_fd()));
        // The worker has closed it.
        assert!(receive::<Vec<String>>(&theirs).unwrap().is_none());
        assert!(receive_file(&theirs).is_err());
    }

    #[test]
    fn order_that_is_cut_short_or_of_another_kind_is_an_error() {
        let receive = |bytes: &[u8]| {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            std::io::Write::write_all(&mut ours, bytes).unwrap();
            drop(ours);
            super::receive::<Vec<String>>(&theirs).unwrap_err().to_string()
        };
        assert_eq!(receive(&[9, 0, 0, 0, b'[']), CUT_SHORT);
        assert_eq!(receive(&[1, 0, 0, 0, b'7']), "the worker's order is wrong");
    }
}
