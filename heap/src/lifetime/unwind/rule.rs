//! The rule that unwinds a frame: where the caller's stack pointer, return address and frame pointer are, in
//! one word.

/// Where the caller's frame pointer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Saved {
    /// Still in its register.
    InPlace,
    /// This many words below the frame's end.
    Below(u16),
    /// Not known to these rules.
    Unknown,
}

/// How to unwind a frame. Its end, the caller's stack pointer, is `bytes` above the frame pointer or the
/// stack pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Whether the end is measured from the frame pointer.
    pub by_frame_pointer: bool,
    /// See above.
    pub bytes: u32,
    /// The return address lies this many words below the end.
    pub return_below: u16,
    /// The caller's frame pointer.
    pub frame_pointer: Saved,
}

/// The rule for a code address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Unwind by this frame.
    Frame(Frame),
    /// The outermost function of a thread, which has no caller.
    Outermost,
    /// libgcc must unwind it.
    Other,
}

/// Bits of a distance below an end, in words; the last two values are [`Saved::Unknown`] and
/// [`Saved::InPlace`].
const WORDS_BITS: u32 = 13;
pub const MOST_WORDS: u16 = (1 << WORDS_BITS) - 3;
const IN_PLACE: u64 = MOST_WORDS as u64 + 1;
const UNKNOWN: u64 = MOST_WORDS as u64 + 2;

impl Rule {
    /// Packs it into one word, which is not 0.
    pub fn packed(self) -> u64 {
        match self {
            Rule::Other => 1,
            Rule::Outermost => 2,
            Rule::Frame(frame) => {
                let saved = match frame.frame_pointer {
                    Saved::InPlace => IN_PLACE,
                    Saved::Unknown => UNKNOWN,
                    Saved::Below(words) => u64::from(words),
                };
                let places = saved << WORDS_BITS | u64::from(frame.return_below);
                u64::from(frame.bytes) << 32 | places << 3 | u64::from(frame.by_frame_pointer) << 2 | 3
            }
        }
    }

    /// Unpacks a word of [`Rule::packed`].
    pub fn unpacked(word: u64) -> Rule {
        match word & 3 {
            2 => Rule::Outermost,
            3 => {
                let words = |shift: u32| word >> shift & ((1 << WORDS_BITS) - 1);
                let frame_pointer = match words(3 + WORDS_BITS) {
                    IN_PLACE => Saved::InPlace,
                    UNKNOWN => Saved::Unknown,
                    words => Saved::Below(words as u16),
                };
                Rule::Frame(Frame {
                    by_frame_pointer: word & 4 != 0,
                    bytes: (word >> 32) as u32,
                    return_below: words(3) as u16,
                    frame_pointer,
                })
            }
            _ => Rule::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_one_word() {
        let mut frames = std::vec::Vec::new();
        for frame_pointer in [Saved::InPlace, Saved::Unknown, Saved::Below(2), Saved::Below(MOST_WORDS)] {
            for (by_frame_pointer, bytes) in [(false, 8), (true, u32::MAX)] {
                frames.push(Rule::Frame(Frame { by_frame_pointer, bytes, return_below: 1, frame_pointer }));
            }
        }
        for rule in frames.into_iter().chain([Rule::Outermost, Rule::Other]) {
            assert_ne!(rule.packed(), 0);
            assert_eq!(Rule::unpacked(rule.packed()), rule);
        }
    }
}
