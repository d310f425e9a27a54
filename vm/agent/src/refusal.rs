//! Answers that say no, and why.

use vm_protocol::{ErrorKind, Refusal};

/// An answer that says no.
pub fn refusal(kind: ErrorKind, message: String) -> Refusal {
    Refusal { kind, message }
}

/// To those who name an instance that does not run.
pub fn no_such(name: &str) -> Refusal {
    refusal(ErrorKind::NoSuchInstance, format!("no instance {name} runs"))
}

/// To those for whom the system did not do something.
pub fn failed(what: &'static str) -> impl Fn(std::io::Error) -> Refusal {
    move |error| refusal(ErrorKind::Failed, format!("{what}: {error}"))
}
