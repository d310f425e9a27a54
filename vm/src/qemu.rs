//! The QEMU process: its command line, its start, its end.
//!
//! Monitor, agent port and console are socket pairs that QEMU inherits: nothing in the file system, nobody else can
//! connect, nothing stays behind. QEMU is killed by the kernel when the thread that started it ends, so that thread
//! stays until QEMU does.

use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use vm_protocol::{Mode, PORT, relay};

use crate::accelerator::Accelerator;
use crate::error::Error;
use crate::settings::Settings;

const PROGRAM: &str = "qemu-system-x86_64";

/// QEMU's name for the agent's virtio-serial port, in its events too.
pub const AGENT_PORT: &str = "agent-port";

/// The last of the guest's console is kept: enough for a kernel's last words.
const CONSOLE_BYTES: usize = 64 << 10;

/// The first PCI slot for virtio-mem devices; eight functions a slot, up to slot 31.
const FIRST_MEMORY_SLOT: u32 = 6;

/// Finds QEMU.
///
/// # Errors
/// It is not installed.
pub fn find() -> Result<PathBuf, Error> {
    which::which(PROGRAM)
        .map_err(|_| Error::Missing(format!("{PROGRAM} is not installed: apt install qemu-system-x86")))
}

/// A virtio-mem device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryDevice {
    /// Which one.
    pub device: Device,
    /// All that it can plug.
    pub bytes: u64,
    /// The guest's NUMA node of its memory.
    pub node: u32,
}

/// Names a virtio-mem device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Device {
    /// The shared partition.
    Shared,
    /// A partition.
    Partition(u32),
    /// Mode `plain`: the one device for everything.
    All,
}

impl Device {
    /// Its id in QEMU.
    pub fn id(self) -> String {
        match self {
            Device::Shared => "shared".to_string(),
            Device::Partition(number) => format!("partition{number}"),
            Device::All => "all".to_string(),
        }
    }
}

/// The virtio-mem devices of a VM.
pub fn memory_devices(settings: &Settings) -> Vec<MemoryDevice> {
    let layout = &settings.layout;
    match layout.mode {
        Mode::Static => Vec::new(),
        Mode::Plain => vec![MemoryDevice { device: Device::All, bytes: settings.hotplug_bytes(), node: 0 }],
        Mode::Nodes | Mode::Hotmem => {
            let shared = MemoryDevice {
                device: Device::Shared,
                bytes: layout.shared_bytes,
                node: layout.shared_node(),
            };
            let partitions = (0..layout.partitions).map(|number| MemoryDevice {
                device: Device::Partition(number),
                bytes: layout.partition_bytes,
                node: layout.node_of(number),
            });
            (layout.shared_bytes > 0).then_some(shared).into_iter().chain(partitions).collect()
        }
    }
}

/// What a guest that has broken out of its devices' emulation must do without: starting programs, becoming somebody
/// else, moving itself to other CPUs or priorities, and system calls that QEMU never makes. By QEMU's own seccomp
/// filter, on all its threads.
const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// The arguments for QEMU. The descriptors are those of monitor, agent port and console.
fn arguments(settings: &Settings, accelerator: Accelerator, descriptors: [RawFd; 4]) -> Vec<String> {
    let layout = &settings.layout;
    let devices = memory_devices(settings);
    let nodes = if matches!(layout.mode, Mode::Nodes | Mode::Hotmem) { devices.len() as u32 } else { 0 };
    let cpus = settings.cpus;
    let [monitor, agent, console, relay] = descriptors;
    let boot_bytes = settings.memory_at_boot_bytes();
    // Room for every device, and for QEMU to align each one.
    let plug_bytes: u64 = devices.iter().map(|device| device.bytes + (128 << 20)).sum();
    let max = if devices.is_empty() {
        String::new()
    } else {
        format!(",slots=1,maxmem={}", boot_bytes + plug_bytes + (4 << 30))
    };
    let mut list: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| list.extend(words.iter().map(ToString::to_string));
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    add(&["-sandbox", SANDBOX]);
    add(&["-name", &format!("mayfly-{},debug-threads=on", settings.name), "-machine", "pc,mem-merge=off"]);
    add(&["-accel", accelerator.option(), "-cpu", accelerator.cpu()]);
    let all = cpus + nodes;
    add(&[
        "-smp",
        &format!("{cpus},maxcpus={all},sockets={all},cores=1,threads=1"),
        "-m",
        &format!("size={boot_bytes}B{max}"),
    ]);
    add(&["-object", &format!("memory-backend-ram,id=memory-boot,size={boot_bytes}B,reserve=off")]);
    add(&["-numa", "node,nodeid=0,memdev=memory-boot"]);
    // QEMU describes an empty node to the guest only if a CPU sits on it: one that is never there.
    for node in 1..=nodes {
        add(&["-numa", &format!("node,nodeid={node}")]);
    }
    for cpu in 0..cpus + nodes {
        let node = (cpu + 1).saturating_sub(cpus);
        add(&["-numa", &format!("cpu,node-id={node},socket-id={cpu}")]);
    }
    add(&["-chardev", &format!("socket,id=monitor,fd={monitor}"), "-mon", "chardev=monitor,mode=control"]);
    add(&["-chardev", &format!("socket,id=console,fd={console}"), "-serial", "chardev:console"]);
    add(&["-device", "virtio-serial-pci,addr=4", "-chardev", &format!("socket,id=agent,fd={agent}")]);
    add(&["-device", &format!("virtserialport,id={AGENT_PORT},chardev=agent,name={PORT}")]);
    add(&["-chardev", &format!("socket,id=relay,fd={relay}")]);
    add(&["-device", &format!("virtserialport,id=relay-port,chardev=relay,name={}", relay::PORT)]);
    if let Some(disk) = &settings.image.disk {
        let disk = comma_escaped(disk);
        add(&["-drive", &format!("if=none,id=root,format=raw,readonly=on,file={disk}")]);
        add(&["-device", "virtio-blk-pci,drive=root,addr=5"]);
    }
    if let Some(disk) = &settings.code {
        let disk = comma_escaped(disk);
        add(&["-drive", &format!("if=none,id=code,format=raw,readonly=on,file={disk}")]);
        // Behind the root disk, which the agent takes for the first.
        add(&["-device", "virtio-blk-pci,drive=code,addr=1e,serial=mayfly-code"]);
    }
    if settings.reports_free_memory {
        add(&["-device", "virtio-balloon-pci,addr=1d,free-page-reporting=on"]);
    }
    for (index, MemoryDevice { device, bytes, node }) in devices.into_iter().enumerate() {
        let (id, slot, function) = (device.id(), FIRST_MEMORY_SLOT + index as u32 / 8, index % 8);
        let first = if function == 0 { ",multifunction=on" } else { "" };
        add(&["-object", &format!("memory-backend-ram,id=memory-{id},size={bytes}B,reserve=off")]);
        add(&[
            "-device",
            &format!(
                "virtio-mem-pci,id={id},memdev=memory-{id},node={node},requested-size=0,addr={slot:x}.{function}{first}"
            ),
        ]);
    }
    add(&[
        "-kernel",
        &settings.image.kernel.to_string_lossy(),
        "-initrd",
        &settings.image.initrd.to_string_lossy(),
    ]);
    add(&["-append", &kernel_command_line(settings)]);
    list
}

fn kernel_command_line(settings: &Settings) -> String {
    let layout = &settings.layout;
    let mut words =
        vec!["console=ttyS0 quiet panic=-1 oops=panic memhp_default_state=online_movable".to_string()];
    if layout.mode == Mode::Hotmem {
        words.push(format!(
            "hotmem.partitions={} hotmem.shared_node={}",
            layout.partitions,
            layout.shared_node()
        ));
    }
    words.extend(
        [settings.image.append.clone(), settings.append.clone()].into_iter().filter(|text| !text.is_empty()),
    );
    words.join(" ")
}

fn comma_escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// A QEMU that runs, and the host's ends of its sockets.
pub struct Qemu {
    /// Its process.
    pub pid: u32,
    /// To kill it by.
    pub handle: Handle,
    /// For [`crate::monitor::Monitor`].
    pub monitor: UnixStream,
    /// For [`crate::guest::Guest`].
    pub agent: UnixStream,
    /// Connections of functions ([`vm_protocol::relay`]).
    pub relay: UnixStream,
    /// The last of the guest's console.
    pub console: Arc<Mutex<Vec<u8>>>,
}

impl Qemu {
    /// Starts QEMU. `on_end` is called once, when it has ended, with one line that says how.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(
        program: &Path,
        settings: &Settings,
        accelerator: Accelerator,
        on_end: impl FnOnce(String) + Send + 'static,
    ) -> Result<Qemu, Error> {
        let failed =
            |error: std::io::Error| Error::Failed(format!("cannot start {}: {error}", program.display()));
        let (monitor, its_monitor) = UnixStream::pair().map_err(failed)?;
        let (agent, its_agent) = UnixStream::pair().map_err(failed)?;
        let (console_reader, its_console) = UnixStream::pair().map_err(failed)?;
        let (relay, its_relay) = UnixStream::pair().map_err(failed)?;
        let theirs = [its_monitor, its_agent, its_console, its_relay];
        let descriptors = theirs.each_ref().map(AsRawFd::as_raw_fd);
        let mut command = Command::new(program);
        command.args(arguments(settings, accelerator, descriptors)).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let parent = std::process::id();
        // SAFETY: the closure only makes system calls that are allowed between fork and exec, on plain values.
        unsafe { command.pre_exec(move || inherit_and_die_with(parent, descriptors)) };

        let console = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&console);
        spawn_thread("vm-console", move || keep_last(console_reader, &kept, CONSOLE_BYTES))?;
        let (started, start) = channel();
        let words = Arc::clone(&console);
        spawn_thread("vm-qemu", move || {
            let mut child = match command.spawn() {
                Ok(child) => child,
                Err(error) => return drop(started.send(Err(error))),
            };
            drop(theirs);
            let handle = Handle::new(&child);
            if handle.is_err() {
                let _ = child.kill();
            }
            let _ = started.send(handle.map(|handle| (child.id(), handle)));
            on_end(watch(&mut child, &words));
        })?;
        let (pid, handle) =
            start.recv().map_err(|_| Error::Failed("QEMU's thread ended".to_string()))?.map_err(failed)?;
        Ok(Qemu { pid, handle, monitor, agent, relay, console })
    }
}

/// Names QEMU's process and no other, also when it has ended (a pidfd). Dropping it kills QEMU.
pub struct Handle(OwnedFd);

impl Handle {
    /// For a child that has not been waited for.
    fn new(child: &Child) -> std::io::Result<Handle> {
        // SAFETY: takes plain values and returns a new descriptor or -1.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id() as libc::pid_t, 0) };
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
        Ok(Handle(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) }))
    }

    /// Kills it, if it has not ended.
    pub fn kill(&self) {
        let nothing = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open, and a null pointer is allowed here.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), libc::SIGKILL, nothing, 0) };
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let started = std::thread::Builder::new().name(name.to_string()).spawn(work);
    started.map(drop).map_err(|error| Error::Failed(format!("cannot start a thread: {error}")))
}

/// In the child: keeps the sockets over exec, and asks to be killed with the parent.
fn inherit_and_die_with(parent: u32, descriptors: [RawFd; 4]) -> std::io::Result<()> {
    for descriptor in descriptors {
        // SAFETY: changes a flag of a descriptor that this process has.
        if unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) } < 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    // SAFETY: takes and returns plain values.
    let asked = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: takes and returns plain values.
    let now = unsafe { libc::getppid() };
    // The parent may have died before it was asked for.
    if asked < 0 || now as u32 != parent {
        return Err(std::io::ErrorKind::Interrupted.into());
    }
    Ok(())
}

/// Waits for QEMU and says how it ended: its own words, else the guest's last ones.
fn watch(child: &mut Child, console: &Mutex<Vec<u8>>) -> String {
    let mut words = Vec::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_end(&mut words);
    }
    let how = match child.wait() {
        Ok(status) => how_it_ended(status),
        Err(error) => error.to_string(),
    };
    let words = String::from_utf8_lossy(&words).into_owned();
    let console = String::from_utf8_lossy(&console.lock().expect("no panic under this lock")).into_owned();
    // What went wrong comes before the panic that it led to.
    let last = |text| console.lines().rev().find(|line| line.contains(text));
    let panic = last("Oops: ").or(last("Kernel panic"));
    match words.lines().rev().find(|line| !line.trim().is_empty() && !line.contains("warning:")).or(panic) {
        Some(line) => format!("{how}: {}", line.trim()),
        None => how,
    }
}

fn how_it_ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(0), _) => "the guest powered off or rebooted".to_string(),
        (Some(code), _) => format!("QEMU exited with code {code}"),
        (None, Some(signal)) => format!("QEMU was killed by signal {signal}"),
        (None, None) => "QEMU ended".to_string(),
    }
}

fn keep_last(mut reader: UnixStream, kept: &Mutex<Vec<u8>>, limit: usize) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = reader.read(&mut bytes) {
        let mut kept = kept.lock().expect("no panic under this lock");
        kept.extend_from_slice(&bytes[..count]);
        if kept.len() > 2 * limit {
            let surplus = kept.len() - limit;
            kept.drain(..surplus);
        }
    }
}
