//! `mayfly profile --pid` on a running program: its results, and the failures that it survives.

mod synthetic;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use lifetime::code::symbols::Symbols;
use lifetime::profile::contents::{Context, Profile};
use lifetime::profile::label::t95;
use synthetic::{heap_library, mayfly, refusal};
use tempfile::TempDir;

/// Allocates for ever, in different ways; prints its PID. With `fork`, a child does so, too; with `idle`, it
/// stops.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define FUNCTION __attribute__((noinline, noclone))
static void *kept[1 << 16];
static void touch(void *p) { *(volatile char *)p = 1; }
FUNCTION void brief(void) { for (int i = 0; i < 20000; i++) { void *p = malloc(100); touch(p); free(p); } }
FUNCTION void permanent(int i) { touch(kept[i % (1 << 16)] = malloc(3000)); }
int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (!strcmp(what, "fork")) { if (!fork()) { printf("%d\n", getpid()); fflush(stdout); } else setvbuf(stdout, 0, _IOFBF, 64); }
    else { printf("%d\n", getpid()); fflush(stdout); }
    brief();
    if (!strcmp(what, "idle")) pause();
    for (int i = 0;; i++) { brief(); permanent(i); usleep(1000); }
}
"#;

struct Program(Child, u32);

impl Program {
    /// Starts the program on the heap, so that it can be attached to.
    fn start(mode: &str) -> Self {
        let mut command = mayfly();
        command.args(["run", "--"]).arg(built());
        Self::of(command.arg(mode).env("MAYFLY_HEAP_LIB", heap_library()))
    }

    fn of(command: &mut Command) -> Self {
        use std::io::BufRead;
        use std::os::unix::process::CommandExt;
        let mut child = command.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self(child, line.trim().parse().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let group = i32::try_from(self.0.id()).unwrap();
        Command::new("kill").args(["-9", "--", &format!("-{group}")]).status().unwrap();
        self.0.wait().unwrap();
    }
}

fn built() -> &'static Path {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    &BUILT
        .get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            let (source, program) = (folder.path().join("runs.c"), folder.path().join("runs"));
            std::fs::write(&source, PROGRAM).unwrap();
            let flags = ["-O2", "-g", "-fno-builtin-malloc", "-o"];
            assert!(Command::new("cc").args(flags).arg(&program).arg(&source).status().unwrap().success());
            (folder, program)
        })
        .1
}

fn attach(pid: u32, seconds: &str, out: &Path) -> Command {
    let mut command = mayfly();
    command
        .args(["profile", "--pid", &pid.to_string(), "--seconds", seconds, "--every", "20k", "-o"])
        .arg(out);
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The context that `function` allocates in.
fn of<'a>(profile: &'a Profile, function: &str) -> &'a Context {
    let mut symbols = Symbols::new(profile);
    let caller = |context: &&Context| symbols.of(context.frames[0])[0].name == function;
    profile.contexts.iter().find(caller).unwrap_or_else(|| panic!("no context of {function}"))
}

fn check(out: &Path) {
    let profile = Profile::read(&out.with_extension("profile")).unwrap();
    let brief = of(&profile, "brief");
    assert!(brief.sampled > 20, "{brief:?}");
    assert!(t95(brief).unwrap() <= 2, "{brief:?}");
    let permanent = of(&profile, "permanent");
    assert!(permanent.live >= 1 && permanent.freed == 0, "{permanent:?}");
}

#[test]
fn samples_a_running_program_and_leaves_it_running_twice() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start("");
    // The fewest of several counts: for a moment, four times a second, the heap has the socket by which it
    // connects to us.
    let count = || {
        std::thread::sleep(Duration::from_millis(10));
        std::fs::read_dir(format!("/proc/{}/fd", program.1)).unwrap().count()
    };
    let open = || (0..20).map(|_| count()).min().unwrap();
    let before = open();
    for name in ["one", "two"] {
        let out = folder.path().join(name);
        let output = attach(program.1, "4", &out).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        assert!(text(&output).contains("samples of"), "{}", text(&output));
        check(&out);
        for suffix in ["pb.gz", "parquet", "symbols.parquet"] {
            assert!(out.with_extension(suffix).is_file(), "{suffix}");
        }
    }
    assert!(Path::new(&format!("/proc/{}", program.1)).exists());
    assert_eq!(open(), before, "no descriptor stays");
}

#[test]
fn refuses_a_second_profiler_until_the_first_has_died() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start("");
    let out = folder.path().join("first");
    let mut first = attach(program.1, "600", &out).stderr(Stdio::null()).spawn().unwrap();
    // The first one is attached once the program has its memory file.
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", program.1)).unwrap();
    wait_until(|| maps().contains("memfd:mayfly-profile"));
    let line = refusal(&attach(program.1, "1", &out).output().unwrap(), 125);
    assert_eq!(line, format!("mayfly: process {} is being profiled by another mayfly profile", program.1));
    first.kill().unwrap();
    first.wait().unwrap();
    let out = folder.path().join("after");
    let output = attach(program.1, "2", &out).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(of(&Profile::read(&out.with_extension("profile")).unwrap(), "brief").sampled > 20);
}

#[test]
fn a_forked_child_is_a_process_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start("fork"); // which prints the child's PID
    assert_ne!(program.1, program.0.id());
    for pid in [program.0.id(), program.1] {
        let out = folder.path().join(pid.to_string());
        let output = attach(pid, "3", &out).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        check(&out);
    }
}

/// A server with workers, of which it forks one later; it overwrites its environment, as for its title.
const SERVER: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#define FUNCTION __attribute__((noinline, noclone))
extern char **environ;
static void *kept[1 << 16];
FUNCTION void serve(int i) { *(volatile char *)(kept[i % (1 << 16)] = malloc(3000)) = 1; }
FUNCTION void supervise(void) { void *p = malloc(2000); *(volatile char *)p = 1; free(p); }
static void worker(void) { for (int i = 0;; i++) { serve(i); if (i % 10 == 0) usleep(1000); } }
int main(void) {
    for (char **line = environ; *line; line++) memset(*line, 0, strlen(*line));
    for (int i = 0; i < 2; i++) if (!fork()) worker();
    printf("%d\n", getpid());
    fflush(stdout);
    for (int i = 0;; i++) {
        supervise();
        usleep(1000);
        if (i == 3000 && !fork()) worker();
    }
}
"#;

#[test]
fn samples_a_servers_workers_though_its_environment_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let (source, binary) = (folder.path().join("server.c"), folder.path().join("server"));
    std::fs::write(&source, SERVER).unwrap();
    let flags = ["-O2", "-g", "-fno-builtin-malloc", "-o"];
    assert!(Command::new("cc").args(flags).arg(&binary).arg(&source).status().unwrap().success());
    let mut command = mayfly();
    let program =
        Program::of(command.args(["run", "--"]).arg(&binary).env("MAYFLY_HEAP_LIB", heap_library()));
    let environment = std::fs::read(format!("/proc/{}/environ", program.1)).unwrap();
    assert!(!environment.windows(6).any(|word| word == b"MAYFLY"), "it was overwritten");
    let out = folder.path().join("all");
    let output = attach(program.1, "10", &out).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let profile = Profile::read(&out.with_extension("profile")).unwrap();
    // The third worker may have started before.
    assert!((3..=4).contains(&profile.processes), "{}", text(&output));
    let serve = of(&profile, "serve");
    let left: u64 = serve.censored().iter().sum();
    assert!(serve.sampled > 20 && left > 0 && left == serve.live, "{serve:?}");
    assert!(lifetime::profile::label::lifetime(serve).unwrap().at_least, "the profile did not see them die");
    assert!(of(&profile, "supervise").freed > 0);

    let out = folder.path().join("one");
    let output = attach(program.1, "2", &out).arg("--only").output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let profile = Profile::read(&out.with_extension("profile")).unwrap();
    assert_eq!(profile.processes, 1);
    assert!(profile.contexts.iter().all(|context| context.freed > 0), "the server's own");
}

#[test]
fn profiles_repeatedly_into_a_data_set_until_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start("");
    let data = folder.path().join("profiles");
    let mut profiler = attach(program.1, "1", &data).args(["--again", "1s"]).spawn().unwrap();
    let tables = || -> Vec<PathBuf> {
        let below =
            |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        let files = below(data.join("program=runs")).flat_map(below);
        let is_table = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.ends_with(".parquet") && !name.ends_with(".symbols.parquet")
        };
        files.filter(is_table).collect()
    };
    wait_until(|| tables().len() >= 2);
    // SAFETY: the process is a child that was not waited for.
    assert_eq!(unsafe { libc::kill(i32::try_from(profiler.id()).unwrap(), libc::SIGTERM) }, 0);
    assert!(profiler.wait().unwrap().success());
    for table in tables() {
        assert!(table.parent().unwrap().file_name().unwrap().to_string_lossy().len() > "build=".len() + 8);
        for other in ["symbols.parquet", "pb.gz"] {
            let name = table.to_string_lossy().replace(".parquet", &format!(".{other}"));
            assert!(Path::new(&name).is_file(), "{name}");
        }
    }
    let entries = std::fs::read_dir(&data).unwrap().flatten().map(|entry| entry.file_name());
    assert_eq!(entries.collect::<Vec<_>>(), ["program=runs"], "nothing is left over");
}

#[test]
fn a_killed_profiler_leaves_its_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start("");
    let out = folder.path().join("out");
    let mut attached = attach(program.1, "600", &out).stderr(Stdio::null()).spawn().unwrap();
    let enough = |name: &str| {
        let profile = Profile::read(&folder.path().join(name));
        profile.is_ok_and(|profile| profile.contexts.iter().any(|context| context.sampled > 20))
    };
    wait_until(|| enough("out.profile"));
    // SAFETY: the process is a child that was not waited for.
    assert_eq!(unsafe { libc::kill(i32::try_from(attached.id()).unwrap(), libc::SIGRTMIN()) }, 0);
    wait_until(|| enough("out.1.profile"));
    attached.kill().unwrap();
    attached.wait().unwrap();
    let output = mayfly().args(["profile", "--from"]).arg(out.with_extension("profile")).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("brief"), "{}", text(&output));
}

#[test]
fn attaches_through_a_folder_to_a_program_in_other_namespaces() {
    // SAFETY: always allowed.
    if unsafe { libc::geteuid() } != 0 {
        return; // needs root to make namespaces
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--net", "--pid", "--fork", "--kill-child"]).arg(built()).arg("");
    command.env("LD_PRELOAD", heap_library()).env("MAYFLY_HEAP_CONTROL", folder.path());
    let program = Program::of(&mut command);
    assert_eq!(program.1, 1, "its PID in its own namespace");
    let of_unshare = format!("/proc/{0}/task/{0}/children", program.0.id());
    let pid: u32 = std::fs::read_to_string(of_unshare).unwrap().trim().parse().unwrap();
    // A socket left by a killed profiler does no harm.
    drop(std::os::unix::net::UnixListener::bind(folder.path().join("1")).unwrap());
    let out = folder.path().join("out");
    let output = attach(pid, "3", &out).arg("--control").arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    check(&out);
    assert!(!folder.path().join("1").exists(), "the socket is removed");
}

#[test]
fn keeps_the_profile_of_a_program_that_ends_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start("");
    let out = folder.path().join("out");
    let pid = program.1;
    let attached = attach(pid, "600", &out).stderr(Stdio::piped()).spawn().unwrap();
    let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    wait_until(|| maps().contains("memfd:mayfly-profile"));
    std::thread::sleep(Duration::from_secs(5)); // some samples; more on a faster machine
    drop(program);
    let output = attached.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains(&format!("process {pid} ended after")), "{}", text(&output));
    assert!(!Profile::read(&out.with_extension("profile")).unwrap().contexts.is_empty());
}

#[test]
fn names_processes_that_cannot_be_attached_to() {
    let out = tempfile::tempdir().unwrap();
    // With --only: the processes of other tests descend from this one.
    let line =
        |pid: u32| refusal(&attach(pid, "1", &out.path().join("x")).arg("--only").output().unwrap(), 125);
    assert_eq!(line(0x3FFF_FFFF), "mayfly: there is no process 1073741823");
    let own = std::process::id();
    assert!(line(own).contains("does not run on Mayfly's heap: start it with mayfly run"));
    let mut command = Command::new(built());
    let program = Program::of(command.env("LD_PRELOAD", heap_library()).env_remove("MAYFLY_HEAP_CONTROL"));
    let wanted = "cannot be attached to: start it with mayfly run, or MAYFLY_HEAP_CONTROL=on";
    assert!(line(program.1).ends_with(wanted));
    let mut command = Command::new(built());
    command.env("LD_PRELOAD", heap_library()).env("MAYFLY_HEAP_CONTROL", "on");
    let program = Program::of(command.env("MAYFLY_HEAP_PROFILE", out.path().join("own.profile")));
    assert!(line(program.1).ends_with("is being profiled from its start"));
}

#[test]
fn the_heap_accepts_root_without_rights_on_its_process() {
    // SAFETY: always allowed.
    if unsafe { libc::geteuid() } != 0 {
        return; // needs root, which the heap accepts
    }
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start("");
    // As in a container: this process has no rights outside its user namespace.
    let without_rights = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user"]);
        command
    };
    if !without_rights().arg("true").status().unwrap().success() {
        return; // this machine permits no user namespaces
    }
    let looked = without_rights().args(["cat", &format!("/proc/{}/maps", program.1)]).output().unwrap();
    assert!(text(&looked).contains("Permission denied"), "{}", text(&looked));
    let out = folder.path().join("out");
    let command = attach(program.1, "3", &out);
    let output = without_rights().arg(command.get_program()).args(command.get_args()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    check(&out);
}

#[test]
fn the_heap_refuses_another_users_socket() {
    // SAFETY: always allowed.
    if unsafe { libc::geteuid() } != 0 {
        return; // needs root to be two users
    }
    let program = Program::start("");
    // Another user's process listens where `mayfly profile` would: the heap must not accept its file.
    let script = "import os, socket, sys
s = socket.socket(socket.AF_UNIX)
os.setuid(65534)
s.bind('\\0mayfly-profile-' + sys.argv[1])
s.listen(5)
s.settimeout(20)
for _ in range(2):
    c = s.accept()[0]
    f = os.memfd_create('mayfly-stolen', os.MFD_ALLOW_SEALING)
    c.settimeout(5)
    try:
        socket.send_fds(c, [(20000).to_bytes(8, 'little')], [f])
        print(len(c.recv(8)))
    except ConnectionError: print(0)
";
    let mut python = Command::new("/usr/bin/python3");
    let output = python.args(["-c", script, &program.1.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n0\n", "closed without an answer");
    assert!(!std::fs::read_to_string(format!("/proc/{}/maps", program.1)).unwrap().contains("mayfly-stolen"));
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "it never happened");
        std::thread::sleep(Duration::from_millis(20));
    }
}
