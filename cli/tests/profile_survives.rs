//! A program below `mayfly profile` and `mayfly trace` ends as it does without them, and all of its recording
//! is there: on a full disk, in namespaces, over an exec.

mod synthetic;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lifetime::code::symbols::Symbols;
use lifetime::profile::contents::Profile;
use synthetic::{heap_library, mayfly};
use tempfile::{TempDir, tempdir};

/// Allocates before and, called with one argument, after it runs itself again.
const PROGRAM: &str = r#"
#include <stdlib.h>
#include <unistd.h>
#define FUNCTION __attribute__((noinline, noclone))
static void churn(size_t bytes) { for (int i = 0; i < 4000; i++) { char *p = malloc(bytes); *(volatile char *)p = 1; free(p); } }
FUNCTION void before_exec(void) { churn(50000); __asm__ volatile(""); }
FUNCTION void after_exec(void) { churn(30000); __asm__ volatile(""); }
int main(int count, char **arguments) {
    if (count > 2) { after_exec(); return 0; }
    before_exec();
    if (count > 1) { execl("/proc/self/exe", arguments[0], "again", "again", (char *)0); return 1; }
    return 0;
}
"#;

fn program(folder: &Path) -> PathBuf {
    let (source, program) = (folder.join("program.c"), folder.join("program"));
    std::fs::write(&source, PROGRAM).unwrap();
    let flags = ["-g", "-O1", "-fno-builtin", "-o"];
    assert!(Command::new("cc").args(flags).arg(&program).arg(&source).status().unwrap().success());
    program
}

fn profiled(out: &Path, command: &[&str]) -> Output {
    let mut profile = mayfly();
    profile.args(["profile", "--every", "16k", "-o"]).arg(out).arg("--").args(command);
    profile.env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap()
}

/// Bytes that this function and those that it calls allocated.
fn bytes_of(profile: &Profile, function: &str) -> f64 {
    let mut symbols = Symbols::new(profile);
    let contexts = profile.contexts.iter();
    let is_in = |frames: &[_]| frames.iter().any(|&frame| symbols.text_of(frame).contains(function));
    let mut is_in = is_in;
    contexts.filter(|context| is_in(&context.frames)).map(|context| context.bytes).sum()
}

#[test]
fn samples_before_an_exec_are_in_the_profile() {
    let folder = tempdir().unwrap();
    let (program, out) = (program(folder.path()), folder.path().join("out"));
    let output = profiled(&out, &[program.to_str().unwrap(), "exec"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let profile = Profile::read(&out.with_extension("profile")).unwrap();
    assert_eq!(profile.processes, 1);
    for (function, wanted) in [("before_exec", 200e6), ("after_exec", 120e6)] {
        let share = bytes_of(&profile, function) / wanted;
        assert!((0.85..1.15).contains(&share), "{function}: {share} of its bytes");
    }
}

#[test]
fn two_processes_of_one_number_have_a_profile_each() {
    let folder = tempdir().unwrap();
    let (program, out) = (program(folder.path()), folder.path().join("out"));
    if !Command::new("unshare").args(["-pf", "true"]).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: two_processes_of_one_number_have_a_profile_each: no PID namespaces");
        return;
    }
    let two = format!("unshare -pf {0} & one=$!; unshare -pf {0} & wait $! && wait $one", program.display());
    let output = profiled(&out, &["sh", "-c", &two]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let profile = Profile::read(&out.with_extension("profile")).unwrap();
    let share = bytes_of(&profile, "before_exec") / 400e6;
    assert!((0.85..1.15).contains(&share), "{share} of their bytes");
}

/// A file system of a few pages, for as long as this lives.
struct FullDisk(TempDir);

impl FullDisk {
    fn new() -> Option<Self> {
        let folder = tempdir().unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=16k,nr_inodes=20", "none"];
        let done = Command::new("mount").args(mount).arg(folder.path()).output().unwrap();
        done.status.success().then_some(FullDisk(folder))
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_ends_no_program_and_the_table_is_shown() {
    let folder = tempdir().unwrap();
    let Some(disk) = FullDisk::new() else {
        eprintln!("skipped: a_full_disk_ends_no_program_and_the_table_is_shown: cannot mount");
        return;
    };
    std::fs::write(disk.0.path().join("fill"), vec![0; 16 << 10]).unwrap();
    let (program, mark) = (program(folder.path()), folder.path().join("mark"));
    let script = format!("{} && echo ended well > {}", program.display(), mark.display());
    let output = profiled(&disk.0.path().join("out"), &["sh", "-c", &script]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(mark.is_file(), "{text}");
    assert!(text.contains("before_exec < main"), "{text}");
    assert!(text.lines().last().unwrap().contains("cannot write"), "{text}");
    assert_eq!(output.status.code(), Some(125));
}

#[test]
fn a_trace_is_of_the_program_that_a_process_runs_last() {
    let folder = tempdir().unwrap();
    let (program, out) = (program(folder.path()), folder.path().join("out.trace"));
    let traced = |name: &Path, arguments: &[&str]| {
        let mut trace = mayfly();
        trace.args(["trace", "-o"]).arg(name).arg("--").arg(&program).args(arguments);
        let output = trace.env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let text = traced(&out, &[]);
    assert!(text.contains("4,000 allocations") && !text.contains("has no end"), "{text}");
    let text = traced(&out, &["exec"]);
    assert!(text.contains("left out 1 ") && text.contains("4,000 allocations"), "{text}");

    let each = folder.path().join("%p.each");
    traced(&each, &["exec"]);
    let before = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path());
    let before = before.into_iter().find(|path| path.extension().is_some_and(|end| end == "each")).unwrap();
    let output = mayfly().arg("replay").arg(&before).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("the trace has no end"), "{text}");
}
