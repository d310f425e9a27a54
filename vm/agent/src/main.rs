//! The program inside a VM. It has four roles:
//!
//! 1. `/init` of the initramfs: it loads modules, mounts the root and moves into it ([`boot`]).
//! 2. PID 1: it starts the agent, reaps orphans, and restarts the agent when it dies ([`init`]).
//! 3. `vm-agent agent`, a child of PID 1: it carries out the host's requests, which arrive over a
//!    virtio-serial port or vsock ([`serve`]; HotMem §4.1, Figure 4), and never ends.
//! 4. `vm-agent launch`, a child of the agent: the first process of an instance, which confines it
//!    ([`launch`]).
//!
//! It is one static binary, so that nothing in the root can break it.

mod begin;
mod boot;
mod cgroup;
mod confine;
mod flow_control;
mod held_partitions;
mod init;
mod instance;
mod instances;
mod launch;
mod line;
mod memory;
mod memory_blocks;
mod output;
mod packet_tunnel;
mod partition;
mod plan;
mod port;
mod refusal;
mod relay;
mod root;
mod serve;
mod snapshots;
mod user_namespaces;
mod vsock;

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("agent") => serve::serve(),
        Some("launch") => match arguments.get(2).and_then(|plan| plan.parse().ok()) {
            Some(plan) => launch::launch(plan),
            None => std::process::exit(2),
        },
        _ if std::process::id() == 1 => {
            boot::boot();
            init::run();
        }
        _ => {
            eprintln!("vm-agent: runs as the first process of a VM, which `mayfly vm boot` starts");
            std::process::exit(2);
        }
    }
}
