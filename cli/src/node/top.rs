//! `mayfly node top`: the memory of a node's containers and page stores, as live tables, or once as JSON.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use clap::Args;
use node::{ContainerMemory, NodeMemory};

use crate::live::{LiveArguments, printable};

/// Show the memory of the node's containers, and what sharing saves: live tables, or once as JSON
///
/// A container is charged, in its cgroup, for its own memory. Pages that it shares are charged to the
/// page store of its trust domain, which has a cgroup of its own. Shared is what a container maps of its
/// store: its private memory without Mayfly. Saved is what sharing spares of it, by each page's number of
/// users.
#[derive(Args)]
pub struct TopArguments {
    /// The agent's address, as `mayfly node --listen` has it
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9117")]
    agent: SocketAddr,
    /// One JSON object, and no table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    live: LiveArguments,
}

impl TopArguments {
    /// Shows the memory until the terminal closes.
    ///
    /// # Errors
    /// There is no agent.
    pub fn execute(self) -> Result<i32> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start the client's thread")?;
        let read = || runtime.block_on(NodeMemory::read(self.agent));
        if self.json {
            print!("{}", read()?.json());
            return Ok(0);
        }
        self.live.show(|| Ok(table(&read()?)))
    }
}

fn mib(bytes: Option<u64>) -> String {
    bytes.map_or("-".to_owned(), |bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 20)))
}

fn name(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { printable(text) }
}

fn table(memory: &NodeMemory) -> String {
    let mut out = format!(
        "{:<16} {:<28} {:<16} {:<14} {:<22} {:>11} {:>10} {:>10}\n",
        "namespace", "pod", "container", "heap", "trust domain", "charged MiB", "shared MiB", "saved MiB"
    );
    let mut containers: Vec<_> = memory.containers.iter().collect();
    containers.sort_by_key(|one| std::cmp::Reverse(one.saved_bytes()));
    for one in containers {
        out += &format!(
            "{:<16} {:<28} {:<16} {:<14} {:<22} {:>11} {:>10} {:>10}\n",
            name(&one.namespace),
            name(&one.pod),
            name(&one.container),
            name(one.heap.as_deref().unwrap_or_default()),
            name(one.domain.as_deref().unwrap_or_default()),
            mib(one.charged_bytes),
            mib(one.shared_mapped_bytes),
            mib(one.domain.as_ref().map(|_| one.saved_bytes())),
        );
    }
    if memory.containers.is_empty() {
        out += "no running container has an injection\n";
    }
    out + &stores_table(memory)
}

/// The page stores, and what their containers save together.
fn stores_table(memory: &NodeMemory) -> String {
    let mut by_domain: BTreeMap<&str, Vec<&ContainerMemory>> = BTreeMap::new();
    for one in &memory.containers {
        by_domain.entry(one.domain.as_deref().unwrap_or_default()).or_default().push(one);
    }
    let mut out = format!(
        "\n{:<22} {:<16} {:>5} {:>11} {:>10} {:>10} {:>10}\n",
        "trust domain", "namespace", "store", "charged MiB", "limit MiB", "containers", "saved MiB"
    );
    for store in &memory.stores {
        let containers = by_domain.get(store.domain.as_str()).map_or(&[][..], Vec::as_slice);
        out += &format!(
            "{:<22} {:<16} {:>5} {:>11} {:>10} {:>10} {:>10}\n",
            name(&store.domain),
            name(&store.namespace),
            if store.is_up { "up" } else { "down" },
            mib(store.charged_bytes),
            mib(Some(store.limit_bytes)),
            containers.len(),
            mib(Some(containers.iter().map(|one| one.saved_bytes()).sum())),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use node::StoreMemory;

    use super::*;

    fn words(text: &str, first: &str) -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(first)).expect("a line");
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn containers_that_save_most_come_first_and_add_up_by_store() {
        let one = |pod: &str, mapped: u64, shared: u64| ContainerMemory {
            namespace: "shop".into(),
            pod: pod.into(),
            container: "app".into(),
            heap: Some("online".into()),
            domain: Some("shop web".into()),
            charged_bytes: Some(10 << 20),
            shared_mapped_bytes: Some(mapped << 20),
            shared_bytes: Some(shared << 20),
        };
        let alone = ContainerMemory { container: "c\u{1b}[2J".into(), ..ContainerMemory::default() };
        let memory = NodeMemory {
            containers: vec![alone, one("a", 64, 63), one("b", 64, 32)],
            stores: vec![StoreMemory {
                domain: "shop web".into(),
                namespace: "shop".into(),
                is_up: true,
                charged_bytes: Some(64 << 20),
                limit_bytes: 1 << 30,
            }],
        };
        let text = table(&memory);
        let pods: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(pods[1..4], ["b", "a", "-"]);
        assert_eq!(
            words(&text, "shop "),
            ["shop", "b", "app", "online", "shop", "web", "10.0", "64.0", "32.0"]
        );
        assert_eq!(words(&text, "- "), ["-", "-", "c?[2J", "-", "-", "-", "-", "-"]);
        assert_eq!(words(&text, "shop web"), ["shop", "web", "shop", "up", "64.0", "1024.0", "2", "33.0"]);
    }

    #[test]
    fn a_node_without_containers_says_so() {
        assert!(table(&NodeMemory::default()).contains("no running container has an injection"));
    }
}
