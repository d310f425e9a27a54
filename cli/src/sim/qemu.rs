//! QEMU with the plugin: the paths of both, the options that make every guest the same, and its end.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::libraries;
use crate::sim::script::script;

/// The same guest, to the bit, in every run: time is counted in instructions (2 ns each), and starts at a
/// fixed date; no randomness; no instruction that the emulator cannot interrupt. CPUID is the same under
/// every QEMU, too, since a C library does at its start what its leaves say. What a later QEMU adds to `max`
/// is off: in 11.1 no-nested-data-bp, and with it all leaves up to 0x80000021.
pub const DETERMINISTIC: [&str; 10] = [
    "-accel",
    "tcg,thread=single",
    "-cpu",
    "max,-la57,-erms,-rdrand,-rdseed,-null-sel-clr-base,-no-nested-data-bp",
    "-icount",
    "shift=1,sleep=off",
    "-rtc",
    "base=2024-01-01,clock=vm",
    "-seed",
    "1",
];

const SERVED: &str = "9.1 to 10 (plugin interface 4) and 11.1 and later (7)";

/// The folder of a QEMU that takes the plugin: what `MAYFLY_QEMU` names, else that of `sim/qemu`.
///
/// # Errors
/// The script fails, or the QEMU that is named has another plugin interface.
pub fn folder() -> Result<String> {
    static FOLDER: OnceLock<String> = OnceLock::new();
    if let Some(known) = FOLDER.get() {
        return Ok(known.clone());
    }
    let folder = match std::env::var("MAYFLY_QEMU").ok().filter(|given| !given.is_empty()) {
        None => script("sim/qemu")?,
        Some(given) => {
            let program = Path::new(&given).join("bin/qemu-system-x86_64");
            let output = Command::new(&program).arg("--version").output();
            let output = output.with_context(|| format!("MAYFLY_QEMU={given}: {}", program.display()))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if !is_served(&text) {
                let first = text.lines().next().unwrap_or("without a version").trim();
                bail!("MAYFLY_QEMU={given}: it is {first}, and mayfly sim serves QEMU {SERVED}");
            }
            given
        }
    };
    Ok(FOLDER.get_or_init(|| folder).clone())
}

/// Whether the plugin has this QEMU's plugin interface, by what `--version` says. 11.0 has interface 6.
fn is_served(version: &str) -> bool {
    let Some((_, version)) = version.split_once("version ") else { return false };
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (9, 1) && version.0 != 11 || version >= (11, 1)
}

/// libmayfly_sim.so: beside this program or below `../lib` once installed, or what `MAYFLY_SIM_PLUGIN` names.
///
/// # Errors
/// There is no such file.
pub fn plugin() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("MAYFLY_SIM_PLUGIN") {
        return Ok(PathBuf::from(path));
    }
    libraries::find("libmayfly_sim.so").map_err(|missing| {
        anyhow!(
            "{missing}: install Debian's package mayfly-guest of this release, or in Mayfly's source tree: cargo \
             build --release -p sim-plugin"
        )
    })
}

/// A line for a QEMU that has refused the plugin for its interface's number, by what it complains of.
pub fn unfit(complaints: &str) -> Option<String> {
    let (_, end) = complaints.lines().find_map(|line| line.split_once("this QEMU supports only "))?;
    Some(format!(
        "this QEMU's plugin interface has {}, and mayfly sim serves QEMU {SERVED}",
        end.trim().replace("version of ", "number ").replace("up to version ", "at most number ")
    ))
}

/// A path among QEMU's options, where a comma separates.
pub fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// A QEMU process, killed when this is dropped.
pub struct Owned(pub Child);

impl std::ops::Deref for Owned {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl std::ops::DerefMut for Owned {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Owned {
    /// Asks QEMU to end, which writes what the plugin has counted.
    pub fn ask_to_end(&self) {
        // SAFETY: the child has not been waited for, or `wait_timeout` had said so.
        unsafe { libc::kill(self.0.id() as libc::pid_t, libc::SIGTERM) };
    }

    /// Waits so long for its end.
    ///
    /// # Errors
    /// The process cannot be waited for.
    pub fn wait_timeout(&mut self, time: Duration) -> Result<Option<std::process::ExitStatus>> {
        let until = Instant::now() + time;
        loop {
            let status = self.0.try_wait().context("cannot wait for QEMU")?;
            if status.is_some() || Instant::now() >= until {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has the kernel kill the child when this process ends in any way.
pub fn die_with_parent(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: prctl is async-signal-safe and touches no memory of the parent's.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// Gives the guest's memory pages of 4 KiB, though QEMU asks for huge ones: a snapshot's pages lie scattered,
/// and the kernel would clear 2 MiB around each first, which takes a tenth of a short run's time.
pub fn with_small_pages(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: as above.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_THP_DISABLE, 1_usize, 0_usize, 0_usize, 0_usize);
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_served_gets_one_line() {
        let line = |end: &str| {
            unfit(&format!(
                "a warning\nCould not load plugin x.so: plugin requires API version 7, but {end}\n"
            ))
        };
        let later = line("this QEMU supports only a minimum version of 9").unwrap();
        assert!(
            later.starts_with("this QEMU's plugin interface has a minimum number 9, and mayfly sim serves")
        );
        let between = line("this QEMU supports only up to version 6").unwrap();
        assert!(
            between
                .contains("has at most number 6, and mayfly sim serves QEMU 9.1 to 10 (plugin interface 4)")
        );
        assert_eq!(unfit("qemu: no such option"), None);
    }

    #[test]
    fn qemus_with_either_interface_are_served() {
        let served = |version: &str| is_served(&format!("QEMU emulator version {version} (Debian 1:9+x)\n"));
        let all = ["7.2.22", "9.0.4", "9.1.0", "10.0.2", "10.2.1", "11.0.1", "11.1.3", "12.0.0"];
        let found: Vec<_> = all.into_iter().filter(|version| served(version)).collect();
        assert_eq!(found, ["9.1.0", "10.0.2", "10.2.1", "11.1.3", "12.0.0"]);
        assert!(!is_served("no QEMU"));
    }
}
