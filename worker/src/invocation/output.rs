//! A function's output: shown in the worker's log with the function's name, and its end kept for
//! `LogType=Tail`.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::net::unix::pipe;

use crate::base::limits::LOG_TAIL_BYTES;
use crate::invocation::id::InvocationId;
use crate::invocation::logs::Stream;
use worker_system::lock::lock;

/// Lines are cut after this many bytes, as in CloudWatch.
const LINE_BYTES: usize = 256 * 1024;
/// Bytes of one instance that are shown in one second; more are counted, not shown.
const SHOWN_BYTES_A_SECOND: usize = 256 * 1024;
/// Bytes of one instance that are read in one second; then it waits in `write`.
const READ_BYTES_A_SECOND: usize = 4 * 1024 * 1024;
/// The most bytes read before an answer is sent, so that a function that prints without end cannot delay
/// it.
const READ_BYTES_BEFORE_ANSWER: usize = 256 * 1024;

/// Who has printed a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Printer {
    /// The runtime.
    Function,
    /// An extension.
    Extension,
}

/// Receives each line; returns whether the log shows it.
pub type LineFilter = Box<dyn Fn(Printer, &str) -> bool + Send + Sync>;

/// How far a pipe was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    /// It may hold more.
    More,
    /// It is empty for now.
    All,
    /// No process can write any more.
    Closed,
}

/// The output of one instance.
pub struct Output {
    label: String,
    log: Stream,
    receiver: pipe::Receiver,
    /// The output of extensions, if there are any.
    of_extensions: Option<pipe::Receiver>,
    /// Whether all that is printed before an answer is there by then.
    is_prompt: bool,
    filter: LineFilter,
    state: Mutex<State>,
}

struct State {
    /// Lines that have begun, of the function and of extensions.
    lines: [Vec<u8>; 2],
    tail: VecDeque<u8>,
    second: Instant,
    read: usize,
    shown: usize,
    dropped: usize,
}

impl Output {
    /// `label` stands before each line; `log` stores the lines, too. If it `is_prompt`, all that is printed
    /// before an answer is there by then.
    pub fn new(
        label: String,
        log: Stream,
        receiver: pipe::Receiver,
        of_extensions: Option<pipe::Receiver>,
        is_prompt: bool,
        filter: LineFilter,
    ) -> Output {
        let state = State {
            lines: Default::default(),
            tail: VecDeque::new(),
            second: Instant::now(),
            read: 0,
            shown: 0,
            dropped: 0,
        };
        Output { label, log, receiver, of_extensions, is_prompt, filter, state: Mutex::new(state) }
    }

    /// Reads until no process can write any more.
    pub async fn follow(&self) {
        tokio::join!(self.follow_one(Printer::Function), self.follow_one(Printer::Extension));
    }

    fn receiver(&self, printer: Printer) -> Option<&pipe::Receiver> {
        match printer {
            Printer::Function => Some(&self.receiver),
            Printer::Extension => self.of_extensions.as_ref(),
        }
    }

    async fn follow_one(&self, printer: Printer) {
        let Some(receiver) = self.receiver(printer) else { return };
        while receiver.readable().await.is_ok() {
            let read = lock(&self.state).read;
            if self.read_at_most(printer, READ_BYTES_A_SECOND.saturating_sub(read)) == Read::Closed {
                return;
            }
            let pause = {
                let mut state = lock(&self.state);
                let left = Duration::from_secs(1).checked_sub(state.second.elapsed());
                if left.is_none() {
                    state.next_second(&self.label);
                }
                left.filter(|_| state.read >= READ_BYTES_A_SECOND)
            };
            if let Some(pause) = pause {
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// Reads the output so far. If a call `ends`, what was printed after the last line break is a line, too:
    /// the next one is another call's, or Lambda's.
    pub fn catch_up(&self, ends: bool) {
        self.catch_up_by(READ_BYTES_BEFORE_ANSWER, ends);
    }

    fn catch_up_by(&self, most: usize, ends: bool) {
        self.read_at_most(Printer::Extension, most);
        let read = self.read_at_most(Printer::Function, most);
        // Not in a VM, where output arrives in pieces, later than answers.
        if ends && read != Read::More && self.is_prompt {
            self.end_begun(Printer::Function);
        }
    }

    /// Reads the last output, after which there is no more.
    pub fn finish(&self) {
        for printer in [Printer::Function, Printer::Extension] {
            self.read_at_most(printer, READ_BYTES_BEFORE_ANSWER);
            self.end_begun(printer);
        }
    }

    /// Ends the line that has begun, if one has.
    fn end_begun(&self, printer: Printer) {
        let mut state = lock(&self.state);
        if !state.lines[printer as usize].is_empty() {
            state.keep(b"\n");
            self.end_line(&mut state, printer);
        }
    }

    /// Begins a new tail.
    pub fn begin(&self) {
        lock(&self.state).tail.clear();
    }

    /// Adds a line of the worker's own.
    pub fn say(&self, line: &str) {
        let mut state = lock(&self.state);
        state.keep(line.as_bytes());
        state.keep(b"\n");
        self.show(line.as_bytes());
    }

    /// The end of the output since [`Output::begin`].
    pub fn tail(&self) -> Vec<u8> {
        lock(&self.state).tail.iter().copied().collect()
    }

    /// Of the end of the output, the lines that name this invocation: where several requests run at once, no
    /// caller receives what another's has printed.
    pub fn tail_of(&self, id: InvocationId) -> Vec<u8> {
        let (tail, id) = (self.tail(), id.to_string());
        let lines = tail.split_inclusive(|byte| *byte == b'\n');
        lines.filter(|line| String::from_utf8_lossy(line).contains(&id)).flatten().copied().collect()
    }

    /// Reads at most so many bytes.
    fn read_at_most(&self, printer: Printer, most: usize) -> Read {
        let Some(receiver) = self.receiver(printer) else { return Read::Closed };
        let mut state = lock(&self.state);
        let mut buffer = [0; 16 * 1024];
        let mut read = 0;
        while read < most {
            match receiver.try_read(&mut buffer) {
                Ok(0) => return Read::Closed,
                Ok(length) => {
                    read += length;
                    self.take(&mut state, printer, &buffer[..length]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Read::All,
                Err(_) => return Read::Closed,
            }
        }
        Read::More
    }

    fn take(&self, state: &mut State, printer: Printer, bytes: &[u8]) {
        state.keep(bytes);
        state.read += bytes.len();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let line = &mut state.lines[printer as usize];
            line.extend(part);
            if part.ends_with(b"\n") || line.len() >= LINE_BYTES {
                self.end_line(state, printer);
            }
        }
    }

    fn end_line(&self, state: &mut State, printer: Printer) {
        let line = std::mem::take(&mut state.lines[printer as usize]);
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let is_wanted = (self.filter)(printer, &String::from_utf8_lossy(text));
        if is_wanted && state.shown < SHOWN_BYTES_A_SECOND {
            state.shown += line.len();
            self.show(text);
        } else if is_wanted {
            state.dropped += line.len();
        }
    }

    fn show(&self, line: &[u8]) {
        // Control characters are not passed to a terminal.
        let text = String::from_utf8_lossy(line);
        let plain: String = text.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect();
        self.log.keep(&text);
        tracing::info!(target: "function", "{} {plain}", self.label);
    }
}

impl State {
    fn keep(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(LOG_TAIL_BYTES)..];
        let excess = (self.tail.len() + bytes.len()).saturating_sub(LOG_TAIL_BYTES);
        self.tail.drain(..excess);
        self.tail.extend(bytes);
    }

    fn next_second(&mut self, label: &str) {
        if self.dropped > 0 {
            tracing::warn!(target: "function", "{label} prints too much: {} bytes are not shown", self.dropped);
        }
        (self.second, self.read, self.shown, self.dropped) = (Instant::now(), 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::OwnedFd;

    fn pipe_pair() -> (pipe::Receiver, std::io::PipeWriter) {
        let (reader, writer) = std::io::pipe().unwrap();
        (pipe::Receiver::from_owned_fd(OwnedFd::from(reader)).unwrap(), writer)
    }

    fn output() -> (Output, std::io::PipeWriter) {
        let (receiver, writer) = pipe_pair();
        let log = std::sync::Arc::new(crate::invocation::logs::Logs::default()).stream("f", "s");
        (Output::new("f".into(), log, receiver, None, false, Box::new(|_, _| true)), writer)
    }

    #[tokio::test]
    async fn unended_lines_end_with_the_invocation() {
        let logs = std::sync::Arc::new(crate::invocation::logs::Logs::default());
        let lines = || -> Vec<String> {
            let texts = |group: &crate::invocation::logs::Group| {
                group.lines.iter().map(|line| line.text.clone()).collect()
            };
            logs.group("f", texts).unwrap_or_default()
        };
        let ((receiver, mut writer), (of_extensions, mut extension)) = (pipe_pair(), pipe_pair());
        let log = logs.stream("f", "s");
        let output = Output::new("f".into(), log, receiver, Some(of_extensions), true, Box::new(|_, _| true));
        extension.write_all(b"of an extension, ").unwrap();
        writer.write_all(b"one\ntwo").unwrap();
        output.receiver.readable().await.unwrap();
        output.of_extensions.as_ref().unwrap().readable().await.unwrap();
        output.catch_up(true);
        output.say("REPORT");
        assert_eq!(lines(), ["one", "two", "REPORT"], "an extension's line goes on");
        assert!(output.tail().ends_with(b"one\ntwo\nREPORT\n"));
        // As much as is read at once ends in the middle of a line, which is not broken there.
        writer.write_all(("x".repeat(20_000) + "\n").as_bytes()).unwrap();
        output.receiver.readable().await.unwrap();
        output.catch_up_by(1, true);
        assert_eq!(lines().len(), 3);
        output.catch_up(true);
        writer.write_all(b"last").unwrap();
        drop(writer);
        extension.write_all(b"the end").unwrap();
        drop(extension);
        output.receiver.readable().await.unwrap();
        output.of_extensions.as_ref().unwrap().readable().await.unwrap();
        output.finish();
        let lines = lines();
        assert_eq!((lines.len(), lines[3].len()), (6, 20_000));
        assert_eq!(lines[4..], ["last", "of an extension, the end"]);
    }

    #[tokio::test]
    async fn the_tail_is_the_end_of_this_invocation() {
        let (output, mut writer) = output();
        writer.write_all(b"before\n").unwrap();
        output.receiver.readable().await.unwrap();
        output.catch_up(true);
        output.begin();
        writer.write_all("x".repeat(5000).as_bytes()).unwrap();
        writer.write_all(b"end").unwrap();
        output.receiver.readable().await.unwrap();
        output.catch_up(true);
        output.say("REPORT");
        let tail = output.tail();
        assert_eq!(tail.len(), LOG_TAIL_BYTES);
        assert!(tail.ends_with(b"xxendREPORT\n"), "{}", String::from_utf8_lossy(&tail));
        drop(writer);
        tokio::time::timeout(Duration::from_secs(5), output.follow())
            .await
            .expect("it ends with its writers");
    }

    #[tokio::test]
    async fn endless_output_is_read_at_a_bounded_rate() {
        let (output, mut writer) = output();
        let began = Instant::now();
        let printing = std::thread::spawn(move || {
            let mut written = 0_usize;
            while writer.write_all(&[b'y'; 4096]).is_ok() {
                written += 4096;
            }
            written
        });
        assert!(tokio::time::timeout(Duration::from_millis(500), output.follow()).await.is_err());
        drop(output);
        let written = printing.join().unwrap();
        // A busy machine may let seconds pass: each allows as much again, and a reader without a bound far
        // more.
        let seconds = 1 + began.elapsed().as_secs() as usize;
        assert!(written < seconds * READ_BYTES_A_SECOND + (1 << 20), "{written} bytes in {seconds} s");
    }
}
