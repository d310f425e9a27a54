//! A simulated guest: what it boots, QEMU with the plugin, and what became of it.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value};
use vm::image::{self, Kernel};

use crate::sim_functions;
use crate::sim_snapshot::{self, escaped};

/// The same guest, to the bit, in every run: time is counted in instructions (2 ns each), and starts at a fixed date;
/// no randomness; no instruction that the emulator cannot interrupt.
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

/// What the guest boots.
pub struct Image {
    /// Its kernel.
    pub kernel: PathBuf,
    /// The root; none: the program alone.
    pub initrd: Option<PathBuf>,
    /// image.json.
    pub description: Map<String, Value>,
    /// The root as a folder.
    pub tree: Option<PathBuf>,
}

impl Image {
    /// The image in this folder.
    ///
    /// # Errors
    /// There is none.
    pub fn open(folder: &Path) -> Result<Image> {
        let file = folder.join("image.json");
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("no simulator image in {}: {}", folder.display(), file.display()))?;
        let description: Map<String, Value> =
            serde_json::from_str(&text).with_context(|| format!("{}", file.display()))?;
        let name = |key: &str| description.get(key).and_then(Value::as_str).map(|name| folder.join(name));
        let kernel = name("kernel").ok_or_else(|| anyhow!("{} names no kernel", file.display()))?;
        let tree = Some(folder.join("tree")).filter(|tree| tree.is_dir());
        Ok(Image { kernel, initrd: name("initrd"), description, tree })
    }

    /// What results depend on besides the machine: QEMU, the kernel, the image and what compiled it.
    fn made_with(&self) -> Map<String, Value> {
        let mut all = Map::new();
        let said = self.description.get("made_with").and_then(Value::as_object);
        for (name, value) in said.into_iter().flatten() {
            all.insert(format!("made_with.{name}"), value.clone());
        }
        if all.is_empty()
            && let Some(folder) = self.kernel.parent().and_then(Path::file_name)
        {
            all.insert("made_with.kernel".into(), folder.to_string_lossy().into_owned().into());
        }
        if let Ok(folder) = qemu() {
            let name = Path::new(&folder).file_name().unwrap_or_default().to_string_lossy().into_owned();
            all.insert("made_with.qemu".into(), name.into());
        }
        all
    }

    /// The one that `sim/image/build` makes; it tells its progress on stderr.
    ///
    /// # Errors
    /// It fails.
    pub fn build() -> Result<Image> {
        Image::open(Path::new(&script("sim/image/build")?))
    }

    /// A kernel without a root: for static programs.
    ///
    /// # Errors
    /// There is no kernel, and none can be built.
    pub fn bare() -> Result<Image> {
        let image = image::latest(Kernel::Stock).or_else(|_| {
            image::build(Kernel::Stock)?;
            image::latest(Kernel::Stock)
        })?;
        Ok(Image { kernel: image.kernel, initrd: None, description: Map::new(), tree: None })
    }
}

/// Runs a script of the source tree that prints a path.
///
/// # Errors
/// It is not found, or fails.
pub fn script(name: &str) -> Result<String> {
    let program = std::env::current_exe().context("cannot find myself")?;
    let here = std::env::current_dir().unwrap_or_default();
    let found = program
        .ancestors()
        .chain(here.ancestors())
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    let path = found.ok_or_else(|| anyhow!("{name} is part of Mayfly's source tree: run this there"))?;
    let output = Command::new(&path)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", path.display()))?;
    if !output.status.success() {
        bail!("{name} failed ({}); see above", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The folder of QEMU 10.
///
/// # Errors
/// It cannot be had.
pub fn qemu() -> Result<String> {
    script("sim/qemu")
}

/// libmayfly_sim.so: beside this program, or what `MAYFLY_SIM_PLUGIN` names.
///
/// # Errors
/// It is not there.
pub fn plugin() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("MAYFLY_SIM_PLUGIN") {
        return Ok(PathBuf::from(path));
    }
    let program = std::env::current_exe().context("cannot find myself")?;
    let path = program.with_file_name("libmayfly_sim.so");
    if path.is_file() {
        Ok(path)
    } else {
        bail!("{} is missing: build it with: cargo build --release -p sim-plugin", path.display())
    }
}

/// One run of one command.
pub struct Guest<'a> {
    /// What it boots.
    pub image: &'a Image,
    /// The words.
    pub command: &'a [String],
    /// A program of the host's that is copied in, as /sim/bin/NAME.
    pub program: Option<&'a Path>,
    /// NAME=VALUE.
    pub environment: &'a [String],
    /// The machine, as TOML.
    pub machine: &'a str,
    /// DRAM's requests are kept in the folder.
    pub keeps_dram: bool,
    /// Stop after so many instructions of the region; 0: never.
    pub most_instructions: u64,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// Where statistics, console and progress go.
    pub folder: &'a Path,
}

/// What became of it.
pub struct Ended {
    /// The statistics; partial ones say so themselves.
    pub statistics: Map<String, Value>,
    /// What the program wrote.
    pub output: Vec<u8>,
}

impl Guest<'_> {
    /// Runs and waits; `progress` is told what the plugin says: instructions, cycles, seconds.
    ///
    /// # Errors
    /// The guest does not get as far as the region, or its end is not an orderly one.
    pub fn run(&self, mut progress: impl FnMut(Progress)) -> Result<Ended> {
        std::fs::create_dir_all(self.folder)
            .with_context(|| format!("cannot make {}", self.folder.display()))?;
        for old in [
            "stats.json",
            "stats.txt",
            "speed.json",
            "progress",
            "failure",
            "console",
            "output",
            "functions.json",
        ] {
            let _ = std::fs::remove_file(self.folder.join(old));
        }
        let snapshot = sim_snapshot::of(self.image, self.memory_mib, |seconds| {
            progress(Progress { seconds, ..Progress::default() })
        })?;
        let scratch = tempfile::tempdir()?;
        let mut child = self.start(&snapshot, scratch.path())?;
        let console = child.stdout.take().map(|output| std::thread::spawn(move || read_console(output)));
        let complaints = child.stderr.take().map(|errors| std::thread::spawn(move || read_all(errors)));
        let resumed = sim_snapshot::resume(&scratch.path().join("monitor"), &mut child);
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.wait_timeout(Duration::from_millis(200))? {
                break status;
            }
            if resumed.is_err() {
                child.kill()?;
            }
            progress(Progress::read(self.folder, started));
        };
        let console = console.and_then(|thread| thread.join().ok()).unwrap_or_default();
        let complaints = complaints.and_then(|thread| thread.join().ok()).unwrap_or_default();
        let _ = std::fs::write(self.folder.join("console"), &console.text);
        let _ = std::fs::write(self.folder.join("output"), &console.output);
        self.judge(&console, &complaints, status.success())
    }

    /// QEMU with the plugin, and what the guest's init will ask for.
    fn start(&self, snapshot: &Path, scratch: &Path) -> Result<Owned> {
        let plugin = plugin()?;
        std::fs::write(self.folder.join("machine.toml"), self.machine)
            .context("cannot write machine.toml")?;
        let file = self.program.unwrap_or(Path::new(&self.command[0]));
        let functions = sim_functions::of(self.image.tree.as_deref(), file, self.environment);
        std::fs::write(self.folder.join("functions.json"), functions.to_string())
            .context("cannot write functions.json")?;
        let joined =
            |words: &[String]| words.iter().flat_map(|word| word.bytes().chain([0])).collect::<Vec<u8>>();
        let mut items = vec![("command", joined(self.command)), ("environment", joined(self.environment))];
        if let Some(path) = self.program {
            let read = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            items.push(("program", read));
            items.push(("name", path.file_name().unwrap_or_default().as_encoded_bytes().to_vec()));
        }
        let mut command = sim_snapshot::restored(snapshot, self.memory_mib, &scratch.join("monitor"))?;
        for (name, content) in items {
            let path = scratch.join(name);
            std::fs::write(&path, content).context("cannot write what the guest runs")?;
            command.arg("-fw_cfg").arg(format!("name=opt/mayfly/{name},file={}", escaped(&path)));
        }
        let keep = if self.keeps_dram { ",keep=dram" } else { "" };
        let most = self.most_instructions;
        command
            .arg("-plugin")
            .arg(format!("{},out={},max={most}{keep}", escaped(&plugin), escaped(self.folder)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(Owned(command.spawn().context("cannot start QEMU")?))
    }

    /// What the files and the console say.
    fn judge(&self, console: &Console, complaints: &str, success: bool) -> Result<Ended> {
        let partial = || {
            let kept = self.folder.join("stats.json").is_file();
            if kept {
                format!("; partial statistics are in {}", self.folder.display())
            } else {
                String::new()
            }
        };
        if let Ok(line) = std::fs::read_to_string(self.folder.join("failure")) {
            bail!("{}", line.trim());
        }
        if let Some(panic) = console.text.lines().find(|line| line.contains("Kernel panic")) {
            bail!("the guest's kernel panicked: {}{}", panic.trim(), partial());
        }
        if let Some(name) = &console.missing {
            bail!(
                "{name}: no such program in the guest's image ; a static program of this machine is named as ./PROGRAM"
            );
        }
        if let Some(line) = complaints.lines().find(|line| line.contains("TCG plugin")) {
            bail!("the plugin does not fit this QEMU: {}", line.trim());
        }
        let text = std::fs::read_to_string(self.folder.join("stats.json")).map_err(|_| {
            let last = complaints.lines().next_back().unwrap_or("no message").trim();
            anyhow!(
                "QEMU ended before the program started: {last}; the guest's console is in {}",
                self.folder.join("console").display()
            )
        })?;
        let mut statistics: Map<String, Value> = serde_json::from_str(&text).context("stats.json")?;
        if let Ok(text) = std::fs::read_to_string(self.folder.join("speed.json"))
            && let Ok(speed) = serde_json::from_str::<Map<String, Value>>(&text)
        {
            statistics.extend(speed);
        }
        statistics.extend(self.image.made_with());
        let partial_reason = statistics.get("partial_reason").and_then(Value::as_str).map(str::to_owned);
        if let Some(reason) = partial_reason
            && reason != "max-instructions"
        {
            bail!(
                "the guest ended before the program did ({}){}",
                if success { "powered off" } else { "QEMU failed" },
                partial()
            );
        }
        Ok(Ended { statistics, output: console.output.clone() })
    }
}

/// What the plugin said last.
#[derive(Default)]
pub struct Progress {
    /// Instructions of the region; 0 while the guest boots.
    pub instructions: u64,
    /// Cycles of the region.
    pub cycles: u64,
    /// Wall time since the region's start, or since QEMU's.
    pub seconds: f64,
}

impl Progress {
    fn read(folder: &Path, started: Instant) -> Progress {
        let text = std::fs::read_to_string(folder.join("progress")).unwrap_or_default();
        let words: Vec<_> = text.split_whitespace().collect();
        match words[..] {
            [instructions, cycles, seconds] => Progress {
                instructions: instructions.parse().unwrap_or(0),
                cycles: cycles.parse().unwrap_or(0),
                seconds: seconds.parse().unwrap_or(0.0),
            },
            _ => Progress { seconds: started.elapsed().as_secs_f64(), ..Progress::default() },
        }
    }
}

/// The guest's console: its own lines, and the program's output between two of init's.
#[derive(Default)]
struct Console {
    text: String,
    output: Vec<u8>,
    missing: Option<String>,
}

fn read_console(from: impl Read) -> Console {
    let mut console = Console::default();
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line).into_owned();
        if let Some(size) =
            text.trim_end().strip_prefix("@sim output ").and_then(|size| size.parse::<u64>().ok())
        {
            // The serial line turns each \n into \r\n; what is left of the output is as the program wrote it.
            let mut raw = Vec::new();
            let mut taken = 0;
            while taken < size && reader.read_until(b'\n', &mut raw).is_ok_and(|read| read > 0) {
                if raw.ends_with(b"\r\n") {
                    raw.truncate(raw.len() - 2);
                    raw.push(b'\n');
                }
                let wanted = raw.len().min((size - taken) as usize);
                console.output.extend_from_slice(&raw[..wanted]);
                taken += wanted as u64;
                raw.clear();
            }
        } else if let Some(name) = text.trim_end().strip_prefix("@sim missing ") {
            console.missing = Some(name.to_owned());
        }
        console.text.push_str(&text);
        line.clear();
    }
    console
}

fn read_all(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// QEMU, which does not outlive this.
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
    /// It cannot be waited for.
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

/// It is killed when this process ends, however that comes.
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
