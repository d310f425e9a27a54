//! The agent's end of the line to a process that is to be taken, or that is restored
//! ([`worker_snapshot::line`]).

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use worker_snapshot::RUNS;
use worker_snapshot::line::{self, Fault, MESSAGE_BYTES, READY};

/// Whether an error is a [`Fault`].
pub fn is_fault(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Fault>())
}

/// The agent's end of a line.
#[derive(Debug)]
pub struct Line(UnixStream);

impl Line {
    /// The agent's end, and the process's.
    pub fn pair() -> io::Result<(Line, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Line(ours), theirs.into()))
    }

    /// Waits until the process waits.
    pub fn until_it_waits(&mut self, limit: Duration) -> io::Result<()> {
        self.expect(READY, limit)
    }

    /// Tells a restored process its environment, and waits until it runs.
    pub fn begin(&mut self, environment: &BTreeMap<String, String>, limit: Duration) -> io::Result<()> {
        let mut text = serde_json::to_vec(environment)?;
        text.push(b'\n');
        self.0.set_write_timeout(some(limit))?;
        // What it says says more than a closed line.
        let _ = self.0.write_all(&text);
        self.expect(RUNS, limit)
    }

    fn expect(&mut self, wanted: u8, limit: Duration) -> io::Result<()> {
        self.0.set_read_timeout(some(limit))?;
        let mut message = [0; MESSAGE_BYTES];
        let count = loop {
            match self.0.read(&mut message) {
                Ok(count) => break count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Err(io::Error::other(Fault::late(limit)));
                }
                Err(error) => return Err(error),
            }
        };
        line::check(&message[..count], wanted).map_err(|fault| match fault {
            Some(fault) => io::Error::other(fault),
            None => io::Error::other("the process has ended"),
        })
    }
}

/// A timeout of a socket, which must not be zero.
fn some(limit: Duration) -> Option<Duration> {
    Some(limit.max(Duration::from_millis(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// What the agent takes from a line on which a process writes this, and then ends.
    fn received(written: &[u8]) -> Result<(), (String, bool)> {
        let (mut line, theirs) = Line::pair().unwrap();
        UnixStream::from(theirs).write_all(written).unwrap();
        line.until_it_waits(LIMIT).map_err(|error| (error.to_string(), is_fault(&error)))
    }

    #[test]
    fn line_says_that_a_process_waits_or_why_not() {
        assert_eq!(received(b"W"), Ok(()));
        assert_eq!(received(b""), Err(("the process has ended".to_string(), false)));
        assert_eq!(received(b"Eboom"), Err(("boom".to_string(), true)));
        assert_eq!(received(b"what"), Err(("what".to_string(), true)));
    }

    #[test]
    fn process_that_says_nothing_is_at_fault() {
        let (mut line, _theirs) = Line::pair().unwrap();
        let error = line.until_it_waits(Duration::from_millis(5)).unwrap_err();
        assert!(is_fault(&error) && error.to_string() == "not done after 0 s", "{error}");
    }

    #[test]
    fn restored_process_receives_its_whole_environment_in_one_line() {
        let (mut line, theirs) = Line::pair().unwrap();
        let environment = [("A", "1\n2".to_string()), ("LONG", "x".repeat(300_000))]
            .map(|(name, text)| (name.into(), text));
        let environment = BTreeMap::from(environment);
        let process = std::thread::spawn(move || {
            let (mut theirs, mut text, mut byte) = (UnixStream::from(theirs), Vec::new(), [0]);
            while byte[0] != b'\n' {
                theirs.read_exact(&mut byte).unwrap();
                text.push(byte[0]);
            }
            theirs.write_all(&[RUNS]).unwrap();
            serde_json::from_slice::<BTreeMap<String, String>>(&text).unwrap()
        });
        line.begin(&environment, LIMIT).unwrap();
        assert_eq!(process.join().unwrap(), environment);
    }
}
