//! A booted guest on disk. Booting takes a quarter of a minute of CPU time and is the same each time, so it
//! is done once for each image. The guest's init pauses the machine when the kernel is idle, QEMU writes its
//! state to a file, and every run starts from there, or from a checkpoint that one such run has left.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

use crate::sim::archive::Archive;
use crate::sim::image::Image;
use crate::sim::qemu::{self, DETERMINISTIC, Owned, die_with_parent, escaped, with_small_pages};
use crate::sim::script::script;

/// A snapshot that was unused for so long is deleted: each is half as large as the guest's memory.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Huge pages as on Ubuntu (Table 3): only with madvise. Debian gives them to all mappings, so that a
/// baseline faults rarely and zeroes megabytes that no program uses.
const KERNEL_WORDS: &str =
    "console=ttyS0 nokaslr norandmaps quiet panic=-1 rdinit=/init transparent_hugepage=madvise";
/// The device by which the guest's init pauses the machine.
const PAUSE: [&str; 4] = ["-device", "pvpanic", "-action", "panic=pause"];

/// The snapshot of this image with so many cores and so much memory; it is made if there is none. `progress`
/// receives the seconds so far, and can end it.
///
/// # Errors
/// The image does not boot, or there is no room for its state.
pub fn of(
    image: &Image,
    cores: usize,
    memory_mib: u64,
    mut progress: impl FnMut(f64) -> Result<()>,
) -> Result<PathBuf> {
    let init = script("sim/guest/build")?;
    let mut key = DefaultHasher::new();
    (qemu::folder()?, memory_mib, KERNEL_WORDS).hash(&mut key);
    if cores > 1 {
        cores.hash(&mut key);
    }
    for path in
        [Some(image.kernel.as_path()), image.initrd.as_deref(), Some(Path::new(&init))].into_iter().flatten()
    {
        let known = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
        (path, known.len(), known.mtime(), known.mtime_nsec()).hash(&mut key);
    }
    kept(key.finish(), &["state"], |scratch| {
        boot(image, Path::new(&init), cores, memory_mib, scratch, &mut progress)
    })
}

/// The file with the state of this key in the cache; another of its `parts` is beside it, with the part's
/// name as its ending. Where one is missing, `make` makes all, in a folder for them.
///
/// # Errors
/// `make` fails, or there is no room.
pub fn kept(key: u64, parts: &[&str], make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let cache = cache()?;
    let path = cache.join(format!("snapshot-{key:016x}"));
    let place = |part: &str| if part == "state" { path.clone() } else { path.with_extension(part) };
    // Of two processes that need the same snapshot, the second waits for the first.
    let lock = File::create(cache.join(".snapshot-lock")).context("cannot lock the simulator's cache")?;
    lock.lock().context("cannot lock the simulator's cache")?;
    if !parts.iter().all(|part| place(part).is_file()) {
        remove_old(&cache);
        let scratch = tempfile::tempdir_in(&cache).context("cannot write to the simulator's cache")?;
        make(scratch.path())?;
        for part in parts {
            std::fs::rename(scratch.path().join(part), place(part))
                .context("cannot keep the guest's snapshot")?;
        }
    }
    for part in parts {
        let used = File::open(place(part)).and_then(|file| file.set_modified(SystemTime::now()));
        used.context("cannot mark the guest's snapshot as used")?;
    }
    Ok(path)
}

fn cache() -> Result<PathBuf> {
    let folder = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let folder = folder.context("neither XDG_CACHE_HOME nor HOME is set: a guest's snapshot has no place")?;
    let folder = folder.join("mayfly/sim");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

fn remove_old(cache: &Path) {
    for entry in std::fs::read_dir(cache).into_iter().flatten().flatten() {
        let used = entry.metadata().and_then(|known| known.modified());
        let age = used.ok().and_then(|used| used.elapsed().ok());
        if entry.file_name().to_string_lossy().starts_with("snapshot-") && age.is_some_and(|age| age > KEPT) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Boots the image up to the pause and leaves its state in `scratch`.
fn boot(
    image: &Image,
    init: &Path,
    cores: usize,
    memory_mib: u64,
    scratch: &Path,
    progress: &mut impl FnMut(f64) -> Result<()>,
) -> Result<()> {
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let mut initrd = image.initrd.as_deref().map_or(Ok(Vec::new()), read)?;
    initrd.resize(initrd.len().next_multiple_of(512), 0);
    let mut archive = Archive::default();
    for folder in ["dev", "sim", "sim/bin"] {
        archive.folder(folder);
    }
    archive.device("dev/console", 5, 1);
    archive.file("init", &read(init)?);
    initrd.extend(archive.finish());
    let file = |name: &str| scratch.join(name);
    std::fs::write(file("initrd"), initrd).context("cannot write the guest's initrd")?;
    let console = File::create(file("console")).context("cannot write the guest's console")?;
    let mut command = command(cores, memory_mib, &file("monitor"))?;
    command.args(["-append", KERNEL_WORDS, "-kernel"]).arg(&image.kernel).arg("-initrd").arg(file("initrd"));
    command.stdin(Stdio::null()).stdout(console).stderr(Stdio::piped());
    let mut child = Owned(command.spawn().context("cannot start QEMU")?);
    let booted = Monitor::open(&file("monitor"), &mut child)
        .and_then(|mut monitor| monitor.keep_state("guest-panicked", &file("state"), progress));
    let text = String::from_utf8_lossy(&std::fs::read(file("console")).unwrap_or_default()).into_owned();
    if let Some(panic) = text.lines().find(|line| line.contains("Kernel panic")) {
        bail!("the guest's kernel panicked as it booted: {}", panic.trim());
    }
    if let Some(line) = text.lines().find_map(|line| line.strip_prefix("@sim this ")) {
        bail!("the guest cannot be simulated: this {}", line.trim());
    }
    booted.map_err(|error| {
        let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing").trim();
        anyhow!("the guest did not boot: {error:#}; its console's last line: {last}")
    })
}

/// QEMU for a guest that starts from `snapshot`; [`resume`] resumes it.
///
/// # Errors
/// There is no QEMU.
pub fn restored(snapshot: &Path, cores: usize, memory_mib: u64, socket: &Path) -> Result<Command> {
    let mut command = command(cores, memory_mib, socket)?;
    command.arg("-incoming").arg(format!("file:{}", snapshot.display()));
    Ok(command)
}

fn command(cores: usize, memory_mib: u64, socket: &Path) -> Result<Command> {
    let mut command = Command::new(Path::new(&qemu::folder()?).join("bin/qemu-system-x86_64"));
    command
        .args(DETERMINISTIC)
        .args([
            "-m",
            &format!("{memory_mib}M"),
            "-smp",
            &cores.to_string(),
            "-nodefaults",
            "-display",
            "none",
        ])
        .args(["-serial", "stdio", "-monitor", "none", "-no-reboot"])
        .args(PAUSE)
        .arg("-qmp")
        .arg(format!("unix:{},server=on,wait=off", escaped(socket)));
    die_with_parent(&mut command);
    with_small_pages(&mut command);
    Ok(command)
}

/// Resumes a guest that [`restored`] started, once QEMU has read its state.
///
/// # Errors
/// QEMU refuses, or ends.
pub fn resume(socket: &Path, child: &mut Owned) -> Result<Monitor> {
    let mut monitor = Monitor::open(socket, child)?;
    monitor.wait_for_migration()?;
    monitor.ask("cont", json!({}))?;
    Ok(monitor)
}

/// A client of QEMU's monitor: one command after the other.
pub struct Monitor {
    reader: BufReader<UnixStream>,
}

impl Monitor {
    fn open(socket: &Path, child: &mut Owned) -> Result<Monitor> {
        let stream = loop {
            if let Ok(stream) = UnixStream::connect(socket) {
                break stream;
            }
            if child.wait_timeout(Duration::from_millis(20))?.is_some() {
                bail!("QEMU ended as it started");
            }
        };
        let mut monitor = Monitor { reader: BufReader::new(stream) };
        monitor.line()?;
        monitor.ask("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    fn line(&mut self) -> Result<Value> {
        let mut text = String::new();
        if self.reader.read_line(&mut text).context("QEMU's monitor")? == 0 {
            bail!("QEMU has ended");
        }
        serde_json::from_str(&text).context("QEMU's monitor")
    }

    fn ask(&mut self, name: &str, arguments: Value) -> Result<Value> {
        let question = format!("{}\n", json!({"execute": name, "arguments": arguments}));
        self.reader.get_mut().write_all(question.as_bytes()).context("QEMU has ended")?;
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refuses {name}: {}", error["desc"].as_str().unwrap_or_default());
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    /// Waits until the guest has this status, and writes its state to `file`. `progress` receives the seconds
    /// so far, and can end it.
    ///
    /// # Errors
    /// QEMU ends, or there is no room.
    pub fn keep_state(
        &mut self,
        status: &str,
        file: &Path,
        progress: &mut impl FnMut(f64) -> Result<()>,
    ) -> Result<()> {
        let started = Instant::now();
        while self.ask("query-status", json!({}))?["status"] != status {
            progress(started.elapsed().as_secs_f64())?;
            std::thread::sleep(Duration::from_millis(200));
        }
        self.ask("migrate-set-parameters", json!({"max-bandwidth": 1u64 << 40}))?;
        self.ask("migrate", json!({"uri": format!("file:{}", file.display())}))?;
        self.wait_for_migration()
    }

    fn wait_for_migration(&mut self) -> Result<()> {
        loop {
            let known = self.ask("query-migrate", json!({}))?;
            match known["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed") => {
                    bail!("QEMU: {}", known["error-desc"].as_str().unwrap_or("its state cannot be kept"))
                }
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}
