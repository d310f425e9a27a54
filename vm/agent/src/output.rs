//! An instance's output to stdout and stderr, by byte position. At most 256 KiB are kept. Beyond that the
//! oldest are discarded, or the instance waits until its reader has them, as it would with a pipe.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::{Condvar, Mutex};

/// How much of an instance's output is kept.
pub const KEPT_BYTES: usize = 256 << 10;

/// One thread fills it, others read it.
#[derive(Debug, Default)]
pub struct Output {
    kept: Mutex<Kept>,
    /// Signalled when there is room, or none is needed any more.
    has_room: Condvar,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: VecDeque<u8>,
    /// The position of the first kept byte.
    from: u64,
    /// Whether the instance waits while this is full.
    waits: bool,
    /// Whether nothing is discarded before it is read.
    spares: bool,
    ended: bool,
}

/// Output from a position on.
#[derive(Debug, PartialEq, Eq)]
pub struct Excerpt {
    pub bytes: Vec<u8>,
    pub from: u64,
    pub next: u64,
    pub ended: bool,
}

impl Output {
    /// Output that waits for its reader, or discards the oldest.
    pub fn new(waits: bool) -> Output {
        let kept = Mutex::new(Kept { waits, spares: waits, ..Kept::default() });
        Output { kept, has_room: Condvar::new() }
    }

    /// Reads from a pipe until its other end is closed.
    pub fn fill(&self, mut pipe: impl Read) {
        let mut buffer = [0; 8192];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            self.push(&buffer[..count]);
        }
        self.kept.lock().expect("not poisoned").ended = true;
    }

    fn push(&self, bytes: &[u8]) {
        let kept = self.kept.lock().expect("not poisoned");
        let is_full = |kept: &mut Kept| kept.waits && kept.bytes.len() >= KEPT_BYTES;
        let mut kept = self.has_room.wait_while(kept, is_full).expect("not poisoned");
        kept.bytes.extend(bytes);
        if !kept.spares {
            let surplus = kept.bytes.len().saturating_sub(KEPT_BYTES);
            kept.bytes.drain(..surplus);
            kept.from += surplus as u64;
        }
    }

    /// All processes of the instance have ended: takes what is left in its pipe without waiting, because the
    /// pipe's pages may be in the instance's partition.
    pub fn stop_waiting(&self) {
        self.kept.lock().expect("not poisoned").waits = false;
        self.has_room.notify_all();
    }

    /// What is kept from `from` on, at most [`KEPT_BYTES`]. If the instance waits for its reader, what is
    /// before `from` has been read, and is discarded.
    pub fn read(&self, from: u64) -> Excerpt {
        let mut kept = self.kept.lock().expect("not poisoned");
        let end = kept.from + kept.bytes.len() as u64;
        let from = from.clamp(kept.from, end);
        if kept.spares {
            let read = (from - kept.from) as usize;
            kept.bytes.drain(..read);
            kept.from = from;
            self.has_room.notify_all();
        }
        let skipped = (from - kept.from) as usize;
        let bytes: Vec<u8> = kept.bytes.iter().skip(skipped).take(KEPT_BYTES).copied().collect();
        let next = from + bytes.len() as u64;
        Excerpt { bytes, from, next, ended: kept.ended && next == end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::Arc;

    #[test]
    fn keeps_the_last_bytes_and_their_position() {
        let output = Output::default();
        output.push(b"hello ");
        assert_eq!(output.read(2), Excerpt { bytes: b"llo ".into(), from: 2, next: 6, ended: false });
        output.push(&vec![b'x'; KEPT_BYTES]);
        let all = output.read(0);
        assert_eq!((all.from, all.next, all.bytes.len()), (6, 6 + KEPT_BYTES as u64, KEPT_BYTES));
        assert!(output.read(u64::MAX).bytes.is_empty());
        output.fill(&b"end"[..]);
        let last = output.read(all.next);
        assert_eq!((&last.bytes[..], last.ended), (&b"end"[..], true));
    }

    /// A thread that fills from a pipe, and the pipe's other end.
    fn filled(output: &Arc<Output>) -> (std::thread::JoinHandle<()>, std::io::PipeWriter) {
        let (reader, writer) = std::io::pipe().unwrap();
        let output = Arc::clone(output);
        (std::thread::spawn(move || output.fill(reader)), writer)
    }

    #[test]
    fn output_that_waits_for_its_reader_arrives_whole() {
        let output = Arc::new(Output::new(true));
        let (filling, mut writer) = filled(&output);
        let sent: Vec<u8> = (0..5 * KEPT_BYTES).map(|at| (at % 251) as u8).collect();
        let expected = sent.clone();
        let writing = std::thread::spawn(move || writer.write_all(&sent).unwrap());
        let mut received = Vec::new();
        loop {
            let excerpt = output.read(received.len() as u64);
            assert_eq!(excerpt.from, received.len() as u64, "nothing is discarded");
            received.extend(excerpt.bytes);
            if excerpt.ended {
                break;
            }
            std::thread::yield_now();
        }
        writing.join().unwrap();
        filling.join().unwrap();
        assert!(received == expected, "{} of {} bytes", received.len(), expected.len());
    }

    #[test]
    fn ended_instance_leaves_nothing_in_its_pipe_and_its_output_stays_whole() {
        let output = Arc::new(Output::new(true));
        let (filling, mut writer) = filled(&output);
        // More than is kept, and all of it in flight: the pipe has 64 KiB.
        let bytes = vec![7; KEPT_BYTES + (48 << 10)];
        writer.write_all(&bytes).unwrap();
        drop(writer);
        output.stop_waiting();
        filling.join().unwrap();
        let first = output.read(0);
        assert_eq!((first.bytes.len(), first.ended), (KEPT_BYTES, false));
        let last = output.read(first.next);
        assert_eq!((last.bytes.len(), last.ended), (48 << 10, true));
    }
}
