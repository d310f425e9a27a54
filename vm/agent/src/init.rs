//! PID 1: keeps an agent running. It has no state: if the agent dies, only the agent's supervision of the
//! instances is lost, and the next agent kills them.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::process::{WaitOptions, wait};

/// Between two starts, in case agents die at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Starts agents, one after the other, and reaps orphans. Never returns.
pub fn run() -> ! {
    loop {
        // A process group of its own: signals to the console's group reach neither PID 1 nor the agent.
        match Command::new("/proc/self/exe").arg0("vm-agent").arg("agent").process_group(0).spawn() {
            Ok(agent) => reap_until_end_of(agent.id() as i32),
            Err(error) => eprintln!("vm-agent: cannot start the agent: {error}"),
        }
        std::thread::sleep(PAUSE);
    }
}

fn reap_until_end_of(agent: i32) {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == agent => {
                eprintln!("vm-agent: the agent ended ({status:?}); starting another");
                return;
            }
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                eprintln!("vm-agent: wait: {error}");
                return;
            }
        }
    }
}
