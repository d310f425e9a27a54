//! `mayfly`: run programs on the lifetime-aware heap, record their allocations, and replay them.

use clap::{Parser, Subcommand};
use mayfly_cli::failure::{Failure, OWN_FAILURE};
use mayfly_cli::profile::ProfileArguments;
use mayfly_cli::record::TraceArguments;
use mayfly_cli::replay::ReplayArguments;
use mayfly_cli::run::RunArguments;
use mayfly_cli::vm::VmArguments;
use mayfly_cli::{heap_driver, heap_replay};

const EXAMPLES: &str = "\
Begin with:
  mayfly run -- redis-server                  the server on Mayfly's heap
  mayfly run --stats -- python3 script.py     and what the heap did, as a table

Look closer:
  mayfly profile -- ./app                     how long objects of each calling context live
  mayfly trace -o app.trace -- ./app          record every allocation
  mayfly replay app.trace --plot memory.svg   which pages they kept, over time

`mayfly VERB --help` explains each verb with examples.";

/// Memory for programs that live briefly: a heap that packs objects by when they will die
#[derive(Parser)]
#[command(name = "mayfly", version, after_help = EXAMPLES, arg_required_else_help = true)]
struct Mayfly {
    /// Tell on stderr what is done: the library found, the variables set
    #[arg(short, long, global = true, display_order = 100)]
    verbose: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Run(RunArguments),
    Profile(ProfileArguments),
    Trace(TraceArguments),
    Replay(ReplayArguments),
    Vm(VmArguments),
}

fn main() {
    let arguments: Vec<_> = std::env::args_os().take(3).collect();
    // Before anything else is allocated: this process is measured.
    if let [_, verb, slots] = &arguments[..]
        && verb == heap_replay::DRIVER_VERB
    {
        std::process::exit(heap_driver::drive(&slots.to_string_lossy()));
    }
    let mayfly = Mayfly::parse();
    let level = if mayfly.verbose { tracing::Level::DEBUG } else { tracing::Level::WARN };
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).without_time().init();
    let (outcome, failure_code) = match mayfly.verb {
        Verb::Run(arguments) => (arguments.execute(), OWN_FAILURE),
        Verb::Profile(arguments) => (arguments.execute(), OWN_FAILURE),
        Verb::Trace(arguments) => (arguments.execute(), OWN_FAILURE),
        Verb::Replay(arguments) => (arguments.execute(), 1),
        Verb::Vm(arguments) => (arguments.execute(), 1),
    };
    std::process::exit(outcome.unwrap_or_else(|error| {
        eprintln!("mayfly: {error:#}");
        error.downcast_ref::<Failure>().map_or(failure_code, |failure| failure.exit_code)
    }));
}
