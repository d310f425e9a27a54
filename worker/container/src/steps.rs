//! Where the time of a start goes: what was done by when, by the worker, the monitor and process 1.

use rustix::time::{ClockId, clock_gettime};

/// The time on the clock that all processes of this host share, in nanoseconds.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Steps in their order, and when each was done, as [`now_ns`] has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps(Vec<(String, u64)>);

impl Steps {
    /// This is done now.
    pub fn done(&mut self, name: &str) {
        self.0.push((name.into(), now_ns()));
    }

    /// For another process: a line each.
    pub fn to_text(&self) -> String {
        self.0.iter().map(|(name, at_ns)| format!("{name} {at_ns}\n")).collect()
    }

    /// Appends another process's. What is no step is left out.
    pub fn append(&mut self, text: &str) {
        let step = |line: &str| {
            let (name, at_ns) = line.rsplit_once(' ')?;
            Some((name.to_string(), at_ns.parse().ok()?))
        };
        self.0.extend(text.lines().filter_map(step));
    }

    /// Those done after `began_ns`, in the order of time, and how many milliseconds each took.
    pub fn since(&self, began_ns: u64) -> Vec<(String, f64)> {
        let mut later: Vec<_> = self.0.iter().filter(|(_, at_ns)| *at_ns > began_ns).collect();
        later.sort_by_key(|(_, at_ns)| *at_ns);
        let mut before = began_ns;
        let took = |(name, at_ns): &(String, u64)| {
            let took_us = (at_ns - before) / 1000;
            before = *at_ns;
            (name.clone(), took_us as f64 / 1e3)
        };
        later.into_iter().map(took).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_another_process_continue_the_own_ones() {
        let mut steps = Steps(vec![("made before".into(), 900), ("cgroup".into(), 2_001_000)]);
        steps.append("two words 5000000\nno number x\n\nbetween 4000000\n");
        let took = steps.since(1_000).into_iter();
        let took: Vec<_> = took.map(|(name, ms)| format!("{name} {ms}")).collect();
        assert_eq!(took, ["cgroup 2", "between 1.999", "two words 1"]);
        let mut copy = Steps::default();
        copy.append(&steps.to_text());
        assert_eq!(copy, steps);
    }

    #[test]
    fn clock_is_the_one_of_all_processes() {
        let mut steps = Steps::default();
        let before = now_ns();
        let output = std::process::Command::new("cat").arg("/proc/uptime").output().unwrap();
        steps.done("asked");
        let text = String::from_utf8(output.stdout).unwrap();
        let uptime_s: f64 = text.split(' ').next().unwrap().parse().unwrap();
        // This clock stands still while the host sleeps, /proc/uptime does not.
        assert!(before as f64 / 1e9 <= uptime_s + 0.02, "{before} {uptime_s}");
        assert_eq!(steps.since(before).len(), 1);
    }
}
