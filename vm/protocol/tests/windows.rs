//! Stream windows: in any order of steps all bytes arrive in order, no end queues more than a window, and
//! none waits for ever; and a peer that ignores its window is detected.

use std::collections::VecDeque;

use proptest::prelude::*;
use vm_protocol::relay::MOST_BYTES;
use vm_protocol::window::{Overrun, WINDOW_BYTES, Window};

/// How much each end sends in a case.
const WHOLE_BYTES: usize = 4 * WINDOW_BYTES + 12_345;

#[derive(Debug, Clone)]
enum Step {
    /// An end sends this much, if its window allows.
    Send(usize, usize),
    /// The first frame on the way to an end arrives there.
    Arrive(usize),
    /// An end's reader takes the next part, and has finished the one before.
    Read(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let end = 0..2_usize;
    let bytes = prop_oneof![1..100_usize, 1..=MOST_BYTES];
    let step = prop_oneof![
        3 => (end.clone(), bytes).prop_map(|(end, bytes)| Step::Send(end, bytes)),
        3 => end.clone().prop_map(Step::Arrive),
        2 => end.prop_map(Step::Read),
    ];
    prop::collection::vec(step, 0..400)
}

enum Frame {
    Data(Vec<u8>),
    Grant([u8; 4]),
}

/// One end with its reader and writer, and the frames on the way to it.
#[derive(Default)]
struct End {
    window: Window,
    line: VecDeque<Frame>,
    sent: usize,
    arrived: usize,
    /// Of these, the bytes that the reader has finished.
    read: usize,
    reading: usize,
    /// Whether the reader has found the expected bytes.
    intact: bool,
}

fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

struct Both([End; 2]);

impl Both {
    fn new() -> Both {
        Both([0, 1].map(|_| End { intact: true, ..End::default() }))
    }

    /// Whether something happened.
    fn step(&mut self, step: &Step) -> bool {
        match *step {
            Step::Send(end, wanted) => {
                let from = &mut self.0[end];
                let bytes = wanted.min(from.window.room()).min(WHOLE_BYTES - from.sent);
                let data = (from.sent..from.sent + bytes).map(byte).collect();
                from.window.sent(bytes);
                from.sent += bytes;
                if bytes > 0 {
                    self.0[1 - end].line.push_back(Frame::Data(data));
                }
                bytes > 0
            }
            Step::Arrive(end) => {
                let to = &mut self.0[end];
                match to.line.pop_front() {
                    None => return false,
                    Some(Frame::Data(data)) => {
                        to.arrived += data.len();
                        to.window.arrive(data).expect("the sender keeps to its window");
                    }
                    Some(Frame::Grant(grant)) => to.window.granted(&grant).expect("no more than was sent"),
                }
                assert!(to.arrived - to.read <= WINDOW_BYTES, "{} bytes are kept", to.arrived - to.read);
                true
            }
            Step::Read(end) => {
                let to = &mut self.0[end];
                let done = std::mem::take(&mut to.reading);
                let grant = to.window.taken(done);
                to.read += done;
                let part = to.window.pop().unwrap_or_default();
                to.intact &= part.iter().enumerate().all(|(at, found)| *found == byte(to.read + at));
                to.reading = part.len();
                let happened = done > 0 || !part.is_empty();
                self.0[1 - end].line.extend(grant.map(Frame::Grant));
                happened
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn bytes_arrive_whole_and_in_order_within_the_window(steps in steps()) {
        let mut both = Both::new();
        for step in &steps {
            both.step(step);
        }
        // From any state: as long as readers read, everything arrives.
        let mut rest = true;
        while rest {
            rest = false;
            for end in [0, 1] {
                for step in [Step::Send(end, MOST_BYTES), Step::Arrive(end), Step::Read(end)] {
                    rest |= both.step(&step);
                }
            }
        }
        for end in &both.0 {
            prop_assert_eq!((end.sent, end.read, end.intact), (WHOLE_BYTES, WHOLE_BYTES, true));
        }
    }

    #[test]
    fn sending_more_than_granted_is_detected(sizes in prop::collection::vec(1..=MOST_BYTES, 1..200)) {
        let mut window = Window::default();
        let (mut kept, mut parts) = (0, 0);
        for bytes in sizes {
            let outcome = window.arrive(vec![0; bytes]);
            prop_assert_eq!(outcome.is_ok(), kept + bytes <= WINDOW_BYTES);
            kept += if outcome.is_ok() { bytes } else { break };
        }
        let mut found = 0;
        while let Some(part) = window.pop() {
            (found, parts) = (found + part.len(), parts + 1);
        }
        prop_assert_eq!(found, kept);
        prop_assert!(parts <= 2 * WINDOW_BYTES / MOST_BYTES);
    }
}

#[test]
fn granting_more_than_was_sent_is_detected() {
    let mut window = Window::default();
    assert_eq!(window.granted(&1_u32.to_le_bytes()), Err(Overrun));
    window.sent(window.room());
    assert_eq!(window.granted(&(MOST_BYTES as u32 + 1).to_le_bytes()), Err(Overrun));
    assert_eq!(window.granted(&u32::MAX.to_le_bytes()), Err(Overrun));
    assert_eq!(window.granted(&[1, 0, 0]), Err(Overrun), "not four bytes");
    assert_eq!(window.granted(&(MOST_BYTES as u32).to_le_bytes()), Ok(()));
}

#[test]
fn window_of_single_bytes_takes_at_most_two_windows_of_memory() {
    let mut window = Window::default();
    for at in 0..WINDOW_BYTES {
        window.arrive(vec![byte(at)]).unwrap();
    }
    assert_eq!(window.arrive(vec![0]), Err(Overrun));
    let parts: Vec<_> = std::iter::from_fn(|| window.pop()).collect();
    assert!(parts.len() <= 2 * WINDOW_BYTES / MOST_BYTES, "{} parts", parts.len());
    assert!(parts.iter().map(Vec::capacity).sum::<usize>() <= 2 * WINDOW_BYTES);
    assert!(parts.concat().into_iter().eq((0..WINDOW_BYTES).map(byte)));
}
