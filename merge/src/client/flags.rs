//! A caller's promises about writers.

use crate::base::error::Error;

/// What the caller promises about writers during the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Other threads write by plain stores only, not by system calls (`MAYFLY_ADVISE_NO_SYSCALLS`).
    pub no_system_calls: bool,
    /// No thread writes (`MAYFLY_ADVISE_QUIET`).
    pub quiet: bool,
}

impl Flags {
    /// From the bits of the C interface.
    ///
    /// # Errors
    /// EINVAL: a bit that has no meaning.
    pub fn from_bits(bits: u32) -> Result<Flags, Error> {
        if bits & !3 != 0 {
            return Err(Error::new(libc::EINVAL, format!("{bits:#x}: unknown flags")));
        }
        Ok(Flags { no_system_calls: bits & 1 != 0, quiet: bits & 2 != 0 })
    }
}
