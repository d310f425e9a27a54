//! How the agent starts programs: tools as they are, instances through [`crate::launch`], which confines them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::fchown;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;

use rustix::fs::{CWD, MemfdFlags, Mode, OFlags};
use rustix::mount::{MountFlags, mount};
use vm_protocol::{Confinement, Spawn};

use crate::cgroup::Group;
use crate::plan::{Identity, Plan, Report, Source};
use crate::relay::{self, Ends};
use crate::user_namespaces;

/// What an instance's memory may be.
#[derive(Debug)]
pub struct Share {
    /// Its first partition, which tells its users from those of others.
    pub partition: u32,
    pub source: OwnedSource,
    /// The most that its writable layer takes.
    pub layer_bytes: u64,
}

/// Where an instance's memory comes from; see [`Source`].
#[derive(Debug)]
pub enum OwnedSource {
    Anywhere,
    Nodes(Vec<u32>),
    Hotmem(OwnedFd, u32),
}

/// What the first process of an instance tells.
pub struct Reports(BufReader<PipeReader>);

impl Reports {
    fn next(&mut self) -> Option<Report> {
        let mut line = String::new();
        self.0.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    /// How its program ended, or which extension; `None` if its first process did not live to tell.
    pub fn ended(&mut self) -> Option<(ExitStatus, Option<String>)> {
        match self.next()? {
            Report::Ended { status, extension } => Some((ExitStatus::from_raw(status), extension)),
            _ => None,
        }
    }
}

/// An instance that was started.
pub struct Confined {
    pub child: Child,
    pub reports: Reports,
    /// The extensions beside its program.
    pub extensions: Vec<String>,
    /// By which it reaches the host, and further.
    pub ends: Ends,
}

/// Starts a tool: root in the guest, in a group of its own, with the agent's memory and view.
pub fn start_tool(order: &Spawn, group: &Group, output: PipeWriter) -> io::Result<Child> {
    let mut command = Command::new(&order.argv[0]);
    command.args(&order.argv[1..]).env_clear();
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin").env("HOME", "/root").envs(&order.env);
    command.current_dir(order.cwd.as_deref().unwrap_or("/"));
    command.stdin(Stdio::piped()).stdout(output.try_clone()?).stderr(output);
    let procs = group.procs()?;
    let cpus = &order.cpus;
    let mut cpu_set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|&cpu| cpu_set.set(cpu as usize));
    let any_cpu = cpus.is_empty();
    let child = move || {
        rustix::io::write(&procs, b"0")?;
        // The agent's own protection is not for its children.
        let score = rustix::fs::openat(CWD, c"/proc/self/oom_score_adj", OFlags::WRONLY, Mode::empty())?;
        rustix::io::write(&score, b"500")?;
        if !any_cpu {
            rustix::thread::sched_setaffinity(None, &cpu_set)?;
        }
        Ok(rustix::process::setsid().map(drop)?)
    };
    // SAFETY: between fork and exec in a program with threads, only system calls are made: the closure allocates nothing
    // and takes no lock (rustix passes C strings on as they are, errors are numbers).
    unsafe { command.pre_exec(child) };
    command.spawn()
}

/// Starts an instance. `stdio` has its standard streams set; `output` is the one it writes to.
pub fn start(
    order: &Spawn,
    group: &Group,
    share: &Share,
    stdio: impl FnOnce(&mut Command),
    output: &impl std::os::fd::AsFd,
) -> io::Result<Confined> {
    let confinement = order.confinement.as_deref();
    let identity = Identity::of(share.partition, confinement.map_or(0, |confinement| confinement.user));
    let users = user_namespaces::namespace(identity)?;
    // So that it can open /dev/stdout, as programs in shells do.
    fchown(output, Some(identity.outside()), Some(identity.outside()))?;
    let (reports, report) = io::pipe()?;
    let procs = group.procs()?;
    let source = match &share.source {
        OwnedSource::Anywhere => Source::Anywhere,
        OwnedSource::Nodes(nodes) => Source::Nodes(nodes.clone()),
        OwnedSource::Hotmem(device, node) => Source::Hotmem { device: device.as_raw_fd(), node: *node },
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
        source,
        report: report.as_raw_fd(),
        group: procs.as_raw_fd(),
        users: users.as_raw_fd(),
        identity,
        layer_bytes: share.layer_bytes,
        resolvers: network.map(|network| network.resolvers.clone()),
        root: confinement.map(root).transpose()?.flatten(),
        is_function: confinement.is_some(),
        binds: confinement.map(binds).transpose()?.unwrap_or_default(),
        fixed_layout: confinement.is_some_and(|confinement| confinement.fixed_layout),
    };
    let mut written = File::from(rustix::fs::memfd_create(c"plan", MemfdFlags::CLOEXEC)?);
    written.write_all(&serde_json::to_vec(&plan)?)?;
    io::Seek::rewind(&mut written)?;
    let mut passed: Vec<RawFd> = vec![written.as_raw_fd(), plan.report, plan.group, plan.users];
    if let Source::Hotmem { device, .. } = plan.source {
        passed.push(device);
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0("vm-agent").arg("launch").arg(written.as_raw_fd().to_string()).env_clear();
    stdio(&mut command);
    // SAFETY: as for a tool: only system calls. The descriptors stay open until the command has been started.
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
    let (mut child, ends) = relay::spawn_apart(command, port, address)?;
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
            let why = format!("it was ended while it was being started ({status}): is its memory enough?");
            Err(io::Error::other(why))
        }
    }
}

const CODE: &str = "/run/mayfly-code";
/// What `virtio-blk` says the code disk is.
const CODE_SERIAL: &str = "mayfly-code";

/// Where a worker's function may see parts of the code disk: what it runs from, and in an image's root, whose folders may be links,
/// the one below /dev, which is the instance's own.
const SEEN: [&str; 3] = ["/var/", "/opt", "/dev/mayfly/"];

/// What a worker's function sees of the code disk.
fn binds(confinement: &Confinement) -> io::Result<Vec<(String, String)>> {
    if confinement.user == 0 {
        return Err(io::Error::other("a function cannot own its root"));
    }
    let seen = |(source, target): &(String, String)| {
        if !is_plain(target) || !SEEN.iter().any(|place| target.starts_with(place)) {
            return Err(io::Error::other(format!("{source} at {target}: not allowed")));
        }
        Ok((of_code(source)?, target.clone()))
    };
    confinement.binds.iter().map(seen).collect()
}

/// The root of an image.
fn root(confinement: &Confinement) -> io::Result<Option<String>> {
    confinement.root.as_deref().map(of_code).transpose()
}

/// Where something of the code disk lies, which is mounted when it is first needed.
fn of_code(name: &str) -> io::Result<String> {
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
