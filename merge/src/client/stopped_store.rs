//! Recognises a page store that is stopped: a call must not wait for its answer as long as for a busy one.

use std::os::fd::AsFd;

use crate::base::channel;

/// The process at the other end, if it is stopped, by a signal or a debugger.
pub fn stopped_process(socket: impl AsFd) -> Option<i32> {
    let (process, _) = channel::peer(socket).ok()?;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    is_stopped(&stat).then_some(process)
}

/// The state follows the program's name, which may itself contain brackets.
fn is_stopped(stat: &str) -> bool {
    stat.rsplit_once(')').is_some_and(|(_, rest)| matches!(rest.trim_start().chars().next(), Some('T' | 't')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_state_behind_any_name() {
        for (line, stopped) in [
            ("12 (mayfly) S 1 12", false),
            ("12 (mayfly) T 1 12", true),
            ("12 (a) T (b) R 1 12", false),
            ("12 (a) S (b) t 1 12", true),
            ("", false),
        ] {
            assert_eq!(is_stopped(line), stopped, "{line}");
        }
    }
}
