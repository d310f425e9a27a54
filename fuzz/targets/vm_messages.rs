//! Messages between host and guest agent, the relay's headers and windows. What is decoded and encoded again
//! is the same; an end that sends or grants too much is found out.

#![no_main]

use std::collections::VecDeque;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use vm_protocol::relay::{Header, MOST_BYTES};
use vm_protocol::window::{WINDOW_BYTES, Window};
use vm_protocol::{FromAgent, Request};

#[derive(Debug, Arbitrary)]
enum Input {
    Json(Vec<u8>),
    Header([u8; 8]),
    Steps(Vec<Step>),
}

#[derive(Debug, Arbitrary)]
enum Step {
    Arrive(u16),
    Take,
    Send(u16),
    Grant(u32),
}

fn same<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(text: &[u8]) {
    let Ok(message) = serde_json::from_slice::<T>(text) else { return };
    let again = serde_json::to_vec(&message).expect("it is JSON");
    assert_eq!(serde_json::from_slice::<T>(&again).expect("it was just written"), message);
}

/// A window beside numbers that say what it may do.
fn steps(steps: &[Step]) {
    let mut window = Window::default();
    let (mut may_arrive, mut queued, mut taken, mut credit) =
        (WINDOW_BYTES, VecDeque::new(), 0, WINDOW_BYTES);
    for step in steps {
        match step {
            Step::Arrive(bytes) => {
                let bytes = usize::from(*bytes);
                let fits = bytes <= may_arrive;
                assert_eq!(window.arrive(vec![7; bytes]).is_ok(), fits);
                if fits {
                    may_arrive -= bytes;
                    queued.push_back(bytes);
                }
            }
            Step::Take => {
                let all: usize = queued.iter().sum();
                let Some(part) = window.pop() else {
                    assert_eq!(all, 0);
                    continue;
                };
                assert!(part.len() <= MOST_BYTES && part.len() <= all);
                queued = VecDeque::from([all - part.len()]);
                taken += part.len();
                if let Some(grant) = window.taken(part.len()) {
                    assert_eq!(u32::from_le_bytes(grant) as usize, taken);
                    may_arrive += std::mem::take(&mut taken);
                }
                assert!(taken < WINDOW_BYTES / 2);
            }
            Step::Send(bytes) => {
                assert_eq!(window.room(), credit.min(MOST_BYTES));
                let bytes = usize::from(*bytes).min(window.room());
                window.sent(bytes);
                credit -= bytes;
            }
            Step::Grant(bytes) => {
                let fits = credit + *bytes as usize <= WINDOW_BYTES;
                assert_eq!(window.granted(&bytes.to_le_bytes()).is_ok(), fits);
                credit += if fits { *bytes as usize } else { 0 };
            }
        }
    }
}

fuzz_target!(|input: Input| match input {
    Input::Json(text) => {
        same::<Request>(&text);
        same::<FromAgent>(&text);
    }
    Input::Header(bytes) => {
        if let Some(header) = Header::decode(bytes) {
            assert!(header.bytes <= MOST_BYTES);
            assert_eq!(header.encode(), bytes);
        }
    }
    Input::Steps(all) => steps(&all),
});
