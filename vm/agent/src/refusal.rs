//! Refusals: why a request was not carried out.

use std::fmt::Display;

use vm_protocol::{ErrorKind, Refusal};

/// A refusal of this kind.
pub fn refusal(kind: ErrorKind, message: String) -> Refusal {
    Refusal { kind, message }
}

/// For a request about an instance that does not run.
pub fn no_such(name: &str) -> Refusal {
    refusal(ErrorKind::NoSuchInstance, format!("no instance {name} runs"))
}

/// For a request during which a system call failed.
pub fn failed<E: Display>(what: &'static str) -> impl Fn(E) -> Refusal {
    move |error| refusal(ErrorKind::Failed, format!("{what}: {error}"))
}
