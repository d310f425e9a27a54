//! What the guest receives of an instance that is to start: its program, what it sees of the code disk, and
//! its limits.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use vm::protocol::{Beginning, Confinement, Limits, Network, Spawn};

use super::PartitionedVm;
use crate::base::limits;
use crate::function::settings::Settings;
use crate::sandbox::environment::{self, ProgramSpec, Sharing};
use crate::sandbox::interface::{Bind, Order, RUNTIME_PORT};
use crate::sandbox::network;

/// The order for an instance of this name, and of this address if it has a way out.
///
/// # Errors
/// A part of it is not on the code disk.
pub fn spawn_order(
    vm: &PartitionedVm,
    order: &Order,
    name: &str,
    address: Option<Ipv4Addr>,
) -> Result<Spawn> {
    let sharing = match vm.host.options.libraries.merge {
        Some(_) => Sharing::Kernel,
        None => Sharing::No,
    };
    let ProgramSpec { binds, command, environment, user, root, system, folder, fixed_layout } =
        environment::program_spec(order, &vm.host.options, &vm.host.folder, sharing);
    ensure!(system.is_none(), "the VM lacks {}", order.deployment.settings.runtime.name());
    let on_disk = |source: &Path| -> Result<String> {
        let missing = || format!("{} is not in the VM: functions come from the template", source.display());
        vm.disk.name_of(source).map(str::to_string).with_context(missing)
    };
    let seen = |bind: Bind| Ok((on_disk(&bind.source)?, bind.target.to_string_lossy().into_owned()));
    let settings = &order.deployment.settings;
    Ok(Spawn {
        more: Vec::new(),
        instance: name.to_string(),
        partition: None,
        argv: command,
        env: environment.into_iter().collect(),
        cwd: Some(folder),
        cpus: Vec::new(),
        vcpus_milli: settings.processors.map(|processors| (processors * 1000.0).ceil() as u32),
        waits_for_reader: false,
        beginning: Beginning::Command,
        confinement: Some(Box::new(Confinement {
            user,
            port: RUNTIME_PORT,
            connections: order.connections() as u32,
            network: address.map(|address| Network { address, resolvers: network::resolvers() }),
            root: root.as_deref().map(on_disk).transpose()?,
            binds: binds.into_iter().map(seen).collect::<Result<_>>()?,
            fixed_layout,
            limits: Limits {
                memory_bytes: u64::from(settings.memory_mib) << 20,
                file_bytes: file_bytes(settings),
                cpu_weight: limits::share(settings.memory_mib, 100) as u32,
            },
        })),
    })
}

/// The size of /tmp. It is memory: half of what there is, so that a program with a full /tmp gets an error
/// before the whole instance ends.
fn file_bytes(settings: &Settings) -> u64 {
    u64::from(settings.ephemeral_mib.min(settings.memory_mib / 2)) << 20
}
