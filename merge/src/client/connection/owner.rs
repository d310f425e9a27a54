//! Whose store it is: another user's could change pages after they were compared.

use std::os::fd::OwnedFd;
use std::path::Path;

use crate::base::channel;
use crate::base::error::{Error, While};

/// The user whose store is trusted, beside root and the program's own: for stores with a user of their own,
/// and for user namespaces, where root appears as 65534.
const TRUSTED_USER: &str = "MAYFLY_SHARE_UID";

/// The user that the environment names.
pub(super) fn trusted_user() -> Option<u32> {
    std::env::var(TRUSTED_USER).ok().and_then(|user| user.parse().ok())
}

/// Checks that root, this program's user or the trusted one runs the store.
pub(super) fn check(socket: &OwnedFd, path: &Path, trusted: Option<u32>) -> Result<(), Error> {
    let (_, owner) = channel::peer(socket).while_doing("whose page store it is")?;
    if owner == 0 || owner == rustix::process::geteuid().as_raw() || trusted == Some(owner) {
        return Ok(());
    }
    Err(Error::new(
        libc::EACCES,
        format!(
            "the page store at {} is uid {owner}'s, neither root's nor this user's: set {TRUSTED_USER}={owner} to \
             trust it",
            path.display()
        ),
    ))
}
