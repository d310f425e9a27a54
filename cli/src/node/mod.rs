//! `mayfly node`: the agent of a node, in the foreground; `mayfly node top` shows its containers' memory.

pub mod top;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use node::{Name, Settings};
use signal_hook::consts::{SIGINT, SIGTERM};

use self::top::TopArguments;
use crate::libraries;
use crate::quantity::parse_bytes;

const EXAMPLES: &str = "\
Examples:
  mayfly node                                   as root: CDI devices, and the container runtime's NRI where it listens
  mayfly node --domain web                      also the CDI device mayfly.dev/share=web
  mayfly node --models /etc/mayfly/models       also mayfly.dev/heap=model.NAME for each NAME.mayfly-model there
  podman run --device mayfly.dev/heap=online --device mayfly.dev/share=web IMAGE
  mayfly node --profiles s3://bucket/profiles   profiles into a bucket, by AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL and so on
  mayfly node top                               who shares, and how much that saves, as a live table
  curl -s 127.0.0.1:9117/metrics

Annotations of a pod (containerd 2 or CRI-O, by NRI):
  mayfly.dev/heap: online | model=NAME          the lifetime-aware heap
  mayfly.dev/share: pod | namespace | NAME      share pages within this domain; never beyond the namespace
  mayfly.dev/profile: SECONDS                   sample lifetimes for so long, into --profiles; then mayfly train PROFILES --where ...

No failure of the agent keeps a container from starting; its log and /metrics show what it did not inject.
Containers mount folders in --data, which stay when the agent ends; `mayfly node --clean` removes them.";

/// Give containers the heap and page sharing, by CDI and NRI
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_long_help = EXAMPLES,
    after_help = "Examples and annotations: mayfly node --help"
)]
pub struct NodeArguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// The agent's folder, at the same path for the agent and for the container runtime
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/mayfly/node")]
    data: PathBuf,
    /// Libraries for glibc [default: the folder of the command's own]
    #[arg(long, value_name = "FOLDER")]
    glibc: Option<PathBuf>,
    /// Libraries for musl [default: musl/ in the folder for glibc]
    #[arg(long, value_name = "FOLDER")]
    musl: Option<PathBuf>,
    /// A folder of NAME.mayfly-model files; a container gets the file's content at the container's start
    #[arg(long, value_name = "FOLDER")]
    models: Option<PathBuf>,
    /// Storage of the profiles that pods request, in partitions for `mayfly train`: a folder, or
    /// s3://BUCKET/PREFIX [default: profiles/ in --data]
    #[arg(long, value_name = "PLACE")]
    profiles: Option<String>,
    /// The folder of CDI specifications, which container engines read, or none
    #[arg(long, value_name = "FOLDER", default_value = "/etc/cdi")]
    cdi: PathBuf,
    /// The container runtime's NRI socket, or none
    #[arg(long, value_name = "SOCKET", default_value = "/var/run/nri/nri.sock")]
    nri: PathBuf,
    /// A trust domain with a CDI device, mayfly.dev/share=NAME (may be repeated)
    #[arg(long = "domain", value_name = "NAME")]
    domains: Vec<Name>,
    /// Memory that each trust domain's store may hold
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_bytes)]
    store_limit: u64,
    /// The address of GET /metrics, /memory and /healthz, which are not protected
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9117")]
    listen: SocketAddr,
    /// Remove the folders that containers mount and the CDI specifications, and exit
    #[arg(long)]
    clean: bool,
}

#[derive(Subcommand)]
enum Verb {
    Top(TopArguments),
}

impl NodeArguments {
    /// Serves until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// Libraries are missing, or a folder or address cannot be used.
    pub fn execute(self) -> Result<i32> {
        if let Some(Verb::Top(top)) = self.verb {
            return top.execute();
        }
        let cdi = (self.cdi.as_os_str() != "none").then_some(self.cdi);
        if self.clean {
            node::clean(&self.data, cdi.as_deref())?;
            return Ok(0);
        }
        let program = std::env::current_exe().context("cannot find this command's path")?;
        let glibc = match self.glibc {
            Some(folder) => folder,
            None => libraries::find("libmayfly_heap.so")?.with_file_name(""),
        };
        let musl = self.musl.unwrap_or_else(|| glibc.join("musl"));
        let data = std::path::absolute(self.data)?;
        let profiles = self.profiles.unwrap_or_else(|| data.join("profiles").to_string_lossy().into_owned());
        let settings = Settings {
            program,
            data,
            musl: Some(musl),
            glibc,
            models: self.models,
            profiles,
            cdi,
            nri: (self.nri.as_os_str() != "none").then_some(self.nri),
            domains: self.domains,
            store_bytes: self.store_limit,
            listen: Some(self.listen),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("cannot start the agent's threads")?;
        runtime.block_on(node::run(settings, stopped()?))?;
        tracing::info!("agent stopped; containers keep their injections");
        Ok(0)
    }
}

fn stopped() -> Result<impl Future<Output = ()>> {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT]).context("signal handler")?;
    std::thread::spawn(move || {
        signals.forever().next();
        let _ = sender.send(());
    });
    Ok(async move {
        receiver.recv().await;
    })
}
