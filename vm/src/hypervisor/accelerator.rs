//! How QEMU runs the guest's code: by hardware virtualization (KVM) where that works, else by translation
//! (TCG).
//!
//! `/dev/kvm` may exist and not work (nested virtualization that cannot run a stock kernel). So the guest's
//! kernel itself is booted as a probe: without a root file system it panics with a message about that, and
//! only if it got that far does KVM work. The result holds until the host reboots, and is cached in a file.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tracing::debug;

use crate::base::error::Error;
use crate::base::settings::AcceleratorChoice;

/// The last message of a kernel without a root file system.
const REACHED_USER_SPACE: &str = "Unable to mount root fs";

/// Under KVM a kernel gets there in about a second.
const PROBE_TIMEOUT: Duration = Duration::from_secs(6);

/// The accelerator in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accelerator {
    /// Hardware virtualization.
    Kvm,
    /// Translation, one host thread for each virtual CPU.
    Tcg,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.option())
    }
}

impl Accelerator {
    /// For `-accel`.
    pub fn option(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg,thread=multi",
        }
    }

    /// For `-cpu`.
    pub fn cpu(self) -> &'static str {
        match self {
            Accelerator::Kvm => "host",
            Accelerator::Tcg => "max",
        }
    }

    /// Chooses for this kernel.
    ///
    /// # Errors
    /// KVM was requested and does not boot the kernel.
    pub fn choose(choice: AcceleratorChoice, qemu: &Path, kernel: &Path) -> Result<Accelerator, Error> {
        if choice == AcceleratorChoice::Tcg {
            return Ok(Accelerator::Tcg);
        }
        let why = match obstacle(qemu, kernel) {
            None => return Ok(Accelerator::Kvm),
            Some(why) => why,
        };
        if choice == AcceleratorChoice::Kvm {
            return Err(Error::Missing(format!(
                "KVM cannot be used: {why}; --accelerator tcg works without it"
            )));
        }
        debug!("no KVM: {why}");
        Ok(Accelerator::Tcg)
    }
}

/// Why KVM cannot run this kernel.
fn obstacle(qemu: &Path, kernel: &Path) -> Option<String> {
    if std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        return Some("/dev/kvm is missing or not for this user".to_string());
    }
    let booted = answer_file(kernel);
    let known = booted.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
    let boots = known.map_or_else(
        || {
            let boots = boots_under_kvm(qemu, kernel);
            if let Some(file) = booted {
                // Errors do not matter: the file only saves the next probe.
                let _ = std::fs::create_dir_all(file.parent().expect("a file in a folder"));
                let _ = std::fs::write(file, if boots { "yes" } else { "no" });
            }
            boots
        },
        |text| text == "yes",
    );
    (!boots).then(|| format!("{} does not boot under it", kernel.display()))
}

/// The file that caches the result for this kernel until the host reboots.
fn answer_file(kernel: &Path) -> Option<PathBuf> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let metadata = std::fs::metadata(kernel).ok()?;
    let mut hasher = DefaultHasher::new();
    // Images that differ only in the agent link to one kernel file, under several names.
    (boot, metadata.dev(), metadata.ino(), metadata.len(), metadata.modified().ok()?).hash(&mut hasher);
    Some(crate::base::image::cache_folder()?.join(format!("kvm/{:016x}", hasher.finish())))
}

fn boots_under_kvm(qemu: &Path, kernel: &Path) -> bool {
    let started = Command::new(qemu)
        .args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-accel",
            "kvm",
            "-cpu",
            "host",
        ])
        .args(["-m", "256M", "-serial", "stdio", "-append", "console=ttyS0 panic=-1", "-kernel"])
        .arg(kernel)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = started else { return false };
    let mut output = child.stdout.take().expect("stdout is a pipe");
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = output.read_to_end(&mut text);
        text
    });
    let deadline = Instant::now() + PROBE_TIMEOUT;
    while child.try_wait().is_ok_and(|status| status.is_none()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
    let text = reader.join().unwrap_or_default();
    String::from_utf8_lossy(&text).contains(REACHED_USER_SPACE)
}
