//! Starts programs: tools directly, instances through [`crate::launch`], which confines them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::fchown;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;

use cgroups::Group;
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags};
use rustix::mount::{MountFlags, mount};
use vm_protocol::{Confinement, PartitionNumber, Spawn};

use crate::plan::{Beginning, Identity, MemoryBinding, Plan, Report};
use crate::relay::{self, Ends};
use crate::user_namespaces;

/// The memory of an instance.
#[derive(Debug)]
pub struct Share {
    /// Its first partition, from whose number its users in the guest are computed.
    pub partition: PartitionNumber,
    pub memory: OwnedMemoryBinding,
    /// Size limit of its writable layer.
    pub layer_bytes: u64,
}

/// How an instance's memory is bound: [`MemoryBinding`] with an owned descriptor.
#[derive(Debug)]
pub enum OwnedMemoryBinding {
    Anywhere,
    Nodes(Vec<u32>),
    Hotmem(OwnedFd, u32),
}

/// The reports of an instance's first process.
pub struct Reports(BufReader<PipeReader>);

impl Reports {
    fn next(&mut self) -> Option<Report> {
        let mut line = String::new();
        self.0.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    /// How its program and its extensions end, one after the other, until the first process has ended.
    pub fn ends(mut self) -> impl Iterator<Item = (ExitStatus, Option<String>)> {
        std::iter::from_fn(move || match self.next()? {
            Report::Ended { status, extension } => Some((ExitStatus::from_raw(status), extension)),
            _ => None,
        })
    }
}

/// An instance that was started.
pub struct Confined {
    pub child: Child,
    pub reports: Reports,
    /// The extensions that run beside its program.
    pub extensions: Vec<String>,
    /// The agent's ends of its network.
    pub ends: Ends,
}

/// Starts a tool: as the guest's root, in a control group of its own, with the agent's memory and mounts.
pub fn start_tool(order: &Spawn, group: &Group, output: PipeWriter) -> io::Result<Child> {
    let mut command = Command::new(&order.argv[0]);
    command.args(&order.argv[1..]).env_clear();
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin").env("HOME", "/root").envs(&order.env);
    command.current_dir(order.cwd.as_deref().unwrap_or("/"));
    command.stdin(Stdio::piped()).stdout(output.try_clone()?).stderr(output);
    let procs = group.entrance()?;
    let cpus = &order.cpus;
    let mut cpu_set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|&cpu| cpu_set.set(cpu as usize));
    let any_cpu = cpus.is_empty();
    let child = move || {
        rustix::io::write(&procs, b"0")?;
        // Children must not inherit the agent's protection from the out-of-memory killer.
        let score = rustix::fs::openat(CWD, c"/proc/self/oom_score_adj", OFlags::WRONLY, Mode::empty())?;
        rustix::io::write(&score, b"500")?;
        if !any_cpu {
            rustix::thread::sched_setaffinity(None, &cpu_set)?;
        }
        Ok(rustix::process::setsid().map(drop)?)
    };
    // SAFETY: between fork and exec in a program with threads, only system calls are made: the closure
    // allocates nothing and takes no lock (rustix passes C strings on as they are, errors are numbers).
    unsafe { command.pre_exec(child) };
    command.spawn()
}

/// Starts an instance. `stdio` sets its standard streams; `output` is the pipe that it writes to, and
/// `of_extensions` the one of its extensions.
pub fn start(
    order: &Spawn,
    group: &Group,
    share: &Share,
    beginning: Beginning,
    stdio: impl FnOnce(&mut Command),
    output: &PipeWriter,
    of_extensions: Option<&PipeWriter>,
) -> io::Result<Confined> {
    let confinement = order.confinement.as_deref();
    let identity = Identity::of(share.partition, confinement.map_or(0, |confinement| confinement.user));
    let users = user_namespaces::namespace(identity)?;
    // So that it can open /dev/stdout, as shell scripts do.
    for pipe in [Some(output), of_extensions].into_iter().flatten() {
        fchown(pipe, Some(identity.outside()), Some(identity.outside()))?;
    }
    let (reports, report) = io::pipe()?;
    let procs = group.entrance()?;
    let memory = match &share.memory {
        OwnedMemoryBinding::Anywhere => MemoryBinding::Anywhere,
        OwnedMemoryBinding::Nodes(nodes) => MemoryBinding::Nodes(nodes.clone()),
        OwnedMemoryBinding::Hotmem(device, node) => {
            MemoryBinding::Hotmem { device: device.as_raw_fd(), node: *node }
        }
    };
    let mut env = order.env.clone();
    for (name, value) in [("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"), ("HOME", "/root")] {
        env.entry(name.to_string()).or_insert_with(|| value.to_string());
    }
    let network = confinement.and_then(|confinement| confinement.network.as_ref());
    let plan = Plan {
        name: order.instance.clone(),
        argv: order.argv.clone(),
        env,
        cwd: order.cwd.clone().unwrap_or_else(|| "/".to_string()),
        cpus: order.cpus.clone(),
        memory,
        report: report.as_raw_fd(),
        of_extensions: of_extensions.map(AsRawFd::as_raw_fd),
        group: procs.as_raw_fd(),
        users: users.as_raw_fd(),
        identity,
        layer_bytes: share.layer_bytes,
        resolvers: network.map(|network| network.resolvers.clone()),
        root: confinement.map(root).transpose()?.flatten(),
        binds: confinement.map(binds).transpose()?.unwrap_or_default(),
        fixed_layout: confinement.is_some_and(|confinement| confinement.fixed_layout),
        beginning,
    };
    let mut written = File::from(rustix::fs::memfd_create(c"plan", MemfdFlags::CLOEXEC)?);
    written.write_all(&serde_json::to_vec(&plan)?)?;
    io::Seek::rewind(&mut written)?;
    let mut passed: Vec<RawFd> = vec![written.as_raw_fd(), plan.report, plan.group, plan.users];
    passed.extend(plan.of_extensions);
    passed.extend(plan.beginning.descriptors());
    if let MemoryBinding::Hotmem { device, .. } = plan.memory {
        passed.push(device);
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0("vm-agent").arg("launch").arg(written.as_raw_fd().to_string()).env_clear();
    stdio(&mut command);
    // SAFETY: as for a tool, only system calls are made. The descriptors stay open until the command has been
    // started.
    unsafe {
        command.pre_exec(move || {
            for &descriptor in &passed {
                if libc::fcntl(descriptor, libc::F_SETFD, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    let port = confinement.map(|confinement| confinement.port);
    let address = network.map(|network| network.address);
    let (mut child, ends) = relay::spawn_in_namespaces(command, port, address)?;
    drop(report);
    let mut reports = Reports(BufReader::new(reports));
    match reports.next() {
        Some(Report::Started(extensions)) => Ok(Confined { child, reports, extensions, ends }),
        Some(Report::Failed(why)) => {
            let _ = child.wait();
            Err(io::Error::other(why))
        }
        _ => {
            let _ = child.kill();
            let status = child.wait()?;
            let why = format!("it ended while it was being started ({status}): has it enough memory?");
            Err(io::Error::other(why))
        }
    }
}

const CODE: &str = "/run/mayfly-code";
/// The serial number of the code disk's virtio-blk device.
const CODE_SERIAL: &str = "mayfly-code";

/// Where parts of the code disk may be mounted for a worker's function: the folders that it runs from, and
/// /dev/mayfly for a container image. An image's folders may be symbolic links, but /dev is the instance's
/// own.
const ALLOWED_TARGETS: [&str; 3] = ["/var/", "/opt", "/dev/mayfly/"];

/// The parts of the code disk that a worker's function sees: source and target of each mount.
fn binds(confinement: &Confinement) -> io::Result<Vec<(String, String)>> {
    if confinement.user == 0 {
        return Err(io::Error::other("a function cannot own its root"));
    }
    let checked = |(source, target): &(String, String)| {
        if !is_plain(target) || !ALLOWED_TARGETS.iter().any(|place| target.starts_with(place)) {
            return Err(io::Error::other(format!("{source} at {target}: not allowed")));
        }
        Ok((on_code_disk(source)?, target.clone()))
    };
    confinement.binds.iter().map(checked).collect()
}

/// The root of a container image, if the function has one.
fn root(confinement: &Confinement) -> io::Result<Option<String>> {
    confinement.root.as_deref().map(on_code_disk).transpose()
}

/// The path of a file on the code disk, which is mounted at the first call.
fn on_code_disk(name: &str) -> io::Result<String> {
    static MOUNTED: Mutex<bool> = Mutex::new(false);
    let mut mounted = MOUNTED.lock().expect("not poisoned");
    if !*mounted {
        mount_code()?;
        *mounted = true;
    }
    if !is_plain(name) {
        return Err(io::Error::other(format!("{name}: not allowed")));
    }
    Ok(format!("{CODE}/{}", name.trim_start_matches('/')))
}

fn is_plain(path: &str) -> bool {
    !path.split('/').any(|part| part == "..")
}

fn mount_code() -> io::Result<()> {
    let is_code = |entry: &std::fs::DirEntry| {
        let serial = std::fs::read_to_string(entry.path().join("serial"));
        serial.is_ok_and(|serial| serial.trim() == CODE_SERIAL)
    };
    let disk = std::fs::read_dir("/sys/block")?.flatten().find(is_code);
    let disk = disk.ok_or_else(|| io::Error::other("this VM has no disk with functions' code"))?;
    std::fs::create_dir_all(CODE)?;
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID;
    let device = std::path::Path::new("/dev").join(disk.file_name());
    Ok(mount(device, CODE, "ext4", flags, Some(c"noload"))?)
}
