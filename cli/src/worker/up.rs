//! `mayfly up`: serves functions written for AWS Lambda.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use vm::protocol::Mode;
use worker::Service;
use worker::function::worker_options::{Advise, Libraries};
use worker::http::sigv4::Credentials;
use worker::sandbox::vm::{Plan, image};
use worker::service::check;
use worker::service::stack::Offer;
use worker_pool::Capacity;

use super::reading::Reading;
use super::{credentials, reach};
use crate::libraries;

const EXAMPLES: &str = "\
Examples:
  mayfly up functions/template.yaml
  aws --endpoint-url http://127.0.0.1:8080 lambda invoke --function-name page answer.html
  mayfly up                                     no functions yet: CreateFunction makes them
  mayfly up template.yaml --without heap        instances on the system's malloc
  mayfly up template.yaml --without heap,merge  plain instances, to compare with
  mayfly up template.yaml --sandbox vm          instances in a microVM, a partition of its memory each

Clients are Lambda's own: boto3.client('lambda', endpoint_url='http://127.0.0.1:8080') or the aws
command. Any credentials will do, unless MAYFLY_ACCESS_KEY_ID and MAYFLY_SECRET_ACCESS_KEY are set:
then requests must be signed with those.

The page at / shows the functions, /metrics is for Prometheus, /healthz answers once the worker is ready.
SIGHUP rereads the template. SIGUSR2 hands over to a new version of the program, without losing a
request. SIGTERM or Ctrl-C ends the worker: running requests have 5 seconds. Traces go to the
collector at OTEL_EXPORTER_OTLP_ENDPOINT, if it is set.";

/// A layer that can be left out, to measure its savings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Layer {
    /// libmayfly_heap.so in every instance.
    Heap,
    /// Identical pages of a function's instances, stored once.
    Merge,
    /// Instances that are restored from a snapshot; it needs merge.
    Snapshot,
    /// Empty sandboxes that are made before the next instance needs one.
    Ready,
    /// A partition of the VM's memory for each instance (with --sandbox vm).
    Partitions,
}

/// The memory that an idle instance advises to merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AdviseName {
    /// All its anonymous memory.
    Whole,
    /// Only the memory that the function's code names (in Python: mayfly.advise, mayfly.advising).
    Named,
}

/// The network that a function reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Network {
    /// Nothing.
    None,
    /// All that this host reaches, except the host itself and other instances.
    Outside,
}

/// The sandbox of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sandbox {
    /// Namespaces, seccomp and cgroups on this host.
    Process,
    /// A microVM, with a partition of its memory for each instance; another microVM for each
    /// Metadata.Mayfly.Vm (needs: mayfly vm image).
    Vm,
}

/// How the VM's memory grows and shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeName {
    /// A NUMA node per partition, on any kernel.
    Nodes,
    /// The same on Mayfly's kernel, which merges pages as well (mayfly vm image --kernel hotmem).
    Hotmem,
    /// The same in one virtio-mem device, whose memory Mayfly's kernel cuts into partitions.
    Ranges,
    /// One device for all: for bench/worker/run, as --without partitions.
    #[value(hide = true)]
    Plain,
    /// All memory from boot: for bench/worker/run.
    #[value(hide = true)]
    Static,
}

/// How the worker's own log and the functions' output are written to stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Lines for people.
    Text,
    /// An object a line, with time and level.
    Json,
}

/// Serve functions written for AWS Lambda, each instance in a sandbox
#[derive(Args)]
#[command(after_long_help = EXAMPLES, after_help = "Examples: mayfly up --help")]
pub struct UpArguments {
    /// A template of SAM, CloudFormation or CDK; its functions that cannot be served are a line each
    template: Option<PathBuf>,
    /// The address of the Lambda API; any client that reaches it can run programs in sandboxes of this
    /// machine
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Memory of all instances together, in MiB [default: three quarters of the machine's]
    #[arg(long, value_name = "MIB")]
    memory: Option<u64>,
    /// Instances that run at once
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: u32,
    /// Instances that start at once [default: twice the processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    burst: Option<u32>,
    /// Requests of one function that wait at once; more are refused (429)
    #[arg(long, value_name = "N", default_value_t = 1000)]
    queue: usize,
    /// Seconds that a request waits for an instance before it is refused (429)
    #[arg(long, value_name = "S", default_value_t = 30)]
    queue_wait: u64,
    /// Seconds that an idle instance is kept
    #[arg(long, value_name = "S", default_value_t = 300)]
    keep_alive: u64,
    /// Seconds after SIGTERM in which /healthz answers 503 and all else is served, so that a proxy sends the
    /// next requests to another worker
    #[arg(long, value_name = "S", default_value_t = 0)]
    drain: u64,
    /// Seconds that running calls have when the worker ends
    #[arg(long, value_name = "S", default_value_t = 5)]
    grace: u64,
    /// Folder below which callers may name code (S3Bucket 'folder', S3Key its path) and images (ImageUri its
    /// path); may be given several times [default: none]
    #[arg(long, value_name = "FOLDER")]
    code_from: Vec<PathBuf>,
    /// Registry on this machine from which callers may name images (ImageUri ADDRESS/NAME:TAG); may be given
    /// several times [default: none]
    #[arg(long, value_name = "ADDRESS", value_parser = loopback)]
    image_registry: Vec<SocketAddr>,
    /// Server of the queues that trigger functions of the template (Events of Type SQS): it serves SQS' API
    /// in plain HTTP without signatures, such as ElasticMQ [default: none]
    #[arg(long, value_name = "ADDRESS", value_parser = loopback)]
    queues: Option<SocketAddr>,
    /// Folder for functions and layers made by the API, and for accepted Event invocations until they have
    /// run, so that a killed worker loses none [default: in memory]
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// Show what of the template would be served, and what not and why; nothing is installed, and nothing
    /// starts. The exit status is 1 if a function could not be served
    #[arg(long, requires = "template")]
    check: bool,
    /// Show that as JSON
    #[arg(long, requires = "check")]
    json: bool,
    #[command(flatten)]
    reading: Reading,
    /// Network of functions whose template does not set it (Metadata: {Mayfly: {Network: outside}}); outside
    /// needs root
    #[arg(long, value_enum, default_value = "none")]
    network: Network,
    /// Service of this host that functions reach, at this address and at host.docker.internal:PORT; may be
    /// given several times [default: none]
    #[arg(long, value_name = "HOST:PORT", value_parser = reach::service)]
    reach: Vec<SocketAddr>,
    /// Credentials that functions find in AWS_ACCESS_KEY_ID and so on: test (no service knows them), env
    /// (those of this process), profile or profile:NAME (static keys in ~/.aws/credentials or config)
    #[arg(long, value_name = "SOURCE", default_value = "test")]
    credentials: credentials::Source,
    /// The sandbox of an instance
    #[arg(long, value_enum, default_value = "process")]
    sandbox: Sandbox,
    /// Instances that fit into each VM (--sandbox vm)
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    partitions: u32,
    /// How the VM's memory grows and shrinks
    #[arg(long, value_enum, default_value = "nodes")]
    mode: ModeName,
    /// Layers to leave out, separated by commas
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    without: Vec<Layer>,
    /// The memory that an idle instance advises to merge
    #[arg(long, value_enum, default_value = "whole")]
    advise: AdviseName,
    /// Format of the log
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    log: LogFormat,
}

impl UpArguments {
    /// Whether the log is JSON, for programs.
    pub fn logs_json(&self) -> bool {
        self.log == LogFormat::Json
    }

    /// Serves until a signal ends it; returns the exit code.
    ///
    /// # Errors
    /// The worker cannot start.
    pub fn execute(self) -> Result<i32> {
        let memory_mib = match self.memory {
            Some(given) => given,
            None => machine_memory_mib()? / 4 * 3,
        };
        if let Some(template) = self.template.as_deref().filter(|_| self.check) {
            let options = self.reading.options()?;
            let (outside, queues) = (self.network == Network::Outside, self.queues.is_some());
            let in_vm = self.sandbox == Sandbox::Vm;
            let checked = check::check(template, &options, Offer { outside, in_vm, queues, memory_mib })?;
            return super::check::show(&checked, self.json);
        }
        let processors = std::thread::available_parallelism().map_or(1, |number| number.get() as u32);
        let vm = match self.sandbox {
            Sandbox::Process => None,
            Sandbox::Vm => Some(self.plan()?),
        };
        reach::check(&self.reach, vm.is_some())?;
        let mut layers = layers(&self.without, self.advise)?;
        if vm.as_ref().is_some_and(|plan| !plan.merges()) {
            layers.merge = None;
        }
        let service = Service {
            template: self.template,
            address: self.listen,
            capacity: Capacity {
                concurrency: self.concurrency,
                starting: self.burst.unwrap_or(2 * processors),
                memory_mib,
                queue: self.queue,
                queue_wait: Duration::from_secs(self.queue_wait),
                keep_alive: Duration::from_secs(self.keep_alive),
                processors: processors as usize,
            },
            drain: Duration::from_secs(self.drain),
            grace: Duration::from_secs(self.grace),
            credentials: key()?,
            libraries: layers,
            vm,
            program: std::env::current_exe().context("cannot find the path of this program")?,
            cache: cache()?,
            code_folders: code_folders(&self.code_from)?,
            image_registries: self.image_registry,
            queues: self.queues,
            outside: self.network == Network::Outside,
            reach: self.reach,
            account: self.credentials.account()?,
            state: self.state,
            templates: self.reading.options()?,
        };
        worker::run(service, |address| {
            // For people and for scripts that asked for port 0. stderr may be closed.
            match self.log {
                LogFormat::Text => {
                    let _ = writeln!(std::io::stderr(), "mayfly: serving Lambda's API on http://{address}");
                }
                LogFormat::Json => tracing::info!("serving Lambda's API on http://{address}"),
            }
        })?;
        Ok(0)
    }
}

impl UpArguments {
    fn plan(&self) -> Result<Plan> {
        let mode = match self.mode {
            _ if self.without.contains(&Layer::Partitions) => Mode::Plain,
            ModeName::Nodes => Mode::Nodes,
            ModeName::Hotmem => Mode::Hotmem,
            ModeName::Ranges => Mode::Ranges,
            ModeName::Plain => Mode::Plain,
            ModeName::Static => Mode::Static,
        };
        Ok(Plan { mode, partitions: self.partitions, image: image(mode)? })
    }
}

/// The libraries for instances, beside this program.
fn layers(without: &[Layer], advise: AdviseName) -> Result<Libraries> {
    let advise_as = match advise {
        AdviseName::Named => Advise::Named,
        AdviseName::Whole => Advise::Whole,
    };
    let snapshot = !without.contains(&Layer::Snapshot);
    let ready = !without.contains(&Layer::Ready);
    let mut layers = Libraries { advise: advise_as, snapshot, ready, ..Libraries::default() };
    if !without.contains(&Layer::Heap) {
        layers.heap = Some(libraries::heap().context("--without heap does without it")?);
    }
    if !without.contains(&Layer::Merge) {
        layers.merge =
            Some(libraries::find("libmayfly_merge.so").context("--without merge does without it")?);
    }
    if layers.heap.is_some() || layers.merge.is_some() {
        layers.rest =
            Some(libraries::find("libmayfly_rest.so").context("--without heap,merge does without it")?);
    }
    Ok(layers)
}

/// A loopback address: connections to it are not encrypted.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address = text.replace("localhost:", "127.0.0.1:").parse::<SocketAddr>();
    let address = address.map_err(|_| "an address with a port is needed, such as 127.0.0.1:5000")?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("it must be a loopback address, such as 127.0.0.1:5000".into())
    }
}

/// The folders as callers name them: absolute, and without links.
fn code_folders(given: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let whole =
        |folder: &PathBuf| folder.canonicalize().with_context(|| format!("--code-from {}", folder.display()));
    given.iter().map(whole).collect()
}

/// The key that callers sign with, where one is set.
fn key() -> Result<Option<Credentials>> {
    const KEY: &str = "MAYFLY_ACCESS_KEY_ID";
    const SECRET: &str = "MAYFLY_SECRET_ACCESS_KEY";
    let value = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    match (value(KEY), value(SECRET)) {
        (Some(access_key_id), Some(secret_access_key)) => {
            Ok(Some(Credentials { access_key_id, secret_access_key }))
        }
        (None, None) => Ok(None),
        _ => bail!("{KEY} and {SECRET} must be set together"),
    }
}

fn machine_memory_mib() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let kib: u64 = kib.and_then(|number| number.parse().ok()).context("/proc/meminfo has no MemTotal")?;
    Ok(kib >> 10)
}

/// `$XDG_CACHE_HOME/mayfly/worker`, or the same below `~/.cache`.
fn cache() -> Result<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
    Ok(base.context("neither XDG_CACHE_HOME nor HOME is set")?.join("mayfly/worker"))
}
