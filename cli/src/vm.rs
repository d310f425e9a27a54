//! `mayfly vm`: VMs whose memory comes back at once, from the command line.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde::Serialize;
use vm::control::Client;

use crate::vm_boot::{BootArguments, ImageArguments};
use crate::vm_instances::{OutputArguments, RunArguments, SpawnArguments, StopArguments};
use crate::vm_partitions::{PlugArguments, UnplugArguments};
use crate::vm_state::{ConsoleArguments, DownArguments, ListArguments, StatsArguments};

const EXAMPLES: &str = "\
A VM has N partitions (the concurrency factor). A partition has no memory until it is plugged; one
instance lives in it with all its processes; once it is empty its memory goes back to the host in
one step, and no page of another instance is moved.

From nothing:
  mayfly vm image                           build what VMs boot: Debian, a kernel, an agent
  mayfly vm boot --detach                   start a VM: 4 partitions of 256 MiB, all absent
  mayfly vm run -- python3 -c 'print(6*7)'  plug a partition, run in it, unplug it

Step by step:
  mayfly vm plug 0
  mayfly vm spawn job -- python3 -m http.server
  mayfly vm list
  mayfly vm stop job
  mayfly vm unplug 0
  mayfly vm down

With several VMs, each verb takes --vm NAME. Every verb has --json.";

/// VMs whose memory comes back at once: a partition of hot-plugged memory for each instance
#[derive(Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct VmArguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Image(ImageArguments),
    Boot(BootArguments),
    List(ListArguments),
    Plug(PlugArguments),
    Spawn(SpawnArguments),
    Run(RunArguments),
    Output(OutputArguments),
    Stop(StopArguments),
    Unplug(UnplugArguments),
    Stats(StatsArguments),
    Console(ConsoleArguments),
    Down(DownArguments),
}

impl VmArguments {
    /// Does what was asked for; returns the exit code.
    ///
    /// # Errors
    /// One line that says what is wrong and what to do.
    pub fn execute(self) -> Result<i32> {
        match self.verb {
            Verb::Image(arguments) => arguments.execute(),
            Verb::Boot(arguments) => arguments.execute(),
            Verb::List(arguments) => arguments.execute(),
            Verb::Plug(arguments) => arguments.execute(),
            Verb::Spawn(arguments) => arguments.execute(),
            Verb::Run(arguments) => arguments.execute(),
            Verb::Output(arguments) => arguments.execute(),
            Verb::Stop(arguments) => arguments.execute(),
            Verb::Unplug(arguments) => arguments.execute(),
            Verb::Stats(arguments) => arguments.execute(),
            Verb::Console(arguments) => arguments.execute(),
            Verb::Down(arguments) => arguments.execute(),
        }
    }
}

/// Which VM, and how to answer: the same for every verb.
#[derive(Args)]
pub struct Which {
    /// The VM [default: the only one that runs]
    #[arg(long, value_name = "NAME", display_order = 90)]
    vm: Option<String>,
    /// Print one JSON object instead of a table
    #[arg(long, display_order = 91)]
    pub json: bool,
}

impl Which {
    /// Connects to its supervisor.
    ///
    /// # Errors
    /// There is no such VM.
    pub fn connect(&self) -> Result<Client> {
        Ok(Client::connect(self.vm.as_deref())?)
    }
}

/// Prints an object for programs.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}
