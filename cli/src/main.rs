//! `mayfly`: memory for short-lived programs, verb by verb: objects, pages, virtual machines, functions.

use std::io::IsTerminal;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use mayfly_cli::command::{IS_WHOLE, Mayfly, Verb};
use mayfly_cli::failure::Failure;

/// What one thread of a worker has allocated another frees, some hundred times a request: with glibc's malloc
/// that is a sixth of its processor time (docs/decisions/allocator-of-the-worker.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let arguments: Vec<_> = std::env::args_os().take(5).collect();
    #[cfg(feature = "objects")]
    mayfly_cli::objects::run_helper(&arguments);
    // While there is one thread: it makes namespaces.
    if let [_, verb] = &arguments[..]
        && verb == worker::LAUNCHER_VERB
    {
        std::process::exit(worker::launch());
    }
    let mayfly = Mayfly::try_parse().unwrap_or_else(|error| {
        if error.kind() == ErrorKind::InvalidSubcommand && !IS_WHOLE {
            eprintln!("mayfly: this build has only what `make demo` uses: `make build` makes all verbs");
        }
        error.exit()
    });
    let level = match mayfly.verb {
        _ if mayfly.verbose => tracing::Level::DEBUG,
        Verb::Up(_) => tracing::Level::INFO,
        Verb::Share(ref arguments) if arguments.serves() => tracing::Level::INFO,
        #[cfg(feature = "node")]
        Verb::Node(_) => tracing::Level::INFO,
        _ => tracing::Level::WARN,
    };
    let (writer, flushed_when_dropped) = mayfly_cli::log::start(std::io::stderr()).unwrap_or_else(|error| {
        eprintln!("mayfly: cannot start a thread: {error}");
        std::process::exit(1)
    });
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(writer);
    match mayfly.verb {
        Verb::Up(ref arguments) if arguments.logs_json() => log.json().flatten_event(true).init(),
        _ => log.with_ansi(std::io::stderr().is_terminal()).without_time().init(),
    }
    let (outcome, failure_code) = match mayfly.verb {
        #[cfg(feature = "objects")]
        Verb::Objects(verb) => verb.execute(),
        Verb::Share(arguments) => (arguments.execute(), 1),
        #[cfg(feature = "node")]
        Verb::Node(arguments) => (arguments.execute(), 1),
        Verb::Up(arguments) => (arguments.execute(), 1),
        Verb::Load(arguments) => (arguments.execute(), 1),
        Verb::Report(arguments) => (arguments.execute(), 1),
        Verb::Vm(arguments) => (arguments.execute(), 1),
        #[cfg(feature = "sim")]
        Verb::Sim(arguments) => (arguments.execute(), mayfly_cli::failure::OWN_FAILURE),
        Verb::Manual(arguments) => (arguments.execute(Mayfly::command()), 1),
    };
    drop(flushed_when_dropped);
    std::process::exit(outcome.unwrap_or_else(|error| {
        eprintln!("mayfly: {error:#}");
        error.downcast_ref::<Failure>().map_or(failure_code, |failure| failure.exit_code)
    }));
}
