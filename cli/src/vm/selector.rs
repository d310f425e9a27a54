//! What every verb of `mayfly vm` has: which VM is meant, and an answer for people or for programs.

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use vm::control::Client;

/// Which VM, and how to answer: the same for every verb.
#[derive(Args)]
pub struct Which {
    /// The VM [default: the only one that runs]
    #[arg(long, value_name = "NAME", display_order = 90)]
    vm: Option<String>,
    /// Print one JSON object instead of a table
    #[arg(long, display_order = 91)]
    pub json: bool,
}

impl Which {
    /// Connects to its supervisor.
    ///
    /// # Errors
    /// There is no such VM.
    pub fn connect(&self) -> Result<Client> {
        Ok(Client::connect(self.vm.as_deref())?)
    }
}

/// Prints an object for programs.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}
