//! Whether this process may open sockets. A filter of system calls that it inherited may end it there, such
//! as that of a systemd unit with `SystemCallFilter=~@network-io`.

/// The mode of a process with filters (seccomp(2)), in /proc/PID/status.
const FILTERED: &str = "2";

/// Whether asking for a socket, even in vain, leaves the process alive. Under a filter a child asks.
pub fn may_be_opened() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    !has_filter(&status) || is_survived()
}

fn has_filter(status: &str) -> bool {
    status.lines().filter_map(|line| line.strip_prefix("Seccomp:")).any(|mode| mode.trim() == FILTERED)
}

/// Whether a child of this process survives it.
fn is_survived() -> bool {
    // SAFETY: the child makes system calls alone, of which one reads `no_core`. The parent waits for that
    // child, and `status` outlives the call.
    unsafe {
        match libc::fork() {
            -1 => false,
            0 => {
                let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
                libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
                libc::_exit(0)
            }
            child => {
                let mut status = 0;
                while libc::waitpid(child, &raw mut status, 0) < 0 {
                    if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
                        return false;
                    }
                }
                libc::WIFEXITED(status)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_known_by_its_mode() {
        assert!(has_filter("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(!has_filter("Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t2\n"));
        assert!(!has_filter(""));
    }

    #[test]
    fn a_child_may_open_one_here() {
        assert!(is_survived());
    }
}
