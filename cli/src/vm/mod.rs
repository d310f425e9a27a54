//! `mayfly vm`: VMs whose memory returns to the host at once, from the command line.

pub mod boot;
pub mod instances;
pub mod partitions;
pub mod selector;
pub mod state;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::vm::boot::{BootArguments, ImageArguments};
use crate::vm::instances::{OutputArguments, RunArguments, SpawnArguments, StopArguments};
use crate::vm::partitions::{PlugArguments, UnplugArguments};
use crate::vm::state::{ConsoleArguments, DownArguments, ListArguments, StatsArguments};

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

/// VMs whose memory returns to the host at once: a partition of hot-plugged memory for each instance
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
    /// Runs the verb; returns the exit code.
    ///
    /// # Errors
    /// One line: what is wrong, and what to do about it.
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
