//! The protocol between the heap and a profiler that attaches to a running program (LLAMA §4): three words of
//! the profile's header, and the heap's answer. docs/lifetime.md describes it.

/// Offset of the requested phase in the header: [`SAMPLE`], [`WATCH`] or [`ENDED`].
pub const PHASE_AT: usize = 88;
/// Offset of the time at which the attached profiler was last alive, monotonic ns.
pub const SEEN_AT: usize = 96;
/// Offset of the time at which the profiler left a process that runs on, monotonic ns; 0 if the process has
/// ended.
pub const LEFT_AT: usize = 104;

/// The heap samples objects.
pub const SAMPLE: u64 = 0;
/// The heap samples no more objects, and records the frees of those that it sampled.
pub const WATCH: u64 = 1;
/// The profile is being read.
pub const ENDED: u64 = 2;

/// The heap samples from now on.
pub const AGREED: u64 = 0;
/// The heap refuses: the program is being profiled already.
pub const HAS_A_PROFILE: u64 = 1;
/// The heap refuses: it cannot use the profiler's file.
pub const CANNOT_MAP: u64 = 2;
