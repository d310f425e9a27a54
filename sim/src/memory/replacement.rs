//! Which line of a set a new one replaces: a part of each cache, chosen by its key `replacement`.
//!
//! A policy of your own is a type with [`Replacement`], its name in the list at this file's end, and that
//! name in [`ReplacementKind`](Kind), by which machine files choose it. The cache calls policies by a match
//! over the list: each is compiled into it, and none costs a call through a pointer.

use crate::base::description::ReplacementKind as Kind;

/// What a policy must do. Lines have numbers; those of a set lie one behind the other.
pub trait Replacement {
    /// For so many lines, all empty.
    fn new(lines: usize) -> Self;
    /// An access has found this line.
    fn used(&mut self, line: usize);
    /// A new line is put here.
    fn filled(&mut self, line: usize);
    /// The line is taken out: its place is the next one to be filled.
    fn emptied(&mut self, line: usize);
    /// The place for a new line in this set: an empty one if there is one.
    fn victim(&mut self, set: std::ops::Range<usize>) -> usize;
}

/// The least recently used line.
pub struct Lru {
    /// Of each line: when it was used last, in uses of any; 0 if it is empty.
    used: Box<[u64]>,
    uses: u64,
}

impl Replacement for Lru {
    fn new(lines: usize) -> Lru {
        Lru { used: vec![0; lines].into(), uses: 0 }
    }

    #[inline]
    fn used(&mut self, line: usize) {
        self.uses += 1;
        self.used[line] = self.uses;
    }

    #[inline]
    fn filled(&mut self, line: usize) {
        self.used(line);
    }

    fn emptied(&mut self, line: usize) {
        self.used[line] = 0;
    }

    #[inline]
    fn victim(&mut self, set: std::ops::Range<usize>) -> usize {
        let mut victim = set.start;
        for line in set {
            if self.used[line] < self.used[victim] {
                victim = line;
            }
        }
        victim
    }
}

/// Static re-reference interval prediction with two bits (Jaleel et al., ISCA 2010): a new line is expected
/// to be used late, one that was used soon. Lines that are read once leave before those that are used again.
pub struct Srrip {
    /// Of each line: 0, to be used soon, to [`Srrip::DISTANT`]; [`Srrip::EMPTY`] if it is empty.
    intervals: Box<[u8]>,
}

impl Srrip {
    const LONG: u8 = 2;
    const DISTANT: u8 = 3;
    const EMPTY: u8 = 4;
}

impl Replacement for Srrip {
    fn new(lines: usize) -> Srrip {
        Srrip { intervals: vec![Srrip::EMPTY; lines].into() }
    }

    #[inline]
    fn used(&mut self, line: usize) {
        self.intervals[line] = 0;
    }

    #[inline]
    fn filled(&mut self, line: usize) {
        self.intervals[line] = Srrip::LONG;
    }

    fn emptied(&mut self, line: usize) {
        self.intervals[line] = Srrip::EMPTY;
    }

    #[inline]
    fn victim(&mut self, set: std::ops::Range<usize>) -> usize {
        let intervals = &mut self.intervals[set.clone()];
        let most = intervals.iter().copied().max().unwrap_or(Srrip::EMPTY);
        // All age until one is distant.
        let older = Srrip::DISTANT.saturating_sub(most);
        intervals.iter_mut().for_each(|interval| *interval += older);
        let first = intervals.iter().position(|interval| *interval >= most.max(Srrip::DISTANT));
        set.start + first.unwrap_or(0)
    }
}

/// Any line of the set: the same ones in each run.
pub struct Random {
    filled: Box<[bool]>,
    state: u64,
}

impl Replacement for Random {
    fn new(lines: usize) -> Random {
        Random { filled: vec![false; lines].into(), state: 0x9e37_79b9_7f4a_7c15 }
    }

    #[inline]
    fn used(&mut self, _line: usize) {}

    #[inline]
    fn filled(&mut self, line: usize) {
        self.filled[line] = true;
    }

    fn emptied(&mut self, line: usize) {
        self.filled[line] = false;
    }

    #[inline]
    fn victim(&mut self, set: std::ops::Range<usize>) -> usize {
        if let Some(empty) = self.filled[set.clone()].iter().position(|filled| !filled) {
            return set.start + empty;
        }
        // Xorshift (Marsaglia 2003); its upper half is the better one.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        set.start + (self.state >> 32) as usize % set.len()
    }
}

macro_rules! policies {
    ($($name:ident),*) => {
        /// A cache's policy, of those that there are.
        pub enum Policy {
            $(#[allow(missing_docs)] $name($name),)*
        }

        impl Policy {
            /// The one of this name, for so many empty lines.
            pub fn new(kind: Kind, lines: usize) -> Policy {
                match kind {
                    $(Kind::$name => Policy::$name($name::new(lines)),)*
                }
            }

            /// See [`Replacement::used`].
            #[inline]
            pub fn used(&mut self, line: usize) {
                match self {
                    $(Policy::$name(policy) => policy.used(line),)*
                }
            }

            /// See [`Replacement::filled`].
            #[inline]
            pub fn filled(&mut self, line: usize) {
                match self {
                    $(Policy::$name(policy) => policy.filled(line),)*
                }
            }

            /// See [`Replacement::emptied`].
            pub fn emptied(&mut self, line: usize) {
                match self {
                    $(Policy::$name(policy) => policy.emptied(line),)*
                }
            }

            /// See [`Replacement::victim`].
            #[inline]
            pub fn victim(&mut self, set: std::ops::Range<usize>) -> usize {
                match self {
                    $(Policy::$name(policy) => policy.victim(set),)*
                }
            }
        }
    };
}

policies!(Lru, Srrip, Random);
