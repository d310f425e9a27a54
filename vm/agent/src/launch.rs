//! The first process of an instance: `vm-agent launch PLAN`, where PLAN is a descriptor. The agent starts it
//! in PID and network namespaces of its own. It confines itself in this order, which matters ([`confine`],
//! [`drop_privileges`]): control group, memory, vCPUs, the other namespaces, root file system, privileges,
//! system calls. Then it starts the instance's program, and only reaps and passes SIGTERM on. When it ends,
//! the kernel kills all processes of the instance. This file and [`crate::root`] are all that limits an
//! instance.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::Pid;
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};
use vm_sandbox::extensions::{self, Extensions};
use vm_sandbox::syscalls::{Filter, Placement};
use vm_sandbox::termination;

use crate::begin;
use crate::memory::{assign, bind_to_node};
use crate::plan::{MemoryBinding, Plan, Report};
use crate::root;

/// `SECBIT_NOROOT`, `SECBIT_NO_SETUID_FIXUP`, `SECBIT_NO_CAP_AMBIENT_RAISE`, all locked: user 0 gets no
/// capabilities.
const SECURE_BITS: libc::c_ulong = 0b11 | 0b11 << 2 | 0b11 << 6;
/// Exit status if the program could not be started.
const NOT_STARTED: i32 = 125;

/// Confines this process and runs the instance; does not return.
pub fn launch(plan: RawFd) -> ! {
    // SAFETY: the agent opened it for this process, and nothing else here owns it.
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
            send(&mut report, &Report::Failed(why));
            std::process::exit(NOT_STARTED);
        }
    };
    // The output pipe must close when the program closes it, and only the program may read the input: replace
    // this process's.
    if let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") {
        for number in 0..3 {
            // SAFETY: passes numbers of open descriptors that nothing here uses any more.
            unsafe { libc::dup2(nothing.as_raw_fd(), number) };
        }
    }
    send(&mut report, &Report::Started(names));
    let reaped = termination::reap(program.as_raw_nonzero().get(), extensions, |status, extension| {
        send(&mut report, &Report::Ended { status, extension });
        Ok(())
    });
    std::process::exit(if reaped.is_ok() { 0 } else { NOT_STARTED })
}

fn send(report: &mut File, message: &Report) {
    // If this fails the agent has died, and its successor kills the instance.
    let _ = serde_json::to_vec(message).map(|mut line| {
        line.push(b'\n');
        report.write_all(&line)
    });
}

/// Prefixes an error with the step that failed.
fn at<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> String {
    move |error| format!("{what}: {error}")
}

/// Confines this process, which starts as the guest's root user. Most steps need that, so privileges are
/// dropped near the end.
fn confine(plan: &Plan) -> Result<(), String> {
    // The program must not inherit these.
    let mut descriptors = vec![plan.report, plan.group, plan.users];
    descriptors.extend(plan.of_extensions);
    descriptors.extend(plan.beginning.descriptors());
    if let MemoryBinding::Hotmem { device, .. } = plan.memory {
        descriptors.push(device);
    }
    for descriptor in descriptors {
        // SAFETY: passes numbers.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // SAFETY: the agent passed it open, and it stays open.
    let group = unsafe { BorrowedFd::borrow_raw(plan.group) };
    rustix::io::write(group, b"0").map_err(at("control group"))?;
    // Directly after joining the group: pages touched in between would be charged to it and lie outside its
    // partition.
    match &plan.memory {
        MemoryBinding::Anywhere => {}
        MemoryBinding::Nodes(nodes) => bind_to_node(nodes).map_err(at("memory policy"))?,
        MemoryBinding::Hotmem { device, node } => {
            // SAFETY: as above.
            let device = unsafe { BorrowedFd::borrow_raw(*device) };
            assign(device, *node).map_err(at("HotMem partition"))?;
        }
    }
    // Children must not inherit the agent's protection from the out-of-memory killer.
    std::fs::write("/proc/self/oom_score_adj", "500").map_err(at("out-of-memory score"))?;
    set_affinity(&plan.cpus)?;
    let namespaces =
        UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS | UnshareFlags::NEWCGROUP;
    // SAFETY: this process has one thread.
    unsafe { rustix::thread::unshare_unsafe(namespaces) }.map_err(at("namespaces"))?;
    // Mounting needs the guest's root user, so this comes before privileges are dropped.
    root::enter(plan).map_err(at("its root"))?;
    rustix::system::sethostname(plan.host().as_bytes()).map_err(at("host name"))?;
    drop_privileges(plan).map_err(at("privileges"))?;
    // Last: the filter forbids the calls above. It needs no privilege because no_new_privs is set.
    Filter::new(Placement::Fixed).and_then(|filter| filter.apply()).map_err(at("seccomp"))
}

fn set_affinity(cpus: &[u32]) -> Result<(), String> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu as usize));
    rustix::thread::sched_setaffinity(None, &set).map_err(at("vCPUs"))
}

/// Gives up all privileges. The order is security-critical: steps need capabilities that later ones drop.
///
/// 1. Enter the instance's user namespace: from here on capabilities count only in it.
/// 2. Empty the capability bounding set, so that no exec can gain a capability. Needs CAP_SETPCAP.
/// 3. Supplementary groups, group, then user: without CAP_SETGID, which a change of user may drop, groups
///    cannot change.
/// 4. no_new_privs: setuid programs and file capabilities have no effect. The seccomp filter requires it.
/// 5. Secure bits, for an instance that runs as user 0 of its namespace.
/// 6. Drop the remaining capabilities.
/// 7. Make this process undumpable, so that the program cannot read or trace it.
fn drop_privileges(plan: &Plan) -> io::Result<()> {
    if plan.fixed_layout {
        // SAFETY: a number; it changes this process alone.
        control(|| unsafe { libc::syscall(libc::SYS_personality, libc::ADDR_NO_RANDOMIZE) })?;
    }
    // 1.
    // SAFETY: numbers; it changes this process alone, which has one thread.
    control(|| unsafe { libc::syscall(libc::SYS_setns, plan.users, libc::CLONE_NEWUSER) })?;
    // 2.
    for number in 0..64 {
        if let Some(one) = CapabilitySet::from_bits(1 << number)
            && rustix::thread::capability_is_in_bounding_set(one).unwrap_or(false)
        {
            rustix::thread::remove_capability_from_bounding_set(one)?;
        }
    }
    // 3.
    let (user, none) = (plan.identity.user, std::ptr::null::<libc::gid_t>());
    // SAFETY: no groups, so the pointer is not read.
    control(|| unsafe { libc::syscall(libc::SYS_setgroups, 0, none) })?;
    // SAFETY: numbers; it changes this process alone, which has one thread.
    control(|| unsafe { libc::syscall(libc::SYS_setresgid, user, user, user) })?;
    // SAFETY: as before.
    control(|| unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) })?;
    // 4.
    // SAFETY: numbers; it changes this process alone.
    control(|| unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // 5. May fail for another user than 0, if the change of user dropped CAP_SETPCAP. Its result does not
    //    matter then: such a user gets no capabilities anyway.
    // SAFETY: numbers; it changes this process alone.
    let _ =
        control(|| unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_SECUREBITS, SECURE_BITS, 0, 0, 0) });
    // 6.
    let nothing = CapabilitySet::empty();
    let sets = CapabilitySets { effective: nothing, permitted: nothing, inheritable: nothing };
    rustix::thread::set_capabilities(None, sets)?;
    // 7. After the change of user, which sets this attribute anew. The program runs as the same user as this
    //    process, and could trace it otherwise.
    // SAFETY: numbers; it changes this process alone.
    control(|| unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0) })
}

/// Checks the result of a system call. Callers pass calls that take only numbers or null pointers and change
/// only this process, which has one thread; so their `unsafe` is sound.
fn control(call: impl Fn() -> libc::c_long) -> io::Result<()> {
    if call() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Starts the extensions, then the program.
fn start(plan: &Plan) -> Result<(Pid, Extensions, Vec<String>), String> {
    let [program, arguments @ ..] = &plan.argv[..] else { return Err("no program given".to_string()) };
    if let Err(error) = std::fs::metadata(&plan.cwd) {
        return Err(format!("working directory {}: {error}", plan.cwd));
    }
    CString::new(plan.cwd.as_str()).map_err(at("working directory"))?;
    begin::lay_out(&plan.beginning)?;
    let (mut names, mut extensions) = (Vec::new(), Extensions::default());
    if let Some(output) = plan.of_extensions {
        // SAFETY: the agent opened it for this process, and nothing else here owns it. It is closed here, so
        // that the pipe closes with the extensions.
        let output = unsafe { OwnedFd::from_raw_fd(output) };
        termination::pass_on().map_err(at("signals"))?;
        names = extensions::names().map_err(|error| error.to_string())?;
        let environment = plan.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let started = extensions::start(&names, environment, Some(output.as_fd()));
        extensions = started.map_err(|error| error.to_string())?;
    }
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(&plan.env).current_dir(&plan.cwd);
    command.stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
    // SAFETY: setsid may be called between fork and exec.
    unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
    let handed = begin::hand(&plan.beginning, &mut command).map_err(at("descriptors"))?;
    let child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    drop(handed);
    let program = Pid::from_raw(child.id() as i32).ok_or_else(|| "no process".to_string())?;
    Ok((program, extensions, names))
}
