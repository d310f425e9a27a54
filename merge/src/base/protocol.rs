//! Messages between clients and the store: one datagram each, little-endian, at most [`MAX_BYTES`]. A client
//! sends a request, the store answers, in order. Files are sent along with the bytes.
//!
//! | request | carries | the answer carries |
//! |---|---|---|
//! | hello | version | the store's identity and secret; the index |
//! | index | | the index as it is now |
//! | claim | hashes of pages that the client is about to offer | which of them no other client has claimed |
//! | offer | number of pages; a sealed segment | how many were new, where they are; the segment read-only |
//! | attach | a segment's number | its pages; the segment read-only |
//! | private | hashes of pages that the client keeps | |
//! | status | | the store's metrics as JSON |
//! | report | what the client's calls have done | |
//! | programs | how many to leave out | a piece of the list of programs as JSON |

use crate::base::page::{PageHash, SECRET_BYTES};

/// The version of the protocol.
pub const VERSION: u32 = 4;
/// The longest message.
pub const MAX_BYTES: usize = 32 * 1024;
/// Hashes in one message.
pub const MAX_HASHES: usize = 1024;

/// What the calls of a program have done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Pages that were looked for in the store.
    pub looked_up_pages: u64,
    /// Pages that were found there: another client had uploaded them.
    pub found_pages: u64,
    /// Mappings of the store's segments that the program has now.
    pub mappings: u64,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first message.
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// Asks for the store's present index, once the client's is superseded.
    Index,
    /// Offers a segment, which is the message's file.
    Offer {
        /// Its pages.
        pages: u32,
    },
    /// Asks for a segment that the index names.
    Attach {
        /// Its number.
        segment: u32,
    },
    /// Reports pages that stay in the client's memory, so that the next client that has them uploads them.
    Private {
        /// Their hashes.
        pages: Vec<PageHash>,
    },
    /// Asks for metrics.
    Status,
    /// Asks which of these the client is to upload: other clients may be about to.
    Claim {
        /// Their hashes.
        pages: Vec<PageHash>,
    },
    /// Reports what the client's calls have done, for `mayfly share top`.
    Report(Report),
    /// Asks for the list of programs, which may be longer than a message.
    Programs {
        /// How many programs to skip.
        skip: u32,
    },
}

/// The store's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To hello; the index is the message's file.
    Welcome {
        /// Differs between stores, and after a restart that lost the segments.
        identity: u64,
        /// The store's secret.
        secret: Box<[u8; SECRET_BYTES]>,
    },
    /// To index; the index is the message's file.
    Index,
    /// To offer; if any page was new, the segment is the message's file. It may hold other pages, too.
    Accepted {
        /// Pages whose contents the store did not have.
        new_pages: u32,
        /// The segment that holds them.
        segment: u32,
        /// Pages that this segment can hold.
        segment_pages: u32,
    },
    /// To attach; the segment is the message's file.
    Attached {
        /// Pages that this segment can hold.
        segment_pages: u32,
    },
    /// To private and report.
    Noted,
    /// To claim.
    Claimed {
        /// A bit for each page, the lowest of the first byte first: whether the client is to upload it.
        yours: Vec<u8>,
    },
    /// To status and programs.
    Status {
        /// One JSON object.
        json: String,
    },
    /// The store refuses the request.
    Refused {
        /// Why.
        reason: Refusal,
        /// One line of explanation.
        line: String,
    },
}

/// Why the store refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// The store holds as many pages as its limit allows.
    Full = 1,
    /// The store has no such segment any more.
    NoSegment = 2,
    /// The request is invalid.
    Wrong = 3,
    /// The client uses another version of the protocol.
    Version = 4,
    /// The store may open no more files, or serve no more connections. It may close the connection.
    Exhausted = 5,
}

/// Not a message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn hashes(&mut self) -> Result<Vec<PageHash>, Malformed> {
        let count = self.0.len() / size_of::<PageHash>();
        if count > MAX_HASHES {
            return Err(Malformed);
        }
        (0..count).map(|_| Ok(PageHash { place: self.u64()?, tag: self.u64()? })).collect()
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let text = std::str::from_utf8(std::mem::take(&mut self.0)).map_err(|_| Malformed)?;
        Ok(text.to_owned())
    }

    fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

impl Request {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut words = |words: &[u32]| words.iter().for_each(|word| out.extend(word.to_le_bytes()));
        match self {
            Request::Hello { version } => words(&[1, *version]),
            Request::Index => words(&[2]),
            Request::Offer { pages } => words(&[3, *pages]),
            Request::Attach { segment } => words(&[4, *segment]),
            Request::Private { pages } | Request::Claim { pages } => {
                words(&[if matches!(self, Request::Private { .. }) { 5 } else { 7 }]);
                for page in pages {
                    out.extend(page.place.to_le_bytes());
                    out.extend(page.tag.to_le_bytes());
                }
            }
            Request::Status => words(&[6]),
            Request::Report(report) => {
                words(&[8]);
                for number in [report.looked_up_pages, report.found_pages, report.mappings] {
                    out.extend(number.to_le_bytes());
                }
            }
            Request::Programs { skip } => words(&[9, *skip]),
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// The bytes are no request of this version.
    pub fn decode(bytes: &[u8]) -> Result<Request, Malformed> {
        let mut input = Input(bytes);
        let request = match input.u32()? {
            1 => Request::Hello { version: input.u32()? },
            2 => Request::Index,
            3 => Request::Offer { pages: input.u32()? },
            4 => Request::Attach { segment: input.u32()? },
            5 => Request::Private { pages: input.hashes()? },
            6 => Request::Status,
            7 => Request::Claim { pages: input.hashes()? },
            8 => Request::Report(Report {
                looked_up_pages: input.u64()?,
                found_pages: input.u64()?,
                mappings: input.u64()?,
            }),
            9 => Request::Programs { skip: input.u32()? },
            _ => return Err(Malformed),
        };
        input.end()?;
        Ok(request)
    }
}

impl Answer {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut words = |words: &[u32]| words.iter().for_each(|word| out.extend(word.to_le_bytes()));
        match self {
            Answer::Welcome { identity, secret } => {
                words(&[1]);
                out.extend(identity.to_le_bytes());
                out.extend(&secret[..]);
            }
            Answer::Index => words(&[2]),
            Answer::Accepted { new_pages, segment, segment_pages } => {
                words(&[3, *new_pages, *segment, *segment_pages]);
            }
            Answer::Attached { segment_pages } => words(&[4, *segment_pages]),
            Answer::Noted => words(&[5]),
            Answer::Status { json } => {
                words(&[6]);
                out.extend(json.as_bytes());
            }
            Answer::Claimed { yours } => {
                words(&[8]);
                out.extend(yours);
            }
            Answer::Refused { reason, line } => {
                words(&[7, *reason as u32]);
                out.extend(line.as_bytes());
            }
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// The bytes are no answer of this version.
    pub fn decode(bytes: &[u8]) -> Result<Answer, Malformed> {
        let mut input = Input(bytes);
        let answer = match input.u32()? {
            1 => Answer::Welcome { identity: input.u64()?, secret: Box::new(input.bytes()?) },
            2 => Answer::Index,
            3 => Answer::Accepted {
                new_pages: input.u32()?,
                segment: input.u32()?,
                segment_pages: input.u32()?,
            },
            4 => Answer::Attached { segment_pages: input.u32()? },
            5 => Answer::Noted,
            6 => Answer::Status { json: input.text()? },
            7 => {
                let reason = match input.u32()? {
                    1 => Refusal::Full,
                    2 => Refusal::NoSegment,
                    3 => Refusal::Wrong,
                    4 => Refusal::Version,
                    5 => Refusal::Exhausted,
                    _ => return Err(Malformed),
                };
                Answer::Refused { reason, line: input.text()? }
            }
            8 => Answer::Claimed { yours: std::mem::take(&mut input.0).to_vec() },
            _ => return Err(Malformed),
        };
        input.end()?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // merge/tests/messages.rs tests all other messages and arbitrary bytes.
    #[test]
    fn the_longest_message_fits() {
        let pages = vec![PageHash::default(); MAX_HASHES];
        assert!(Request::Private { pages: pages.clone() }.encode().len() <= MAX_BYTES);
        let pages = [pages, vec![PageHash::default()]].concat();
        assert_eq!(Request::decode(&Request::Private { pages }.encode()), Err(Malformed));
    }
}
