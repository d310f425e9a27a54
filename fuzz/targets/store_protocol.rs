//! Datagrams between clients and the page store: what is decoded is encoded to the same bytes, so that no
//! byte is ignored; and requests for the store's metrics.

#![no_main]

use libfuzzer_sys::fuzz_target;
use merge::base::protocol::{Answer, MAX_BYTES, Request};
use merge::daemon::{Endpoint, answer_to};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = Request::decode(bytes) {
        let again = request.encode();
        assert_eq!(again, bytes);
        assert!(again.len() <= MAX_BYTES);
    }
    if let Ok(answer) = Answer::decode(bytes) {
        assert_eq!(answer.encode(), bytes);
    }
    let answer = answer_to(bytes);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = text.parse::<Endpoint>();
    }
});
