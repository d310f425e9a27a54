//! An instance's output to stdout and stderr: the last 256 KiB, by byte position.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::Mutex;

/// How much of an instance's output is kept.
pub const KEPT_BYTES: usize = 256 << 10;

/// One thread fills it, others read it.
#[derive(Debug, Default)]
pub struct Output {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: VecDeque<u8>,
    /// The position of the first kept byte.
    from: u64,
    ended: bool,
}

/// Output from a position on.
#[derive(Debug, PartialEq, Eq)]
pub struct Excerpt {
    pub text: String,
    pub from: u64,
    pub next: u64,
    pub ended: bool,
}

impl Output {
    /// Reads from a pipe until its other end is closed.
    pub fn fill(&self, mut pipe: impl Read) {
        let mut buffer = [0; 8192];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            self.push(&buffer[..count]);
        }
        self.kept.lock().expect("not poisoned").ended = true;
    }

    fn push(&self, bytes: &[u8]) {
        let mut kept = self.kept.lock().expect("not poisoned");
        kept.bytes.extend(bytes);
        let surplus = kept.bytes.len().saturating_sub(KEPT_BYTES);
        kept.bytes.drain(..surplus);
        kept.from += surplus as u64;
    }

    /// All that is kept from `from` on.
    pub fn read(&self, from: u64) -> Excerpt {
        let kept = self.kept.lock().expect("not poisoned");
        let next = kept.from + kept.bytes.len() as u64;
        let from = from.clamp(kept.from, next);
        let bytes: Vec<u8> = kept.bytes.iter().skip((from - kept.from) as usize).copied().collect();
        Excerpt { text: String::from_utf8_lossy(&bytes).into_owned(), from, next, ended: kept.ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_bytes_and_their_position() {
        let output = Output::default();
        output.push(b"hello ");
        assert_eq!(output.read(2), Excerpt { text: "llo ".into(), from: 2, next: 6, ended: false });
        output.push(&vec![b'x'; KEPT_BYTES]);
        let all = output.read(0);
        assert_eq!((all.from, all.next, all.text.len()), (6, 6 + KEPT_BYTES as u64, KEPT_BYTES));
        assert_eq!(output.read(u64::MAX).text, "");
        output.fill(&b"end"[..]);
        let last = output.read(all.next);
        assert_eq!((last.text.as_str(), last.ended), ("end", true));
    }
}
