//! A simulated guest: its image, QEMU with the plugin, and the result of its run.

pub mod checkpoint;
mod console;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value};

use crate::quantity;
use crate::sim::files::{self, HostFile};
use crate::sim::functions;
use crate::sim::image::Image;
use crate::sim::qemu::{self, Owned, escaped};
use crate::sim::snapshot;
use crate::sim::stop::Stop;

use console::{Console, read_all, read_console};

/// How long QEMU has to write what was counted when it is to end early.
const ENDING: Duration = Duration::from_secs(30);

/// One run of one command.
pub struct Guest<'a> {
    /// The image that it boots.
    pub image: &'a Image,
    /// The program and its arguments.
    pub command: &'a [String],
    /// A file of the host that is copied into the guest: the program, or a library for it.
    pub file: Option<&'a HostFile>,
    /// The file is a library.
    pub is_library: bool,
    /// Others that are copied.
    pub others: &'a [HostFile],
    /// Variables, as NAME=VALUE.
    pub environment: &'a [String],
    /// The machine, as TOML.
    pub machine: &'a str,
    /// Whether DRAM's requests are kept in the folder.
    pub keeps_dram: bool,
    /// Whether the folder keeps how often each block was entered.
    pub keeps_blocks: bool,
    /// The file for the region's instructions.
    pub trace: Option<&'a Path>,
    /// The folder gets statistics of each so many instructions.
    pub interval: Option<u64>,
    /// The machine has a thread of its own.
    pub has_two_threads: bool,
    /// Stop after so many instructions of the region; 0: never.
    pub most_instructions: u64,
    /// The number of cores.
    pub cores: usize,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// The folder for statistics, console and progress.
    pub folder: &'a Path,
    /// The folder is the user's, and stays.
    pub is_kept: bool,
    /// The run starts from a checkpoint at the region's start.
    pub is_from_checkpoint: bool,
    /// A request to end early.
    pub stop: &'a Stop,
}

/// The result of a run.
pub struct Ended {
    /// The statistics; partial ones are marked.
    pub statistics: Map<String, Value>,
    /// The program's output.
    pub output: Vec<u8>,
}

impl Guest<'_> {
    /// Runs the guest to its end; `progress` receives the plugin's instructions, cycles and seconds.
    ///
    /// # Errors
    /// The guest does not reach the region, or does not end in an orderly way.
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
            "blocks.tsv",
            "intervals.jsonl",
        ] {
            let _ = std::fs::remove_file(self.folder.join(old));
        }
        let mut starting = |seconds| {
            progress(Progress { seconds, ..Progress::default() });
            if self.stop.is_wanted() { Err(self.stop.error(" as the guest booted")) } else { Ok(()) }
        };
        let items = self.items()?;
        let made = snapshot::of(self.image, self.cores, self.memory_mib, &mut starting).and_then(|booted| {
            if self.is_from_checkpoint {
                return checkpoint::of(self, &booted, &items, &mut starting);
            }
            Ok((booted, String::new()))
        });
        let (state, words) = match made {
            Err(_) if self.stop.is_wanted() => return Err(self.stop.error(" as the guest booted")),
            made => made?,
        };
        let scratch = tempfile::tempdir()?;
        let mut child = self.start(&state, scratch.path(), &items, &words)?;
        let console = child.stdout.take().map(|output| std::thread::spawn(move || read_console(output)));
        let complaints = child.stderr.take().map(|errors| std::thread::spawn(move || read_all(errors)));
        let resumed = snapshot::resume(&scratch.path().join("monitor"), &mut child).map(drop);
        let started = Instant::now();
        let mut asked: Option<Instant> = None;
        let status = loop {
            if let Some(status) = child.wait_timeout(Duration::from_millis(200))? {
                break status;
            }
            if resumed.is_err() || asked.is_some_and(|asked| asked.elapsed() > ENDING) {
                child.kill()?;
            } else if self.stop.is_wanted() && asked.is_none() {
                asked = Some(Instant::now());
                child.ask_to_end();
            }
            progress(Progress::read(self.folder, started));
        };
        let console = console.and_then(|thread| thread.join().ok()).unwrap_or_default();
        let complaints = complaints.and_then(|thread| thread.join().ok()).unwrap_or_default();
        let _ = std::fs::write(self.folder.join("console"), &console.text);
        let _ = std::fs::write(self.folder.join("output"), &console.output);
        self.judge(&console, &complaints, status)
    }

    /// What the guest's init requests of QEMU: the command, its environment, and files.
    fn items(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        let joined =
            |words: &[String]| words.iter().flat_map(|word| word.bytes().chain([0])).collect::<Vec<u8>>();
        let mut items = vec![("command", joined(self.command)), ("environment", joined(self.environment))];
        let all: Vec<_> = self.file.into_iter().chain(self.others).cloned().collect();
        if !all.is_empty() {
            items.push(("files", files::packed(&all)?));
        }
        Ok(items)
    }

    /// Starts QEMU from `state` with the plugin, which gets `words`, too, and with these items for the guest.
    fn start(
        &self,
        state: &Path,
        scratch: &Path,
        items: &[(&'static str, Vec<u8>)],
        words: &str,
    ) -> Result<Owned> {
        let plugin = qemu::plugin()?;
        std::fs::write(self.folder.join("machine.toml"), self.machine)
            .context("cannot write machine.toml")?;
        let functions = functions::of(self.image.tree.as_deref(), &self.program_files());
        std::fs::write(self.folder.join("functions.json"), functions.to_string())
            .context("cannot write functions.json")?;
        let mut command = snapshot::restored(state, self.cores, self.memory_mib, &scratch.join("monitor"))?;
        for (name, content) in items {
            let path = scratch.join(name);
            std::fs::write(&path, content).context("cannot write the guest's command")?;
            command.arg("-fw_cfg").arg(format!("name=opt/mayfly/{name},file={}", escaped(&path)));
        }
        let mut keep = String::new();
        for (is_kept, name) in [(self.keeps_dram, "dram"), (self.keeps_blocks, "blocks")] {
            if is_kept {
                keep += &format!(",keep={name}");
            }
        }
        if let Some(path) = self.trace {
            keep += &format!(",trace={}", escaped(path));
        }
        if let Some(every) = self.interval {
            keep += &format!(",interval={every}");
        }
        if self.has_two_threads {
            keep += ",threads=2";
        }
        let most = self.most_instructions;
        command
            .arg("-plugin")
            .arg(format!("{},out={},max={most}{keep}{words}", escaped(&plugin), escaped(self.folder)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(Owned(command.spawn().context("cannot start QEMU")?))
    }

    /// The program's file, and the libraries that are preloaded into it.
    fn program_files(&self) -> Vec<PathBuf> {
        let command = Path::new(&self.command[0]);
        let file = self.file.map(|file| file.from.as_path());
        let (program, library) =
            if self.is_library { (command, file) } else { (file.unwrap_or(command), None) };
        functions::files(self.image.tree.as_deref(), program, library, self.environment)
    }

    /// What was counted of a run that did not come to its end, for the end of a line.
    fn counted(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.folder.join(name)).ok();
        let statistics =
            read("stats.json").and_then(|text| serde_json::from_str::<Map<String, Value>>(&text).ok());
        let numbers = match &statistics {
            Some(found) => {
                ["instructions", "cycles"].map(|key| found.get(key).and_then(Value::as_u64).unwrap_or(0))
            }
            None => {
                let last = Progress::read(self.folder, Instant::now());
                [last.instructions, last.cycles]
            }
        };
        let [instructions, cycles] = numbers.map(quantity::count);
        match (&statistics, self.is_kept) {
            _ if numbers[0] == 0 => " before the program was counted".to_owned(),
            (Some(_), true) => {
                format!(
                    " after {instructions} instructions; partial statistics are in {}",
                    self.folder.display()
                )
            }
            (_, true) => format!(" after {instructions} instructions in {cycles} cycles"),
            (Some(_), false) => {
                format!(
                    " after {instructions} instructions in {cycles} cycles; --out FOLDER keeps all that was counted"
                )
            }
            (None, false) => format!(" after {instructions} instructions in {cycles} cycles"),
        }
    }

    /// The result, from the files and the console.
    fn judge(&self, console: &Console, complaints: &str, status: ExitStatus) -> Result<Ended> {
        let kept = |reason: String| anyhow!("{reason}{}", self.counted());
        if let Ok(line) = std::fs::read_to_string(self.folder.join("failure")) {
            bail!("{}", line.trim());
        }
        if let Some(panic) = console.text.lines().find(|line| line.contains("Kernel panic")) {
            return Err(kept(format!("the guest's kernel panicked: {}", panic.trim())));
        }
        if let Some(line) = &console.refused {
            bail!("{line}");
        }
        if self.stop.is_wanted() {
            return Err(self.stop.error(&self.counted()));
        }
        if let Some(line) = qemu::unfit(complaints) {
            bail!("{line}");
        }
        if let Some(signal) = status.signal() {
            let short = if signal == libc::SIGKILL { " (the kernel kills when memory is short)" } else { "" };
            return Err(kept(format!("QEMU was ended by signal {signal}{short}")));
        }
        let text = std::fs::read_to_string(self.folder.join("stats.json")).map_err(|_| {
            let last = complaints.lines().next_back().unwrap_or("no message").trim();
            let console = match console.text.lines().rfind(|line| !line.trim().is_empty()) {
                Some(line) => format!("; the guest's console ends with: {}", line.trim()),
                None => String::new(),
            };
            anyhow!("QEMU ended before the program started: {last}{console}")
        })?;
        let mut statistics: Map<String, Value> = serde_json::from_str(&text).context("stats.json")?;
        if let Ok(text) = std::fs::read_to_string(self.folder.join("speed.json"))
            && let Ok(speed) = serde_json::from_str::<Map<String, Value>>(&text)
        {
            statistics.extend(speed);
        }
        statistics.extend(self.image.made_with());
        statistics.insert("made_with.program".into(), functions::digest(&self.program_files()).into());
        let partial_reason = statistics.get("partial_reason").and_then(Value::as_str).map(str::to_owned);
        if let Some(reason) = partial_reason
            && reason != "max-instructions"
        {
            let how = if status.success() { "powered off" } else { "QEMU failed" };
            return Err(kept(format!("the guest ended before the program did ({how})")));
        }
        Ok(Ended { statistics, output: console.output.clone() })
    }
}

/// The plugin's last report.
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
