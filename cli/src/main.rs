//! `mayfly`: memory for programs that live briefly, verb by verb: objects, pages, virtual machines, functions.

use std::io::IsTerminal;

use clap::{Parser, Subcommand};
use mayfly_cli::failure::{Failure, OWN_FAILURE};
use mayfly_cli::load::LoadArguments;
use mayfly_cli::node::NodeArguments;
use mayfly_cli::predict::PredictArguments;
use mayfly_cli::profile::ProfileArguments;
use mayfly_cli::record::TraceArguments;
use mayfly_cli::replay::ReplayArguments;
use mayfly_cli::report::ReportArguments;
use mayfly_cli::run::RunArguments;
use mayfly_cli::share::ShareArguments;
use mayfly_cli::sim::SimArguments;
use mayfly_cli::train::TrainArguments;
use mayfly_cli::up::UpArguments;
use mayfly_cli::vm::VmArguments;
use mayfly_cli::{heap_driver, heap_replay};

const EXAMPLES: &str = "\
Objects: a heap that packs them by when they will die
  mayfly run --stats -- python3 script.py     and what the heap did, as a table
  mayfly profile -- ./app                     how long objects of each calling context live
  mayfly train app.parquet -o app.model       learn from that
  mayfly run --model app.model -- ./app       and predict it
  mayfly trace -o app.trace -- ./app          record every allocation
  mayfly replay app.trace --plot memory.svg   which pages they kept, over time

Pages: one copy of what is the same in several processes
  mayfly share                                the page store; programs call mayfly_advise

Containers: both, without a change of their images
  mayfly node                                 the agent of a node: CDI devices, pods' annotations

Virtual machines: memory that comes back at once
  mayfly vm boot --detach && mayfly vm run -- CMD

Hardware: a CPU that allocates objects and pages itself, simulated
  mayfly sim --compare -- churn               today's CPU, then one with Memento

Functions: AWS Lambda's interfaces on one machine
  mayfly up template.yaml
  mayfly report -o report.html                its run so far in one file

`mayfly VERB --help` explains each verb with examples.";

/// Memory for programs that live briefly
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
    Train(TrainArguments),
    Predict(PredictArguments),
    Trace(TraceArguments),
    Replay(ReplayArguments),
    Share(ShareArguments),
    Node(NodeArguments),
    Up(UpArguments),
    Load(LoadArguments),
    Report(ReportArguments),
    Vm(VmArguments),
    Sim(SimArguments),
}

/// Lines of the log that wait for stderr to take them; more are lost.
const LINES_THAT_WAIT: usize = 4096;

fn main() {
    let arguments: Vec<_> = std::env::args_os().take(3).collect();
    // Before anything else is allocated: this process is measured.
    if let [_, verb, slots] = &arguments[..]
        && verb == heap_replay::DRIVER_VERB
    {
        std::process::exit(heap_driver::drive(&slots.to_string_lossy()));
    }
    // While there is one thread: it makes namespaces.
    if let [_, verb] = &arguments[..]
        && verb == worker::sandbox::LAUNCHER_VERB
    {
        std::process::exit(worker::sandbox::launch());
    }
    let mayfly = Mayfly::parse();
    let level = match mayfly.verb {
        _ if mayfly.verbose => tracing::Level::DEBUG,
        Verb::Up(_) => tracing::Level::INFO,
        Verb::Share(ref arguments) if arguments.serves() => tracing::Level::INFO,
        Verb::Node(_) => tracing::Level::INFO,
        _ => tracing::Level::WARN,
    };
    // On a thread of its own: whoever reads our stderr slowly, or not at all, holds up nothing but lines.
    let (writer, flushed_when_dropped) = tracing_appender::non_blocking::NonBlockingBuilder::default()
        .buffered_lines_limit(LINES_THAT_WAIT)
        .finish(std::io::stderr());
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(writer)
        .with_ansi(colours)
        .without_time()
        .init();
    let (outcome, failure_code) = match mayfly.verb {
        Verb::Run(arguments) => (arguments.execute(), OWN_FAILURE),
        Verb::Profile(arguments) => (arguments.execute(), OWN_FAILURE),
        Verb::Predict(arguments) => (arguments.execute(), 1),
        Verb::Trace(arguments) => (arguments.execute(), OWN_FAILURE),
        Verb::Train(arguments) => (arguments.execute(), 1),
        Verb::Replay(arguments) => (arguments.execute(), 1),
        Verb::Share(arguments) => (arguments.execute(), 1),
        Verb::Node(arguments) => (arguments.execute(), 1),
        Verb::Up(arguments) => (arguments.execute(), 1),
        Verb::Load(arguments) => (arguments.execute(), 1),
        Verb::Report(arguments) => (arguments.execute(), 1),
        Verb::Vm(arguments) => (arguments.execute(), 1),
        Verb::Sim(arguments) => (arguments.execute(), OWN_FAILURE),
    };
    drop(flushed_when_dropped);
    std::process::exit(outcome.unwrap_or_else(|error| {
        eprintln!("mayfly: {error:#}");
        error.downcast_ref::<Failure>().map_or(failure_code, |failure| failure.exit_code)
    }));
}
