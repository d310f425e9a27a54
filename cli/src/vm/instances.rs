//! `mayfly vm spawn`, `run`, `output` and `stop`: instances in partitions.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use vm::control::{Client, Command, Output};
use vm::protocol::{Beginning, ExitReason, PartitionNumber, Spawn};
use vm::report::{Plugged, Spawned, Unplugged};

use crate::failure::{Failure, OWN_FAILURE};
use crate::quantity;
use crate::vm::partitions::unplugged_line;
use crate::vm::selector::{VmSelector, number_parser, print_json};

/// How long each `wait` request lasts while an instance runs, and the pause before output is read again.
const POLL: Duration = Duration::from_millis(100);

/// Attempts, one a second, to unplug before the partition is left to the user.
const UNPLUG_ATTEMPTS: u32 = 10;

/// The program to start, for `spawn` and `run`.
#[derive(Args)]
struct Program {
    /// A variable for its environment; may be given often
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Its working directory in the guest
    #[arg(long, value_name = "FOLDER")]
    cwd: Option<String>,
    /// The virtual CPUs it may run on, like 0,1 [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<u32>,
    /// How much virtual CPU time it may use, like 0.5 [default: all; where it is short, instances share it
    /// equally]
    #[arg(long, value_name = "N", value_parser = parse_vcpus)]
    vcpus: Option<u32>,
    /// The program in the guest and its arguments, after --
    #[arg(last = true, required = true, value_name = "CMD")]
    argv: Vec<String>,
}

impl Program {
    fn spawn(self, instance: String, partitions: &[PartitionNumber]) -> Spawn {
        let env: BTreeMap<_, _> = self.env.into_iter().collect();
        Spawn {
            instance,
            partition: partitions.first().copied(),
            more: partitions.iter().skip(1).copied().collect(),
            argv: self.argv,
            env,
            cwd: self.cwd,
            cpus: self.cpus,
            vcpus_milli: self.vcpus,
            waits_for_reader: false,
            beginning: Beginning::Command,
            confinement: None,
        }
    }
}

/// Thousandths of a vCPU; the kernel's minimum is 10.
fn parse_vcpus(text: &str) -> Result<u32, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.01..=64.0).contains(&number) => Ok((number * 1000.0).round() as u32),
        _ => Err("a number of vCPUs is 0.01 to 64".to_string()),
    }
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_string(), value.to_string())),
        _ => Err("a variable is NAME=VALUE".to_string()),
    }
}

/// Start an instance in a partition that is ready
#[derive(Args)]
pub struct SpawnArguments {
    /// Its name: letters, digits, '-', '_' and '.'
    instance: String,
    /// The partition it gets all its memory from [default: the first that is ready]; with commas: several,
    /// not in mode hotmem
    #[arg(short, long, value_name = "NUMBER,...", value_delimiter = ',', value_parser = number_parser())]
    partition: Vec<PartitionNumber>,
    /// No partition: boot memory, for tools
    #[arg(long, conflicts_with = "partition")]
    outside: bool,
    /// Write standard input to the instance's, and close it
    #[arg(long)]
    stdin: bool,
    #[command(flatten)]
    program: Program,
    #[command(flatten)]
    vm: VmSelector,
}

impl SpawnArguments {
    /// Starts the instance and returns while it runs.
    ///
    /// # Errors
    /// No partition is ready, or the program cannot be started.
    pub fn execute(self) -> Result<i32> {
        let mut input = String::new();
        if self.stdin {
            std::io::stdin().read_to_string(&mut input).context("cannot read standard input")?;
        }
        let mut client = self.vm.connect()?;
        let spawn = self.program.spawn(self.instance, &self.partition);
        let spawned: Spawned = client.ask(&Command::Spawn { outside: self.outside, spawn })?;
        if self.stdin {
            let instance = spawned.instance.clone();
            client.ask::<()>(&Command::Input { instance, text: input, close: true })?;
        }
        if self.vm.json {
            print_json(&spawned)?;
            return Ok(0);
        }
        let all: Vec<_> =
            spawned.partition.iter().chain(&spawned.more).map(PartitionNumber::to_string).collect();
        let place = match &all[..] {
            [] => "no partition".to_string(),
            [one] => format!("partition {one}"),
            several => format!("partitions {}", several.join(", ")),
        };
        let took = quantity::duration(spawned.total_ns as f64);
        println!("{} started in {place} as process {} in {took}", spawned.instance, spawned.pid);
        Ok(0)
    }
}

const RUN_EXAMPLES: &str = "\
Examples:
  mayfly vm run -- python3 -c 'print(6*7)'
  mayfly vm run --times -- python3 -c 'print(6*7)'    and how long each step took, on stderr

Exit code: the program's, 128 + the signal that ended it, 137 if it needed more than its partition
has; 125 if mayfly itself fails.";

/// Plug a partition, run a program in it, and unplug it
#[derive(Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunArguments {
    /// Print on stderr how long each step took
    #[arg(long)]
    times: bool,
    #[command(flatten)]
    program: Program,
    #[command(flatten)]
    vm: VmSelector,
}

impl RunArguments {
    /// Runs the program, and prints its output as it is written. Ctrl-C stops it and unplugs the partition.
    ///
    /// # Errors
    /// The VM, or the partition, cannot do it.
    pub fn execute(self) -> Result<i32> {
        let own = |error: anyhow::Error| anyhow::Error::from(Failure::new(OWN_FAILURE, format!("{error:#}")));
        self.run().map_err(own)
    }

    fn run(self) -> Result<i32> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted)).context("cannot take signals")?;
        }
        let (json, times) = (self.vm.json, self.times);
        let mut client = self.vm.connect()?;
        let plugged: Plugged = client.ask(&Command::Plug { partition: None })?;
        let partition = plugged.partition;
        let instance = format!("run-{}", std::process::id());
        let mut spawn = self.program.spawn(instance.clone(), &[partition]);
        spawn.waits_for_reader = true;
        let ran = run_in_partition(&mut client, spawn, &interrupted, json);
        // In every case: unplug the partition.
        if ran.is_err() {
            let _ = client.ask::<ExitReason>(&Command::Stop { instance, grace_ms: 0 });
        }
        let unplugged = unplug(&mut client, partition);
        let (spawned, reason, output) = ran?;
        let unplugged = unplugged?;
        if json {
            print_json(&json!({
                "exit": reason, "output": String::from_utf8_lossy(&output), "plugged": plugged, "spawned": spawned, "unplugged": unplugged,
            }))?;
        } else if times {
            eprintln!("partition {partition} plugged in {}", quantity::duration(plugged.total_ns as f64));
            eprintln!("{} started in {}", spawned.instance, quantity::duration(spawned.total_ns as f64));
            eprintln!("{}", unplugged_line(&unplugged));
        }
        Ok(exit_code(reason))
    }
}

/// Unplugs the partition, also when the agent has just died and must come back first.
fn unplug(client: &mut Client, partition: PartitionNumber) -> Result<Unplugged> {
    let mut attempts = 0;
    loop {
        match client.ask(&Command::Unplug { partition }) {
            Ok(unplugged) => return Ok(unplugged),
            Err(error @ vm::Error::Ended(_)) => return Err(error.into()),
            Err(error) if attempts == UNPLUG_ATTEMPTS => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_secs(1)),
        }
        attempts += 1;
    }
}

fn run_in_partition(
    client: &mut Client,
    spawn: Spawn,
    interrupted: &AtomicBool,
    quiet: bool,
) -> Result<(Spawned, ExitReason, Vec<u8>)> {
    let spawned: Spawned = client.ask(&Command::Spawn { outside: false, spawn })?;
    let instance = spawned.instance.clone();
    let mut all = Vec::new();
    let mut from = 0;
    loop {
        let timeout_ms = POLL.as_millis() as u64;
        let reason: Option<ExitReason> =
            client.ask(&Command::Wait { instance: instance.clone(), timeout_ms })?;
        // The instance waits while the agent keeps as much output as it can, so this reads all there is.
        let mut show = || show_more(client, &instance, &mut from, quiet.then_some(&mut all));
        while show()? == Shown::Something {}
        if let Some(reason) = reason {
            // Its processes have ended; the agent may still read what is left in the pipe. An agent that died
            // has lost that.
            while reason != ExitReason::AgentLost && show()? != Shown::All {
                std::thread::sleep(POLL / 10);
            }
            if reason == ExitReason::Overflow {
                eprintln!("mayfly: {instance} needed more memory than its partition has and was killed");
            }
            return Ok((spawned, reason, all));
        }
        if interrupted.load(Ordering::Relaxed) {
            let _: ExitReason = client.ask(&Command::Stop { instance: instance.clone(), grace_ms: 2000 })?;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Something,
    Nothing,
    All,
}

/// Prints an instance's output since `from`, or adds it to `into`.
fn show_more(
    client: &mut Client,
    instance: &str,
    from: &mut u64,
    into: Option<&mut Vec<u8>>,
) -> Result<Shown> {
    let output: Output = client.ask(&Command::Output { instance: instance.to_string(), from: *from })?;
    if output.from > *from {
        eprintln!(
            "mayfly: {} bytes of the output of {instance} came too fast and are lost",
            output.from - *from
        );
    }
    *from = output.next;
    match into {
        Some(all) => all.extend(&output.bytes),
        None => {
            let mut stdout = std::io::stdout();
            stdout
                .write_all(&output.bytes)
                .and_then(|()| stdout.flush())
                .context("cannot write the output")?;
        }
    }
    Ok(match (output.bytes.is_empty(), output.ended) {
        (false, _) => Shown::Something,
        (true, true) => Shown::All,
        (true, false) => Shown::Nothing,
    })
}

fn exit_code(reason: ExitReason) -> i32 {
    match reason {
        ExitReason::Code { code } => code,
        ExitReason::Signal { signal } => 128 + signal,
        ExitReason::Extension { how, .. } => exit_code(*how),
        ExitReason::Overflow => 137,
        ExitReason::AgentLost => OWN_FAILURE,
    }
}

/// Show an instance's output to stdout and stderr
#[derive(Args)]
pub struct OutputArguments {
    /// Its name; also of an instance that ended lately
    instance: String,
    /// Follow the output until the instance has ended
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    vm: VmSelector,
}

impl OutputArguments {
    /// Prints it.
    ///
    /// # Errors
    /// No such instance was started.
    pub fn execute(self) -> Result<i32> {
        let mut client = self.vm.connect()?;
        let mut from = 0;
        let mut all = Vec::new();
        loop {
            let into = self.vm.json.then_some(&mut all);
            match show_more(&mut client, &self.instance, &mut from, into)? {
                Shown::Something => {}
                Shown::Nothing if self.follow => std::thread::sleep(POLL),
                Shown::Nothing | Shown::All => break,
            }
        }
        if self.vm.json {
            print_json(&json!({ "output": String::from_utf8_lossy(&all) }))?;
        }
        Ok(0)
    }
}

/// End an instance; its partition is ready again when all its processes have ended
#[derive(Args)]
pub struct StopArguments {
    /// Its name
    instance: String,
    /// Between SIGTERM and SIGKILL
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = quantity::parse_duration)]
    grace: Duration,
    #[command(flatten)]
    vm: VmSelector,
}

impl StopArguments {
    /// Stops it and prints how it ended.
    ///
    /// # Errors
    /// No such instance runs, or the guest does not end it in time.
    pub fn execute(self) -> Result<i32> {
        let mut client = self.vm.connect()?;
        let grace_ms = self.grace.as_millis() as u64;
        let reason: ExitReason = client.ask(&Command::Stop { instance: self.instance.clone(), grace_ms })?;
        if self.vm.json {
            print_json(&json!({ "instance": self.instance, "exit": reason }))?;
            return Ok(0);
        }
        println!("{} {}", self.instance, ended(reason));
        Ok(0)
    }
}

fn ended(reason: ExitReason) -> String {
    match reason {
        ExitReason::Code { code } => format!("exited with code {code}"),
        ExitReason::Signal { signal } => format!("was ended by signal {signal}"),
        ExitReason::Extension { name, how } => format!("ended, as its extension {name} {}", ended(*how)),
        ExitReason::Overflow => "needed more memory than its partition has and was killed".to_string(),
        ExitReason::AgentLost => "ended with the guest's agent".to_string(),
    }
}
