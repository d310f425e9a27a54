//! What a client reads where the daemon cannot serve it: above all where the daemon may open no more files.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Resource, getpid, getrlimit};

use crate::base::channel;
use crate::base::error::Error;
use crate::base::protocol::{Answer, Refusal};
use crate::daemon::untrusted_fds;

/// The refusal for an error that says that no more files may be open.
pub fn out_of_files(errno: Errno) -> Option<(Refusal, String)> {
    let who = format!("the page store (process {})", getpid());
    let line = match errno {
        Errno::MFILE => {
            let most = getrlimit(Resource::Nofile).current.unwrap_or(0);
            format!(
                "{who} has all {most} files open that it may: start it with a higher limit (ulimit -n, or \
                 LimitNOFILE= of its unit), or end programs that share, and advise again"
            )
        }
        Errno::NFILE => {
            format!("{who} can open no file: raise fs.file-max of this machine, and advise again")
        }
        _ => return None,
    };
    Some((Refusal::Exhausted, line))
}

/// The refusal for an error of the daemon's.
pub fn refusal(error: &Error) -> (Refusal, String) {
    let reason = if error.errno == libc::EAGAIN { Refusal::Exhausted } else { Refusal::Wrong };
    out_of_files(Errno::from_raw_os_error(error.errno)).unwrap_or_else(|| (reason, error.to_string()))
}

/// Answers a connection that is not to be served, and closes it.
pub fn turn_away(socket: OwnedFd, (reason, line): (Refusal, String)) {
    // A client that does not read gets no answer.
    let _ = channel::send(&socket, &Answer::Refused { reason, line }.encode(), None, SendFlags::DONTWAIT);
    untrusted_fds::close_on_thread(socket);
}
