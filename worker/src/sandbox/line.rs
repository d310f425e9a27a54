//! The worker's end of the line to a process that is to be taken, or that is restored
//! ([`worker_snapshot::line`]).

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use worker_snapshot::RUNS;
pub(crate) use worker_snapshot::line::Fault;
use worker_snapshot::line::{self, MESSAGE_BYTES, READY};
use worker_system::text::shown;

/// The line between the worker and a process that is to be taken, or restored.
pub(crate) struct Line(UnixStream);

impl Line {
    /// The worker's end, and the process's.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn pair() -> Result<(Line, OwnedFd)> {
        let (ours, theirs) = StdStream::pair().context("no socket for a snapshot")?;
        ours.set_nonblocking(true)?;
        Ok((Line(UnixStream::from_std(ours)?), theirs.into()))
    }

    /// Tells the process what it runs before it waits.
    pub async fn prime(&mut self, invocation: &str, limit: Duration) {
        // If it does not read it, it will not wait either.
        let _ = tokio::time::timeout(limit, self.0.write_all(invocation.as_bytes())).await;
    }

    /// Waits until the process waits.
    ///
    /// # Errors
    /// It has failed, ended, or takes too long.
    pub async fn until_it_waits(&mut self, limit: Duration) -> Result<()> {
        self.expect(READY, limit).await
    }

    /// Tells a restored process its environment, and waits until it runs.
    ///
    /// # Errors
    /// It has failed, ended, or takes too long.
    pub async fn begin(&mut self, environment: &[(String, String)], limit: Duration) -> Result<()> {
        let variables: HashMap<_, _> = environment.iter().map(|(name, value)| (name, value)).collect();
        let mut text = serde_json::to_vec(&variables)?;
        text.push(b'\n');
        // What it says says more than a closed line.
        let _ = self.0.write_all(&text).await;
        self.until_it_runs(limit).await
    }

    /// Waits until a restored process runs that has sent its request again.
    ///
    /// # Errors
    /// It has failed, ended, or takes too long.
    pub async fn until_it_runs(&mut self, limit: Duration) -> Result<()> {
        self.expect(RUNS, limit).await
    }

    async fn expect(&mut self, wanted: u8, limit: Duration) -> Result<()> {
        let mut message = vec![0; MESSAGE_BYTES];
        let received = tokio::time::timeout(limit, self.0.read(&mut message));
        let Ok(received) = received.await else {
            bail!(Fault::late(limit));
        };
        let count = received.context("its line is broken")?;
        line::check(&message[..count], wanted).map_err(|fault| match fault {
            Some(Fault(why)) => Fault(shown(&why).to_string()).into(),
            None => anyhow!("the process has ended"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    const RESTORE: Duration = Duration::from_secs(10);

    /// What the worker takes from a line on which a process writes this, and then ends.
    async fn received(written: &[u8]) -> Result<(), String> {
        let (mut line, theirs) = Line::pair().unwrap();
        StdStream::from(theirs).write_all(written).unwrap();
        line.until_it_waits(RESTORE).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn line_says_that_a_process_waits_or_why_not() {
        assert_eq!(received(b"W").await, Ok(()));
        assert_eq!(received(b"").await, Err("the process has ended".to_string()));
        assert_eq!(received(b"Eboom\nand more").await, Err("boom\\nand more".to_string()));
        assert_eq!(received(b"/usr/lib/x has changed").await, Err("/usr/lib/x has changed".to_string()));
    }

    #[tokio::test]
    async fn restored_process_receives_its_whole_environment_in_one_line() {
        let (mut line, theirs) = Line::pair().unwrap();
        let long = "x".repeat(300_000);
        let process = std::thread::spawn(move || {
            let (mut theirs, mut text, mut byte) = (StdStream::from(theirs), Vec::new(), [0]);
            while byte[0] != b'\n' {
                theirs.read_exact(&mut byte).unwrap();
                text.push(byte[0]);
            }
            theirs.write_all(b"K").unwrap();
            serde_json::from_slice::<HashMap<String, String>>(&text).unwrap()
        });
        let environment = [("A".to_string(), "1\n2".to_string()), ("LONG".to_string(), long)];
        line.begin(&environment, RESTORE).await.unwrap();
        assert_eq!(process.join().unwrap(), HashMap::from(environment));
    }
}
