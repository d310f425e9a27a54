//! The Node Resource Interface: the runtime tells of each container before it makes it, and the agent may add to it.
//!
//! One connection to the runtime's socket carries two streams, on each of them ttrpc ([`wire`]): the agent registers on one, and
//! answers the runtime's questions on the other ([`plugin`]), in the messages of `nri.pkg.api.v1alpha1` ([`messages`]).

pub mod messages;
mod plugin;
mod wire;

pub use plugin::{Answers, connect};
