//! The first process of an instance: `vm-agent launch PLAN`, where PLAN is a descriptor. The agent starts it in a PID
//! namespace and a network of its own. It gives up, one after the other, the rest of the guest, its user, its capabilities
//! and most system calls; then it starts the instance's program and does nothing but reap. With it ends all of the
//! instance. What an instance cannot do, it cannot do because of what is here and in [`crate::root`].

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, WaitOptions, wait};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};
use vm_sandbox::extensions::{self, Extensions};
use vm_sandbox::syscalls::{self, Placement};

use crate::memory::{assign, bind_to_node};
use crate::plan::{Plan, Report, Source};
use crate::root;

/// `SECBIT_NOROOT`, `SECBIT_NO_SETUID_FIXUP`, `SECBIT_NO_CAP_AMBIENT_RAISE`, all locked: being root gives nothing.
const SECURE_BITS: libc::c_ulong = 0b11 | 0b11 << 2 | 0b11 << 6;
/// Exit status of what could not be started.
const NOT_STARTED: i32 = 125;

/// Runs an instance; does not return.
pub fn launch(plan: RawFd) -> ! {
    // SAFETY: the agent opened it for this process, and nobody else here has it.
    let plan = unsafe { File::from_raw_fd(plan) };
    let plan: Plan = match serde_json::from_reader(plan) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("vm-agent: the plan of an instance: {error}");
            std::process::exit(NOT_STARTED);
        }
    };
    // SAFETY: as above.
    let mut report = unsafe { File::from_raw_fd(plan.report) };
    let (program, extensions, names) = match confine(&plan).and_then(|()| start(&plan)) {
        Ok(started) => started,
        Err(why) => {
            tell(&mut report, &Report::Failed(why));
            std::process::exit(NOT_STARTED);
        }
    };
    // Its output ends when the program's does, and its input is the program's alone.
    if let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") {
        for number in 0..3 {
            // SAFETY: passes numbers of open descriptors, which nothing here uses any more.
            unsafe { libc::dup2(nothing.as_raw_fd(), number) };
        }
    }
    tell(&mut report, &Report::Started(names));
    tell(&mut report, &reap(program, extensions));
    std::process::exit(0)
}

fn tell(report: &mut File, what: &Report) {
    // If the agent does not hear it, it has ended, and its successor ends the instance.
    let _ = serde_json::to_vec(what).map(|mut line| {
        line.push(b'\n');
        report.write_all(&line)
    });
}

/// Waits for everything in the namespace until the program has ended, or an extension that ends the instance.
fn reap(program: Pid, mut extensions: Extensions) -> Report {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => {
                let (process, status) = (pid.as_raw_nonzero().get() as u32, status.as_raw());
                let extension = extensions.ended(process, status);
                if pid == program || extension.is_some() {
                    return Report::Ended { status, extension };
                }
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Report::Ended { status: 0, extension: None },
        }
    }
}

/// What failed, for people.
fn at<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> String {
    move |error| format!("{what}: {error}")
}

fn confine(plan: &Plan) -> Result<(), String> {
    let mut descriptors = vec![plan.report, plan.group, plan.users];
    if let Source::Hotmem { device, .. } = plan.source {
        descriptors.push(device);
    }
    for descriptor in descriptors {
        // SAFETY: passes numbers.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // SAFETY: the agent passed it open, and it stays so.
    let group = unsafe { BorrowedFd::borrow_raw(plan.group) };
    rustix::io::write(group, b"0").map_err(at("control group"))?;
    // At once: what it touches in between would be the instance's and lie outside its partition.
    match &plan.source {
        Source::Anywhere => {}
        Source::Nodes(nodes) => bind_to_node(nodes).map_err(at("memory policy"))?,
        Source::Hotmem { device, node } => {
            // SAFETY: as above.
            let device = unsafe { BorrowedFd::borrow_raw(*device) };
            assign(device, *node).map_err(at("HotMem partition"))?;
        }
    }
    // The agent's own protection is not for its children.
    std::fs::write("/proc/self/oom_score_adj", "500").map_err(at("out-of-memory score"))?;
    stay_on(&plan.cpus)?;
    let apart = UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS | UnshareFlags::NEWCGROUP;
    // SAFETY: this process has one thread.
    unsafe { rustix::thread::unshare_unsafe(apart) }.map_err(at("namespaces"))?;
    root::enter(plan).map_err(at("its root"))?;
    let host: String = plan.name.chars().take(63).collect();
    rustix::system::sethostname(host.as_bytes()).map_err(at("host name"))?;
    give_up_privileges(plan).map_err(at("privileges"))?;
    syscalls::confine(Placement::Fixed).map_err(at("seccomp"))
}

fn stay_on(cpus: &[u32]) -> Result<(), String> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu as usize));
    rustix::thread::sched_setaffinity(None, &set).map_err(at("vCPUs"))
}

fn give_up_privileges(plan: &Plan) -> io::Result<()> {
    if plan.fixed_layout {
        control(|| unsafe { libc::syscall(libc::SYS_personality, libc::ADDR_NO_RANDOMIZE) })?;
    }
    control(|| unsafe { libc::syscall(libc::SYS_setns, plan.users, libc::CLONE_NEWUSER) })?;
    for number in 0..64 {
        if let Some(one) = CapabilitySet::from_bits(1 << number)
            && rustix::thread::capability_is_in_bounding_set(one).unwrap_or(false)
        {
            rustix::thread::remove_capability_from_bounding_set(one)?;
        }
    }
    let (user, none) = (plan.identity.user, std::ptr::null::<libc::gid_t>());
    control(|| unsafe { libc::syscall(libc::SYS_setgroups, 0, none) })?;
    control(|| unsafe { libc::syscall(libc::SYS_setresgid, user, user, user) })?;
    control(|| unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) })?;
    // The second may be lost with the change of user, together with what it protects against.
    control(|| unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    let _ =
        control(|| unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_SECUREBITS, SECURE_BITS, 0, 0, 0) });
    let nothing = CapabilitySet::empty();
    let sets = CapabilitySets { effective: nothing, permitted: nothing, inheritable: nothing };
    rustix::thread::set_capabilities(None, sets)?;
    // Nor is this process the program's to look into, which has the same user.
    control(|| unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0) })
}

/// A call that passes numbers, or pointers to nothing, and changes this process, which has one thread.
fn control(call: impl Fn() -> libc::c_long) -> io::Result<()> {
    if call() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Starts the extensions that there are, then the program.
fn start(plan: &Plan) -> Result<(Pid, Extensions, Vec<String>), String> {
    let [program, arguments @ ..] = &plan.argv[..] else { return Err("no program given".to_string()) };
    if let Err(error) = std::fs::metadata(&plan.cwd) {
        return Err(format!("working directory {}: {error}", plan.cwd));
    }
    CString::new(plan.cwd.as_str()).map_err(at("working directory"))?;
    let (mut names, mut extensions) = (Vec::new(), Extensions::default());
    if plan.is_function {
        names = extensions::names().map_err(|error| error.to_string())?;
        let environment = plan.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        extensions = extensions::start(&names, environment).map_err(|error| error.to_string())?;
    }
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(&plan.env).current_dir(&plan.cwd);
    command.stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
    // SAFETY: setsid may be called between fork and exec.
    unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
    let child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    let program = Pid::from_raw(child.id() as i32).ok_or_else(|| "no process".to_string())?;
    Ok((program, extensions, names))
}
