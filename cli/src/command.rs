//! The command line as clap declares it: the source of `mayfly --help`, man pages and completions.

use clap::{Parser, Subcommand};

use crate::manual::ManualArguments;
#[cfg(feature = "node")]
use crate::node::NodeArguments;
#[cfg(feature = "objects")]
use crate::objects::ObjectVerb;
use crate::share::ShareArguments;
#[cfg(feature = "sim")]
use crate::sim::SimArguments;
use crate::vm::VmArguments;
use crate::worker::load::LoadArguments;
use crate::worker::report::ReportArguments;
use crate::worker::up::UpArguments;

const EXAMPLES: &str = "\
Objects: a heap that packs them by when they will die
  mayfly run --stats -- python3 script.py     with the heap's statistics as a table
  mayfly profile -- ./app                     how long objects of each calling context live
  mayfly train app.parquet -o app.mayfly-model
                                              learn from that profile
  mayfly run --model app.mayfly-model -- ./app
                                              predict lifetimes with the model
  mayfly bind app.mayfly-model -o new.mayfly-model -- ./new
                                              the model for a new build, by functions' names
  mayfly who 1234                             which part of a process's memory is malloc's, and who has the rest
  mayfly trace -o app.trace -- ./app          record every allocation
  mayfly replay app.trace --plot memory.svg   pages kept by live objects, over time

Pages: one copy of identical pages of several processes
  mayfly share                                the page store; programs call mayfly_advise

Containers: both, without a change of their images
  mayfly node                                 the agent of a node: CDI devices, pods' annotations

Virtual machines: memory that returns to the host at once
  mayfly vm boot --detach && mayfly vm run -- CMD

Hardware: a CPU that allocates objects and pages itself, simulated
  mayfly sim --compare -- churn               today's CPU, then one with Memento

Functions: AWS Lambda's interfaces on one machine
  mayfly up template.yaml
  mayfly report --worker 127.0.0.1:8080 -o run.html     a worker's run so far in one file

`mayfly VERB --help` explains each verb with examples.";

/// Memory for programs that live briefly
#[derive(Parser)]
#[command(name = "mayfly", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Mayfly {
    /// Log each step on stderr
    #[arg(short, long, global = true, display_order = 100)]
    pub verbose: bool,
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Whether this build has every verb: the demo's does without most.
pub const IS_WHOLE: bool = cfg!(all(feature = "node", feature = "objects", feature = "sim"));

/// The verbs.
#[derive(Subcommand)]
#[allow(missing_docs)] // each is explained where its arguments are
pub enum Verb {
    #[cfg(feature = "objects")]
    #[command(flatten)]
    Objects(ObjectVerb),
    Share(ShareArguments),
    #[cfg(feature = "node")]
    Node(NodeArguments),
    Up(UpArguments),
    Load(LoadArguments),
    Report(ReportArguments),
    Vm(VmArguments),
    #[cfg(feature = "sim")]
    Sim(SimArguments),
    #[command(hide = true)]
    Manual(ManualArguments),
}
