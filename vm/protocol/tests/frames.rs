//! The decoder copes with any fragmentation, any garbage, and peers that die in the middle of a frame.

use proptest::prelude::*;
use vm_protocol::*;

fn requests() -> impl Strategy<Value = Request> {
    let name = "[a-z0-9._-]{1,20}";
    let operation = prop_oneof![
        Just(Operation::List),
        Just(Operation::Shutdown),
        (any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(partition, bytes, timeout_ms)| {
            Operation::PlugConfirm { partition: Some(PartitionNumber(partition)), bytes, timeout_ms }
        }),
        (name, any::<u64>(), any::<u64>()).prop_map(|(instance, most_bytes, timeout_ms)| {
            Operation::TakeSnapshot(TakeSnapshot {
                instance,
                snapshot: "s".to_string(),
                most_bytes,
                timeout_ms,
            })
        }),
        (name, ".{0,200}").prop_map(|(instance, text)| Operation::Input { instance, text, close: true }),
        (
            name,
            prop::collection::vec("\\PC{0,80}", 1..5),
            prop::collection::btree_map("[A-Z]{1,8}", ".*", 0..5)
        )
            .prop_map(|(instance, argv, env)| {
                let cwd = Some("/tmp/\u{0}\n{".to_string());
                Operation::Spawn(Spawn {
                    instance,
                    partition: Some(PartitionNumber(1)),
                    more: vec![PartitionNumber(3), PartitionNumber(2)],
                    argv,
                    env,
                    cwd,
                    cpus: vec![0, 1],
                    vcpus_milli: Some(500),
                    waits_for_reader: false,
                    beginning: Beginning::Restored { snapshot: "s".to_string(), timeout_ms: 7 },
                    confinement: None,
                })
            }),
    ];
    (any::<u64>(), operation).prop_map(|(id, op)| Request { id, op })
}

/// Decodes `bytes` that arrive in pieces of the given lengths: requests, and the number of dropped bytes.
fn decode(bytes: &[u8], pieces: &[usize]) -> (Vec<Request>, u64) {
    let mut decoder = Decoder::new();
    let (mut requests, mut dropped) = (Vec::new(), 0);
    let (mut at, mut turn) = (0, 0);
    while at < bytes.len() {
        let end = (at + pieces[turn % pieces.len()].max(1)).min(bytes.len());
        decoder.push(&bytes[at..end]);
        (at, turn) = (end, turn + 1);
        loop {
            match decoder.next_frame() {
                Ok(Some(text)) => requests.extend(serde_json::from_slice::<Request>(&text).ok()),
                Ok(None) => break,
                Err(FrameError::OutOfStep { dropped_bytes }) => dropped += dropped_bytes,
                Err(other) => panic!("{other}"),
            }
        }
    }
    (requests, dropped)
}

proptest! {
    #[test]
    fn decodes_fragmented_frames(sent in prop::collection::vec(requests(), 1..8), pieces in prop::collection::vec(1usize..50, 1..20)) {
        let bytes: Vec<u8> = sent.iter().flat_map(|request| encode(request).unwrap()).collect();
        prop_assert_eq!(decode(&bytes, &pieces), (sent, 0));
    }

    #[test]
    fn half_a_frame_loses_only_itself(
        sent in prop::collection::vec(requests(), 2..6), lost in 2usize..300, pieces in prop::collection::vec(1usize..50, 1..20),
    ) {
        let first = encode(&sent[0]).unwrap();
        let kept = first.len().saturating_sub(lost).max(1);
        let mut bytes = first[..kept].to_vec();
        bytes.extend(sent[1..].iter().flat_map(|request| encode(request).unwrap()));
        prop_assert_eq!(decode(&bytes, &pieces), (sent[1..].to_vec(), kept as u64));
    }

    #[test]
    fn skips_garbage_between_frames(
        sent in prop::collection::vec(requests(), 1..5), garbage in prop::collection::vec(any::<u8>(), 0..2000),
        pieces in prop::collection::vec(1usize..500, 1..20),
    ) {
        // No byte that looks like a header's end, so every frame must be found.
        let garbage: Vec<u8> = garbage.into_iter().map(|byte| if byte == b'{' { b'x' } else { byte }).collect();
        let mut bytes = Vec::new();
        for request in &sent {
            bytes.extend(&garbage);
            bytes.extend(encode(request).unwrap());
        }
        let (received, dropped) = decode(&bytes, &pieces);
        prop_assert_eq!(received, sent.clone());
        prop_assert_eq!(dropped, (garbage.len() * sent.len()) as u64);
    }

    #[test]
    fn never_panics_and_recovers(garbage in prop::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(b'{'), Just(b'}')], 0..3000),
                                 last in requests(), pieces in prop::collection::vec(1usize..500, 1..20)) {
        let mut bytes = garbage;
        // Whatever length the garbage announced, its frame is over by then.
        bytes.extend(encode(&last).unwrap());
        bytes.extend(encode(&last).unwrap());
        let (received, _) = decode(&bytes, &pieces);
        prop_assert_eq!(received.last(), Some(&last));
    }
}

#[test]
fn replies_and_events_look_as_documented() {
    let reply = |outcome| FromAgent::Reply(Reply { id: 7, outcome });
    for (message, text) in [
        (reply(Outcome::Ok(Answer::Done)), r#"{"id":7,"ok":{"answer":"done"}}"#),
        (
            reply(Outcome::Error(Refusal { kind: ErrorKind::Busy, message: "used".to_string() })),
            r#"{"id":7,"error":{"kind":"busy","message":"used"}}"#,
        ),
        (
            reply(Outcome::Ok(Answer::Stopped { reason: ExitReason::Code { code: -1 } })),
            r#"{"id":7,"ok":{"answer":"stopped","reason":{"kind":"code","code":-1}}}"#,
        ),
        (
            FromAgent::Event(Event::Released { partition: PartitionNumber(3) }),
            r#"{"event":"released","partition":3}"#,
        ),
        (
            FromAgent::Event(Event::Exited {
                instance: "a".to_string(),
                partition: Some(PartitionNumber(3)),
                reason: ExitReason::Overflow,
                held: Some("2 pages".to_string()),
            }),
            r#"{"event":"exited","instance":"a","partition":3,"reason":{"kind":"overflow"},"held":"2 pages"}"#,
        ),
    ] {
        assert_eq!(serde_json::to_string(&message).unwrap(), text);
        assert_eq!(serde_json::from_str::<FromAgent>(text).unwrap(), message);
    }
    let request = Request { id: 1, op: Operation::PrepareUnplug { partition: PartitionNumber(2) } };
    assert_eq!(serde_json::to_string(&request).unwrap(), r#"{"id":1,"op":"prepare_unplug","partition":2}"#);
}

#[test]
fn too_long_message_is_not_encoded() {
    let op = Operation::Input { instance: "a".into(), text: "x".repeat(MAX_FRAME_BYTES), close: false };
    assert!(matches!(encode(&Request { id: 1, op }), Err(FrameError::TooLong { .. })));
    assert_eq!(encode(&7), Err(FrameError::NotAnObject));
}

#[test]
fn longest_frame_decodes_and_longer_one_is_dropped() {
    let text = |length: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(length - 8)).into_bytes();
    let frame = |length: usize| [&(length as u32).to_le_bytes()[..], &text(length)].concat();
    let mut decoder = Decoder::new();
    decoder.push(&frame(MAX_FRAME_BYTES));
    assert_eq!(decoder.next_frame().unwrap().unwrap().len(), MAX_FRAME_BYTES);
    decoder.push(&frame(MAX_FRAME_BYTES + 1));
    decoder.push(&frame(8));
    assert!(
        matches!(decoder.next_frame(), Err(FrameError::OutOfStep { dropped_bytes }) if dropped_bytes == MAX_FRAME_BYTES as u64 + 5)
    );
    assert_eq!(decoder.next_frame(), Ok(Some(text(8))));
    assert_eq!(decoder.next_frame(), Ok(None));
}
