//! What a caller promises about writers.

use crate::base::error::Error;

/// What the caller promises about writers during the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Other threads write by plain stores only, not by system calls (`MAYFLY_ADVISE_NO_SYSCALLS`).
    pub no_system_calls: bool,
    /// Nobody writes (`MAYFLY_ADVISE_QUIET`).
    pub quiet: bool,
}

impl Flags {
    /// As C gives them.
    pub fn from_bits(bits: u32) -> Result<Flags, Error> {
        if bits & !3 != 0 {
            return Err(Error::new(libc::EINVAL, format!("{bits:#x}: flags that are not known")));
        }
        Ok(Flags { no_system_calls: bits & 1 != 0, quiet: bits & 2 != 0 })
    }
}
