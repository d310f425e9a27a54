//! The options of every verb of `mayfly vm`: which VM, and whether to print a table or JSON.

use anyhow::Result;
use clap::builder::TypedValueParser;
use clap::{Args, value_parser};
use serde::Serialize;
use vm::control::Client;
use vm::protocol::PartitionNumber;

/// Selects the VM and the output format.
#[derive(Args)]
pub struct VmSelector {
    /// The VM [default: the only one that runs]
    #[arg(long, value_name = "NAME", display_order = 90)]
    vm: Option<String>,
    /// Print one JSON object instead of a table
    #[arg(long, display_order = 91)]
    pub json: bool,
}

impl VmSelector {
    /// Connects to the VM's supervisor.
    ///
    /// # Errors
    /// There is no such VM.
    pub fn connect(&self) -> Result<Client> {
        Ok(Client::connect(self.vm.as_deref())?)
    }
}

/// Parses a partition's number on a command line.
pub fn number_parser() -> impl TypedValueParser<Value = PartitionNumber> {
    value_parser!(u32).map(PartitionNumber)
}

/// Prints one JSON object on a line.
///
/// # Errors
/// The value has a map whose keys are no strings.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}
