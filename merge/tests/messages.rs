//! Nearly valid messages: valid ones with bits flipped, words exchanged, ends cut off or added. Each is
//! decoded as its bytes stand, or refused; no byte is decoded twice, and no decoded message is larger than
//! its bytes.

use merge::base::page::{PageHash, SECRET_BYTES};
use merge::base::protocol::{Answer, MAX_BYTES, Refusal, Report, Request};
use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Clone, Debug)]
enum Change {
    Turn(Index, u8),
    Word(Index, u32),
    Cut(Index),
    Add(Vec<u8>),
    Twice,
    Drop(Index),
}

fn change() -> impl Strategy<Value = Change> {
    let edges =
        prop_oneof![Just(0u32), Just(1), Just(u32::MAX), Just(1 << 31), Just(4096), Just(4097), any::<u32>()];
    prop_oneof![
        (any::<Index>(), 0u8..8).prop_map(|(at, bit)| Change::Turn(at, bit)),
        (any::<Index>(), edges).prop_map(|(at, word)| Change::Word(at, word)),
        any::<Index>().prop_map(Change::Cut),
        proptest::collection::vec(any::<u8>(), 1..40).prop_map(Change::Add),
        Just(Change::Twice),
        any::<Index>().prop_map(Change::Drop),
    ]
}

fn changed(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        match change {
            Change::Turn(at, bit) if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            Change::Word(at, word) if bytes.len() >= 4 => {
                let at = at.index(bytes.len() / 4) * 4;
                bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
            Change::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
            Change::Add(more) => bytes.extend(more),
            Change::Twice => bytes.extend_from_within(..),
            Change::Drop(at) if !bytes.is_empty() => drop(bytes.remove(at.index(bytes.len()))),
            _ => {}
        }
    }
    bytes
}

fn requests() -> impl Strategy<Value = Request> {
    let hash = (any::<u64>(), any::<u64>()).prop_map(|(place, tag)| PageHash { place, tag });
    prop_oneof![
        any::<u32>().prop_map(|version| Request::Hello { version }),
        Just(Request::Index),
        any::<u32>().prop_map(|pages| Request::Offer { pages }),
        any::<u32>().prop_map(|segment| Request::Attach { segment }),
        proptest::collection::vec(hash, 0..1025).prop_map(|pages| Request::Private { pages }),
        Just(Request::Status),
        proptest::collection::vec((any::<u64>(), any::<u64>()), 0..1025).prop_map(|pages| Request::Claim {
            pages: pages.into_iter().map(|(place, tag)| PageHash { place, tag }).collect()
        }),
        any::<[u64; 3]>().prop_map(|[looked_up_pages, found_pages, mappings]| {
            Request::Report(Report { looked_up_pages, found_pages, mappings })
        }),
        any::<u32>().prop_map(|skip| Request::Programs { skip }),
    ]
}

fn answers() -> impl Strategy<Value = Answer> {
    let refusal = prop_oneof![
        Just(Refusal::Full),
        Just(Refusal::NoSegment),
        Just(Refusal::Wrong),
        Just(Refusal::Version),
        Just(Refusal::Exhausted)
    ];
    prop_oneof![
        any::<u64>().prop_map(|identity| Answer::Welcome { identity, secret: Box::new([9; SECRET_BYTES]) }),
        Just(Answer::Index),
        any::<[u32; 3]>().prop_map(|[new_pages, segment, segment_pages]| Answer::Accepted {
            new_pages,
            segment,
            segment_pages
        }),
        any::<u32>().prop_map(|segment_pages| Answer::Attached { segment_pages }),
        Just(Answer::Noted),
        proptest::collection::vec(any::<u8>(), 0..200).prop_map(|yours| Answer::Claimed { yours }),
        "\\PC{0,200}".prop_map(|json| Answer::Status { json }),
        (refusal, "\\PC{0,200}").prop_map(|(reason, line)| Answer::Refused { reason, line }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn requests_are_read_or_refused(request in requests(), changes in proptest::collection::vec(change(), 0..6)) {
        let bytes = changed(request.encode(), &changes);
        match Request::decode(&bytes) {
            Ok(read) => {
                prop_assert_eq!(read.encode(), bytes.clone());
                prop_assert!(bytes.len() <= MAX_BYTES);
                prop_assert!(!changes.is_empty() || read == request);
            }
            Err(_) => prop_assert!(!changes.is_empty()),
        }
    }

    #[test]
    fn answers_are_read_or_refused(answer in answers(), changes in proptest::collection::vec(change(), 0..6)) {
        let bytes = changed(answer.encode(), &changes);
        match Answer::decode(&bytes) {
            Ok(read) => {
                prop_assert_eq!(read.encode(), bytes);
                prop_assert!(!changes.is_empty() || read == answer);
            }
            Err(_) => prop_assert!(!changes.is_empty()),
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(request) = Request::decode(&bytes) {
            prop_assert_eq!(request.encode(), bytes.clone());
        }
        if let Ok(answer) = Answer::decode(&bytes) {
            prop_assert_eq!(answer.encode(), bytes);
        }
    }
}
