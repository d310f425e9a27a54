//! `mayfly vm plug` and `mayfly vm unplug`.

use anyhow::Result;
use clap::Args;
use serde_json::json;
use vm::State;
use vm::control::{Client, Command};
use vm::protocol::PartitionNumber;
use vm::report::{Plugged, Status, Unplugged};

use crate::quantity;
use crate::vm::selector::{VmSelector, number_parser, print_json};

/// Plug partitions: give them memory
#[derive(Args)]
pub struct PlugArguments {
    /// Which partitions [default: the first absent one]
    #[arg(value_parser = number_parser())]
    partitions: Vec<PartitionNumber>,
    /// All that are absent
    #[arg(long, conflicts_with = "partitions")]
    all: bool,
    #[command(flatten)]
    vm: VmSelector,
}

impl PlugArguments {
    /// Plugs one after the other and prints how long each took.
    ///
    /// # Errors
    /// The first that cannot be plugged; those before it stay plugged.
    pub fn execute(self) -> Result<i32> {
        let mut client = self.vm.connect()?;
        let partitions: Vec<Option<PartitionNumber>> = match (self.all, &self.partitions[..]) {
            (true, _) => {
                in_state(&mut client, |state| *state == State::Absent)?.into_iter().map(Some).collect()
            }
            (false, []) => vec![None],
            (false, list) => list.iter().copied().map(Some).collect(),
        };
        let mut all = Vec::new();
        for partition in partitions {
            let plugged: Plugged = client.ask(&Command::Plug { partition })?;
            if !self.vm.json {
                let took = quantity::duration(plugged.total_ns as f64);
                println!("partition {} plugged in {took}", plugged.partition);
            }
            all.push(plugged);
        }
        if self.vm.json {
            print_json(&json!({ "plugged": all }))?;
        }
        Ok(0)
    }
}

/// Unplug empty partitions: their memory returns to the host
#[derive(Args)]
pub struct UnplugArguments {
    /// Which partitions
    #[arg(required_unless_present = "all", value_parser = number_parser())]
    partitions: Vec<PartitionNumber>,
    /// All that are ready
    #[arg(long, conflicts_with = "partitions")]
    all: bool,
    #[command(flatten)]
    vm: VmSelector,
}

impl UnplugArguments {
    /// Unplugs one after the other and prints how long each took and how much memory returned to the host.
    ///
    /// # Errors
    /// The first that cannot be unplugged.
    pub fn execute(self) -> Result<i32> {
        let mut client = self.vm.connect()?;
        let partitions = match self.all {
            true => in_state(&mut client, |state| *state == State::Ready)?,
            false => self.partitions,
        };
        let mut all = Vec::new();
        for partition in partitions {
            let unplugged: Unplugged = client.ask(&Command::Unplug { partition })?;
            if !self.vm.json {
                println!("{}", unplugged_line(&unplugged));
            }
            all.push(unplugged);
        }
        if self.vm.json {
            print_json(&json!({ "unplugged": all }))?;
        }
        Ok(0)
    }
}

/// "partition 0 unplugged in 131 ms, QEMU's resident memory 412 MiB -> 188 MiB".
pub fn unplugged_line(unplugged: &Unplugged) -> String {
    format!(
        "partition {} unplugged in {}, QEMU's resident memory {} -> {}",
        unplugged.partition,
        quantity::duration(unplugged.total_ns as f64),
        quantity::bytes(unplugged.host_before_bytes as f64),
        quantity::bytes(unplugged.host_after_bytes as f64),
    )
}

fn in_state(client: &mut Client, wanted: impl Fn(&State) -> bool) -> Result<Vec<PartitionNumber>> {
    let status: Status = client.ask(&Command::Status)?;
    let all = status.layout.numbers().zip(&status.partitions);
    Ok(all.filter(|(_, state)| wanted(state)).map(|(number, _)| number).collect())
}
