//! `mayfly vm list`, `stats`, `console` and `down`: the state of VMs, their memory, their console, their end.

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};
use vm::control::{self, Client, Command};
use vm::protocol::{InstanceInfo, PartitionNumber};
use vm::report::{GuestStatus, Memory, Status};

use crate::quantity;
use crate::vm::selector::{VmSelector, print_json};

/// Show the VMs that run, and the state of each partition
#[derive(Args)]
pub struct ListArguments {
    /// Only this VM [default: all that run]
    #[arg(long, value_name = "NAME")]
    vm: Option<String>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

impl ListArguments {
    /// Queries every supervisor.
    ///
    /// # Errors
    /// The folder of control sockets cannot be read.
    pub fn execute(self) -> Result<i32> {
        let mut all = Vec::new();
        if let Some(name) = &self.vm {
            all.push(Client::connect(Some(name))?.ask::<Status>(&Command::Status)?);
        }
        let others = if self.vm.is_some() { Vec::new() } else { control::running()? };
        for name in others {
            // A VM that ends in this moment is not listed.
            let status =
                Client::connect(Some(&name)).and_then(|mut client| client.ask::<Status>(&Command::Status));
            all.extend(status.ok());
        }
        if self.json {
            print_json(&json!({ "vms": all }))?;
            return Ok(0);
        }
        if all.is_empty() {
            println!("no VM runs");
        }
        for status in &all {
            print_status(status);
        }
        Ok(0)
    }
}

fn print_status(status: &Status) {
    let guest = match &status.guest {
        GuestStatus::Up { kernel } => format!("kernel {kernel}"),
        GuestStatus::Down { why } => format!("guest down: {why}"),
        GuestStatus::Ended { why } => format!("ended: {why}"),
    };
    let mode = serde_json::to_value(status.layout.mode).unwrap_or_default();
    println!(
        "{}: mode {}, {guest}, {}, QEMU {} has {} resident",
        status.name,
        mode.as_str().unwrap_or_default(),
        status.accelerator,
        status.qemu_pid,
        quantity::bytes(status.host_resident_bytes as f64),
    );
    println!("  {:>9}  {:>10}  {:<10}  instance", "partition", "size", "state");
    for (number, state) in status.layout.numbers().zip(&status.partitions) {
        let size = quantity::bytes(status.layout.bytes_of(number) as f64);
        let line = format!("  {number:>9}  {size:>10}  {:<10}  {}", state.to_string(), state.note());
        println!("{}", line.trim_end());
    }
    for instance in &status.outside {
        println!("  {:>9}  {:>10}  {:<10}  {instance}", "none", "", "in use");
    }
}

/// Show the memory of a VM, node by node, and of its QEMU
#[derive(Args)]
pub struct StatsArguments {
    #[command(flatten)]
    vm: VmSelector,
}

impl StatsArguments {
    /// Queries the guest.
    ///
    /// # Errors
    /// It is down.
    pub fn execute(self) -> Result<i32> {
        let mut client = self.vm.connect()?;
        let memory: Memory = client.ask(&Command::Memory)?;
        let instances: Vec<InstanceInfo> = client.ask(&Command::Instances)?;
        if self.vm.json {
            let mut value = json!(memory);
            value["instances"] = json!(instances);
            print_json(&value)?;
            return Ok(0);
        }
        let size = |bytes: u64| quantity::bytes(bytes as f64);
        println!(
            "{:>4}  {:<12}  {:>10}  {:>10}  {:>10}  {:>10}",
            "node", "what", "total", "free", "anonymous", "files"
        );
        for node in &memory.guest.nodes {
            let what = match (node.partition, node.node) {
                (Some(number), _) => format!("partition {number}"),
                (None, 0) => "boot memory".to_string(),
                (None, _) => "shared".to_string(),
            };
            println!(
                "{:>4}  {what:<12}  {:>10}  {:>10}  {:>10}  {:>10}",
                node.node,
                size(node.total_bytes),
                size(node.free_bytes),
                size(node.anonymous_bytes),
                size(node.file_bytes),
            );
        }
        println!("pages migrated in the guest since boot: {}", quantity::count(migrated(&memory)));
        println!("QEMU: {} resident", size(memory.host_resident_bytes));
        if !instances.is_empty() {
            println!(
                "{:<20}  {:>9}  {:>8}  {:>9}  {:>10}",
                "instance", "partition", "pid", "processes", "age"
            );
        }
        for instance in &instances {
            println!(
                "{:<20}  {:>9}  {:>8}  {:>9}  {:>10}",
                instance.instance,
                partitions_of(instance),
                instance.pid,
                instance.processes,
                quantity::duration(instance.age_ns as f64),
            );
        }
        Ok(0)
    }
}

fn partitions_of(instance: &InstanceInfo) -> String {
    let all: Vec<_> =
        instance.partition.iter().chain(&instance.more).map(PartitionNumber::to_string).collect();
    if all.is_empty() { "none".to_string() } else { all.join(",") }
}

fn migrated(memory: &Memory) -> u64 {
    memory.guest.vmstat.get("pgmigrate_success").copied().unwrap_or(0)
}

/// Show the end of a guest's console
#[derive(Args)]
pub struct ConsoleArguments {
    #[command(flatten)]
    vm: VmSelector,
}

impl ConsoleArguments {
    /// Queries the supervisor.
    ///
    /// # Errors
    /// There is none.
    pub fn execute(self) -> Result<i32> {
        let text: String = self.vm.connect()?.ask(&Command::Console)?;
        match self.vm.json {
            true => print_json(&json!({ "console": text }))?,
            false => print!("{text}"),
        }
        Ok(0)
    }
}

/// End a VM: its instances are stopped, its memory is the host's again
#[derive(Args)]
pub struct DownArguments {
    #[command(flatten)]
    vm: VmSelector,
}

impl DownArguments {
    /// Returns when the VM's supervisor has ended.
    ///
    /// # Errors
    /// No such VM runs.
    pub fn execute(self) -> Result<i32> {
        let mut client = self.vm.connect()?;
        // The connection closes when the supervisor ends.
        match client.ask::<Value>(&Command::Down) {
            Err(vm::Error::Ended(_)) | Ok(_) => {}
            Err(other) => return Err(other.into()),
        }
        match self.vm.json {
            true => print_json(&json!({ "down": client.name() }))?,
            false => println!("{} is down", client.name()),
        }
        Ok(0)
    }
}
