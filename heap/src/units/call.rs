//! A call of malloc, as all layers see it.

/// What is known of a call without looking anything up.
#[derive(Clone, Copy)]
pub struct Call {
    /// Bytes asked for.
    pub size: usize,
    /// The return address.
    pub caller: usize,
    /// The stack pointer of the caller.
    pub stack: usize,
}
