//! The outside world for instances: an interface of the host's each, and address translation by the
//! kernel's nftables. Its other end is in the instance's network namespace, or, in a VM, a file of the
//! worker's (vm/tunnel.rs).
//!
//! ```text
//!   instance  eth0 ──────── mfXXXX-N  host ── masquerade ── whatever the host reaches
//!             100.x.y.z/30  │
//!                           └ nothing to the host itself, to other instances, or to link-local addresses (169.254/16,
//!                             where clouds hand out credentials); from outside only answers
//! ```
//! The kernel removes an interface with the instance's network namespace. The rules lie in a table of the
//! worker's own, which it removes at its end; the next worker removes that of one that was killed.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, Once};

use anyhow::{Context, Result, bail, ensure};
use tokio::sync::OnceCell;

use worker_system::lock::lock;
use worker_system::owned_folder::Folder;

const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";
const TABLE_PREFIX: &str = "mayfly_worker_";
/// The place of the folders of workers that have tables.
const OWNERS: &str = "/run";
/// Pairs of interfaces at once: as many nets of four addresses as one of a worker's has.
const PAIRS: u32 = 4096;

/// A worker's way out, which is made when the first instance wants one.
#[derive(Default)]
pub struct Outside(OnceCell<Arc<Network>>);

impl Outside {
    /// The network, which is made at the first call.
    ///
    /// # Errors
    /// It cannot be made; the next call tries again.
    pub async fn network(&self) -> Result<Arc<Network>> {
        let make = || async { tokio::task::spawn_blocking(Network::new).await?.map(Arc::new) };
        self.0.get_or_try_init(make).await.cloned()
    }

    /// Removes the rules, even if this is still in use; called once all instances have ended.
    pub fn close(&self) {
        if let Some(network) = self.0.get() {
            network.close();
        }
    }
}

/// A worker's way out.
pub struct Network {
    /// Its lock shows that the worker lives; named as the table.
    _owner: Folder,
    table: String,
    /// The first part of the names of the interfaces on the host's side.
    prefix: String,
    /// The first of 16384 addresses of those that carriers share (RFC 6598), which no network outside has.
    first_address: u32,
    /// Whether the host forwarded packets before any worker had it do so.
    forwarded: bool,
    pairs: Mutex<Pairs>,
    closed: Once,
}

#[derive(Default)]
struct Pairs {
    next: u32,
    used: BTreeSet<u32>,
}

/// One instance's interfaces, here and inside. The kernel removes them with the instance's namespace, or
/// with the tunnel; this keeps their addresses.
pub struct Pair {
    network: Arc<Network>,
    number: u32,
}

impl Pair {
    /// The name of the interface on the host's side.
    pub fn name(&self) -> String {
        format!("{}{}", self.network.prefix, self.number)
    }

    /// Its address.
    pub fn gateway(&self) -> Ipv4Addr {
        (self.network.first_address + 4 * self.number + 1).into()
    }

    /// The instance's.
    pub fn own(&self) -> Ipv4Addr {
        (self.network.first_address + 4 * self.number + 2).into()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        lock(&self.network.pairs).used.remove(&self.number);
    }
}

impl Network {
    /// Makes the rules.
    ///
    /// # Errors
    /// A tool is missing, or its error.
    fn new() -> Result<Network> {
        let owner = Folder::new(Path::new(OWNERS))?;
        remove_left_behind();
        let random = uuid::Uuid::new_v4();
        let [a, b, c, d, ..] = *random.as_bytes();
        let prefix = format!("mf{a:02x}{b:02x}-");
        let first_address = u32::from_be_bytes([100, 64 + (c & 63), d & 0xc0, 0]);
        let table = table_of(owner.path());
        let forwards = std::fs::read_to_string(FORWARDING).is_ok_and(|text| text.trim() == "1");
        let forwarded = forwards && !chains().iter().any(|(_, chain)| chain == FORWARDS_FOR_WORKERS);
        let rules = rules(&table, &prefix, first_address, forwarded);
        run("nft", &["-f", "-"], &rules).context("no network for functions")?;
        let (pairs, closed) = (Mutex::default(), Once::new());
        let network = Network { _owner: owner, table, prefix, first_address, forwarded, pairs, closed };
        if !forwards {
            tracing::info!(
                "this host forwards IPv4 packets from now on, for functions with Network: outside"
            );
            std::fs::write(FORWARDING, "1").context("cannot let this host forward packets")?;
        }
        Ok(network)
    }

    /// Gives the network namespace of this process a way out.
    ///
    /// # Errors
    /// There are too many, or the error of `ip`.
    pub fn connect(self: &Arc<Self>, process: u32) -> Result<Pair> {
        let pair = self.take()?;
        let (name, gateway, own) = (pair.name(), pair.gateway(), pair.own());
        let outside = format!(
            "link add {name} type veth peer name eth0 netns {process}\n\
             addr add {gateway}/30 dev {name}\nlink set {name} up\n"
        );
        let inside =
            format!("addr add {own}/30 dev eth0\nlink set eth0 up\nroute add default via {gateway}\n");
        run("ip", &["-batch", "-"], &outside)?;
        let namespace = format!("--net=/proc/{process}/ns/net");
        run("nsenter", &[&namespace, "ip", "-batch", "-"], &inside)?;
        Ok(pair)
    }

    /// Addresses that no other instance has.
    ///
    /// # Errors
    /// There are too many.
    pub fn take(self: &Arc<Self>) -> Result<Pair> {
        let mut pairs = lock(&self.pairs);
        // An interface that was just released may exist for another moment, so a number is reused as late
        // as possible.
        for _ in 0..PAIRS {
            let number = pairs.next;
            pairs.next = (number + 1) % PAIRS;
            if pairs.used.insert(number) {
                return Ok(Pair { network: self.clone(), number });
            }
        }
        bail!("{PAIRS} instances have a network already")
    }

    /// Removes the rules, once.
    fn close(&self) {
        self.closed.call_once(|| {
            // Only the last worker turns forwarding off: a successor may still need it.
            let is_anothers =
                |(table, chain): &(String, String)| chain == FORWARDS_FOR_WORKERS && *table != self.table;
            if !self.forwarded && !chains().iter().any(is_anothers) {
                let _ = std::fs::write(FORWARDING, "0");
            }
            if let Err(error) = run("nft", &["delete", "table", "inet", &self.table], "") {
                tracing::warn!("cannot remove the rules of the functions' network: {error:#}");
            }
        });
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.close();
    }
}

fn table_of(owner: &Path) -> String {
    owner.file_name().unwrap_or_default().to_string_lossy().replace('-', "_")
}

/// A chain without rules, in the tables of workers on whose account the host forwards packets.
const FORWARDS_FOR_WORKERS: &str = "forwards_for_workers";

/// The chains of all workers, with their tables.
fn chains() -> Vec<(String, String)> {
    let Ok(output) = Command::new("nft").args(["list", "chains", "inet"]).stderr(Stdio::null()).output()
    else {
        return Vec::new();
    };
    let (mut table, mut found) = (String::new(), Vec::new());
    for line in String::from_utf8_lossy(&output.stdout).lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("table inet ") {
            table = name.trim_end_matches(" {").into();
        } else if let Some(name) = line.strip_prefix("chain ")
            && table.starts_with(TABLE_PREFIX)
        {
            found.push((table.clone(), name.trim_end_matches(" {").trim_end_matches('}').trim().into()));
        }
    }
    found
}

fn rules(table: &str, prefix: &str, first_address: u32, forwarded: bool) -> String {
    let net = Ipv4Addr::from(first_address);
    let mark = if forwarded { String::new() } else { format!("chain {FORWARDS_FOR_WORKERS} {{ }}") };
    format!(
        "table inet {table} {{
            {mark}
            chain input {{
                type filter hook input priority -200
                iifname \"{prefix}*\" drop
            }}
            chain forward {{
                type filter hook forward priority -200
                iifname \"{prefix}*\" oifname \"{prefix}*\" drop
                iifname \"{prefix}*\" ip daddr {{ 127.0.0.0/8, 169.254.0.0/16, 224.0.0.0/4 }} drop
                iifname \"{prefix}*\" meta nfproto ipv6 drop
                iifname \"{prefix}*\" ip saddr != {net}/18 drop
                oifname \"{prefix}*\" ct state established,related accept
                oifname \"{prefix}*\" drop
            }}
            chain postrouting {{
                type nat hook postrouting priority 100
                ip saddr {net}/18 oifname != \"{prefix}*\" masquerade
            }}
        }}\n"
    )
}

/// Removes the tables of workers that have no folder any more. A worker makes its folder before its table.
fn remove_left_behind() {
    let Ok(output) = Command::new("nft").args(["list", "tables", "inet"]).stderr(Stdio::null()).output()
    else {
        return;
    };
    let there: BTreeSet<String> = std::fs::read_dir(OWNERS)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| table_of(&entry.path()))
        .collect();
    for table in
        String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| line.strip_prefix("table inet "))
    {
        if table.starts_with(TABLE_PREFIX) && !there.contains(table) {
            let _ = run("nft", &["delete", "table", "inet", table], "");
        }
    }
}

/// Runs a tool of the system's with this input.
fn run(program: &str, arguments: &[&str], input: &str) -> Result<()> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {program} (Debian: nftables, iproute2, util-linux)"))?;
    // The tool may end before it has read all; then it prints why.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
    let output = child.wait_with_output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {}", stderr.lines().next().unwrap_or("failed"));
    Ok(())
}

/// The contents of /etc/resolv.conf inside: name servers that are outside this host, for itself is out of
/// reach.
pub fn resolvers() -> String {
    let places = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];
    let usable = |text: String| {
        let is_outside = |line: &&str| {
            let server = line.strip_prefix("nameserver ").and_then(|server| server.trim().parse().ok());
            server.is_none_or(|server: std::net::IpAddr| !server.is_loopback())
        };
        let lines: Vec<&str> = text.lines().filter(is_outside).collect();
        lines.iter().any(|line| line.starts_with("nameserver ")).then(|| lines.join("\n") + "\n")
    };
    places.iter().find_map(|place| usable(std::fs::read_to_string(place).ok()?)).unwrap_or_default()
}
