//! `mayfly`: memory for short-lived programs, verb by verb: objects, pages, virtual machines, functions.

use std::io::IsTerminal;

use clap::{CommandFactory, Parser};
use mayfly_cli::command::{Mayfly, Verb};
use mayfly_cli::failure::{Failure, OWN_FAILURE};
use mayfly_cli::model::named;
use mayfly_cli::trace::{driver, on_heap};

/// Lines of the log that may wait for stderr; more are lost.
const LINES_THAT_WAIT: usize = 4096;

fn main() {
    let arguments: Vec<_> = std::env::args_os().take(5).collect();
    // Before anything else is allocated: this process's memory is measured.
    if let [_, verb, slots] = &arguments[..]
        && verb == on_heap::DRIVER_VERB
    {
        std::process::exit(driver::drive(&slots.to_string_lossy()));
    }
    // While there is one thread: it makes namespaces.
    if let [_, verb] = &arguments[..]
        && verb == worker::LAUNCHER_VERB
    {
        std::process::exit(worker::launch());
    }
    if let [_, verb, file, build_id, out] = &arguments[..]
        && verb == named::VERB
    {
        std::process::exit(named::execute([file, build_id, out]));
    }
    let mayfly = Mayfly::parse();
    let level = match mayfly.verb {
        _ if mayfly.verbose => tracing::Level::DEBUG,
        Verb::Up(_) => tracing::Level::INFO,
        Verb::Share(ref arguments) if arguments.serves() => tracing::Level::INFO,
        Verb::Node(_) => tracing::Level::INFO,
        _ => tracing::Level::WARN,
    };
    // On a thread of its own: a reader that drains stderr slowly, or not at all, delays only lines of the
    // log.
    let (writer, flushed_when_dropped) = tracing_appender::non_blocking::NonBlockingBuilder::default()
        .buffered_lines_limit(LINES_THAT_WAIT)
        .finish(std::io::stderr());
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(writer);
    match mayfly.verb {
        Verb::Up(ref arguments) if arguments.logs_json() => log.json().flatten_event(true).init(),
        _ => log.with_ansi(std::io::stderr().is_terminal()).without_time().init(),
    }
    let (outcome, failure_code) = match mayfly.verb {
        Verb::Run(arguments) => (arguments.execute(), OWN_FAILURE),
        Verb::Profile(arguments) => (arguments.execute(), OWN_FAILURE),
        Verb::Predict(arguments) => (arguments.execute(), 1),
        Verb::Trace(arguments) => (arguments.execute(), OWN_FAILURE),
        Verb::Bind(arguments) => (arguments.execute(), 1),
        Verb::Train(arguments) => (arguments.execute(), 1),
        Verb::Replay(arguments) => (arguments.execute(), 1),
        Verb::Share(arguments) => (arguments.execute(), 1),
        Verb::Node(arguments) => (arguments.execute(), 1),
        Verb::Up(arguments) => (arguments.execute(), 1),
        Verb::Load(arguments) => (arguments.execute(), 1),
        Verb::Report(arguments) => (arguments.execute(), 1),
        Verb::Vm(arguments) => (arguments.execute(), 1),
        Verb::Sim(arguments) => (arguments.execute(), OWN_FAILURE),
        Verb::Manual(arguments) => (arguments.execute(Mayfly::command()), 1),
    };
    drop(flushed_when_dropped);
    std::process::exit(outcome.unwrap_or_else(|error| {
        eprintln!("mayfly: {error:#}");
        error.downcast_ref::<Failure>().map_or(failure_code, |failure| failure.exit_code)
    }));
}
