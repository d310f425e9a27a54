//! QEMU with the plugin: the paths of both, the options that make every guest the same, and its end.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::sim::script::script;

/// The same guest, to the bit, in every run: time is counted in instructions (2 ns each), and starts at a
/// fixed date; no randomness; no instruction that the emulator cannot interrupt.
pub const DETERMINISTIC: [&str; 10] = [
    "-accel",
    "tcg,thread=single",
    "-cpu",
    "max,-la57,-erms,-rdrand,-rdseed",
    "-icount",
    "shift=1,sleep=off",
    "-rtc",
    "base=2024-01-01,clock=vm",
    "-seed",
    "1",
];

/// The folder of QEMU 10.
///
/// # Errors
/// The script `sim/qemu` fails.
pub fn folder() -> Result<String> {
    script("sim/qemu")
}

/// libmayfly_sim.so: beside this program, or what `MAYFLY_SIM_PLUGIN` names.
///
/// # Errors
/// There is no such file.
pub fn plugin() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("MAYFLY_SIM_PLUGIN") {
        return Ok(PathBuf::from(path));
    }
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let path = program.with_file_name("libmayfly_sim.so");
    if path.is_file() {
        Ok(path)
    } else {
        bail!("{} is missing: build it with: cargo build --release -p sim-plugin", path.display())
    }
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
