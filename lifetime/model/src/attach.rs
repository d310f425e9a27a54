//! What the heap and who attaches to a running program agree on (LLAMA §4): three words of the profile's header, and the heap's
//! answer. docs/lifetime.md says how they meet.

/// Where the header says what is wanted: [`SAMPLE`], [`WATCH`] or [`ENDED`].
pub const PHASE_AT: usize = 88;
/// Where it says when who is attached was last seen, monotonic ns.
pub const SEEN_AT: usize = 96;
/// Where who is attached says when it left a process that runs on, monotonic ns; 0 where the process has ended.
pub const LEFT_AT: usize = 104;

/// Objects are sampled.
pub const SAMPLE: u64 = 0;
/// No more of them; the frees of those that were are noted.
pub const WATCH: u64 = 1;
/// The profile is being read.
pub const ENDED: u64 = 2;

/// The heap samples from now on.
pub const AGREED: u64 = 0;
/// It refuses: the program is being profiled already.
pub const HAS_A_PROFILE: u64 = 1;
/// It refuses: the file that it was given is none that it can use.
pub const CANNOT_MAP: u64 = 2;
