//! The log's way to stderr. Lines wait in memory for a thread of their own, so that a reader which drains
//! stderr slowly, or not at all, delays only lines of the log. The first line is written at once, those of
//! the next milliseconds together: each write costs a system call, and each time that the thread wakes two
//! more. A worker under load logs three lines a request.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Bytes that may wait for the reader; lines beyond that are lost.
const WAITING: usize = 1 << 20;
/// How long lines are gathered after others were written.
const GATHERS: Duration = Duration::from_millis(5);
/// How long the end waits for a reader that takes no more.
const PATIENCE: Duration = Duration::from_secs(1);

/// Takes lines, and never waits for a reader.
#[derive(Clone)]
pub struct Log(Arc<Shared>);

/// Waits, when it is dropped, until all lines are written or the reader takes no more.
pub struct Flush(Log);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lines: Vec<u8>,
    /// Lines that found no room.
    lost: usize,
    /// The thread waits for a line.
    waits: bool,
    /// No more lines come.
    ends: bool,
    /// All are written.
    ended: bool,
}

/// A log that is written to `into`.
///
/// # Errors
/// There is no thread for it.
pub fn start(into: impl Write + Send + 'static) -> io::Result<(Log, Flush)> {
    let log = Log(Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() }));
    let of_thread = log.clone();
    thread::Builder::new().name("log".into()).spawn(move || of_thread.write_until_the_end(into))?;
    Ok((log.clone(), Flush(log)))
}

impl Log {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_until_the_end(&self, mut into: impl Write) {
        let mut written = Vec::new();
        loop {
            let mut state = self.state();
            while state.lines.is_empty() && state.lost == 0 && !state.ends {
                state.waits = true;
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.waits = false;
            std::mem::swap(&mut state.lines, &mut written);
            let (lost, ends) = (std::mem::take(&mut state.lost), state.ends);
            drop(state);
            // There is no other place to report that it failed.
            let _ = into.write_all(&written);
            written.clear();
            if lost > 0 {
                let _ = writeln!(into, "{lost} lines of the log are lost: they were not read in time");
            }
            let _ = into.flush();
            let mut state = self.state();
            if ends && state.lines.is_empty() {
                state.ended = true;
                self.0.changed.notify_all();
                return;
            }
            let gathers = self.0.changed.wait_timeout_while(state, GATHERS, |state| !state.ends);
            drop(gathers.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        if state.lines.len() + line.len() <= WAITING {
            state.lines.extend_from_slice(line);
        } else {
            state.lost += 1;
        }
        let waits = std::mem::take(&mut state.waits);
        // The thread would wake to wait for the lock.
        drop(state);
        if waits {
            self.0.changed.notify_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.ends = true;
        self.0.0.changed.notify_all();
        drop(self.0.0.changed.wait_timeout_while(state, PATIENCE, |state| !state.ended));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::time::Instant;

    use super::*;

    /// Counts writes, and keeps what was written.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<(usize, Vec<u8>)>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut kept = self.0.lock().unwrap();
            kept.0 += 1;
            kept.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_of_the_same_time_are_written_together_and_in_order() {
        let kept = Kept::default();
        let (mut log, flush) = start(kept.clone()).unwrap();
        let begun = Instant::now();
        let text: String = (0..1000).map(|number| format!("line {number}\n")).collect();
        text.split_inclusive('\n').for_each(|line| log.write_all(line.as_bytes()).unwrap());
        let writes_at_most = 2 + begun.elapsed().as_millis() / GATHERS.as_millis();
        drop(flush);
        let (writes, bytes) = &*kept.0.lock().unwrap();
        assert_eq!(String::from_utf8_lossy(bytes), text);
        assert!(*writes as u128 <= writes_at_most, "{writes}, {writes_at_most}");
    }

    #[test]
    fn a_line_is_written_without_a_second_one() {
        let (reader, writer) = io::pipe().unwrap();
        let (mut log, _flush) = start(writer).unwrap();
        let mut reader = BufReader::new(reader);
        for line in ["one\n", "two\n"] {
            log.write_all(line.as_bytes()).unwrap();
            let mut read = String::new();
            reader.read_line(&mut read).unwrap();
            assert_eq!(read, line);
        }
    }

    #[test]
    fn without_a_reader_lines_are_lost_and_counted() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (mut log, flush) = start(writer).unwrap();
        let line = [b"x".repeat(1023), b"\n".to_vec()].concat();
        let written = 4 * WAITING / line.len();
        (0..written).for_each(|_| log.write_all(&line).unwrap());
        let begun = Instant::now();
        drop(flush);
        assert!(begun.elapsed() < 10 * PATIENCE);
        drop(log);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let whole = text.lines().filter(|line| line.len() == 1023).count();
        let lost: usize = text
            .lines()
            .filter_map(|line| {
                line.strip_suffix(" lines of the log are lost: they were not read in time")?
                    .parse::<usize>()
                    .ok()
            })
            .sum();
        assert!(lost > 0 && whole + lost == written, "{whole} and {lost} of {written}");
    }
}
