//! `mayfly run` and `mayfly trace` on real programs and the real heap.

mod synthetic;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use mayfly_cli::trace::file::{Operation, Reader};
use serde_json::Value;
use synthetic::{heap_library, mayfly, refusal};
use tempfile::tempdir;

/// `mayfly` with the built heap, in a folder without a mayfly.toml.
fn on_heap(folder: &Path) -> Command {
    let mut command = mayfly();
    command.env("MAYFLY_HEAP_LIB", heap_library()).env_remove("LD_PRELOAD").current_dir(folder);
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    on_heap(folder).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Compiles a C program and returns it.
fn compiled(folder: &Path, source: &str, options: &[&str]) -> PathBuf {
    let (code, program) = (folder.join("program.c"), folder.join("program"));
    std::fs::write(&code, source).unwrap();
    let status = Command::new("cc").arg("-o").arg(&program).arg(&code).args(options).status();
    assert!(status.expect("cc is installed").success());
    program
}

#[test]
fn the_exit_code_is_the_programs() {
    let folder = tempdir().unwrap();
    let code = |arguments: &[&str]| run(folder.path(), arguments).status.code();
    assert_eq!(code(&["run", "--", "true"]), Some(0));
    assert_eq!(code(&["run", "--", "sh", "-c", "exit 7"]), Some(7));
    assert_eq!(code(&["run", "--stats", "--", "sh", "-c", "exit 7"]), Some(7));
    assert_eq!(code(&["run", "--stats", "--", "sh", "-c", "kill -KILL $$"]), Some(137));
    let replaced = run(folder.path(), &["run", "--", "sh", "-c", "kill -KILL $$"]).status;
    assert_eq!(replaced.signal(), Some(9));
}

#[test]
fn the_heap_comes_before_other_preloaded_libraries() {
    let folder = tempdir().unwrap();
    let show = ["run", "--", "sh", "-c", "echo $LD_PRELOAD"];
    let heap = heap_library().display().to_string();
    assert_eq!(text(&run(folder.path(), &show).stdout).trim(), heap);
    let both = on_heap(folder.path()).args(show).env("LD_PRELOAD", "libm.so.6").output().unwrap();
    assert_eq!(text(&both.stdout).trim(), format!("{heap}:libm.so.6"));
}

#[test]
fn settings_reach_the_heap_in_their_order() {
    let folder = tempdir().unwrap();
    std::fs::write(folder.path().join("mayfly.toml"), "[heap]\nspans = \"lines\"\nk = 4\nretain = 9\n")
        .unwrap();
    let show =
        "echo $MAYFLY_HEAP_LIFETIMES $MAYFLY_HEAP_SPANS $MAYFLY_HEAP_DEADLINE_FACTOR $MAYFLY_HEAP_RETAIN";
    let mut command = on_heap(folder.path());
    command.args(["run", "--lifetimes", "fixed:1s", "--spans", "cells", "--", "sh", "-c", show]);
    let output = command.env("MAYFLY_HEAP_RETAIN", "5").output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "fixed:1s cells 4 5");
    assert_eq!(text(&output.stderr), "", "the heap accepts every value");

    // The option's new name and its old one, for one release.
    for option in ["--deadline-factor", "--k"] {
        let output = run(folder.path(), &["run", option, "7", "--", "sh", "-c", show]);
        assert_eq!(text(&output.stdout).trim(), "lines 7 9", "{option}");
    }

    std::fs::write(folder.path().join("mayfly.toml"), "[heap]\n\nspan = 1\n").unwrap();
    let line = refusal(&run(folder.path(), &["run", "--", "true"]), 125);
    assert!(line.starts_with("mayfly: mayfly.toml: line 3: unknown field `span`"), "{line}");
}

#[test]
fn names_programs_that_cannot_run() {
    let folder = tempdir().unwrap();
    let line = refusal(&run(folder.path(), &["run", "--", "no-such-command"]), 127);
    assert_eq!(line, "mayfly: no-such-command: command not found");

    let file = folder.path().join("old");
    std::fs::write(&file, b"\x7fELF\x01\x01\x01").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    let line = refusal(&run(folder.path(), &["run", "--", "./old"]), 126);
    assert!(line.ends_with("old: is a 32-bit program, the heap is for x86-64"), "{line}");

    let without_heap =
        mayfly().args(["run", "--", "true"]).env("MAYFLY_HEAP_LIB", "/nowhere/heap.so").output();
    let line = refusal(&without_heap.unwrap(), 125);
    assert_eq!(line, "mayfly: MAYFLY_HEAP_LIB=/nowhere/heap.so: no such file");

    let line = refusal(&run(folder.path(), &["run", "--lifetimes", "oracle=none.trace", "--", "true"]), 125);
    assert_eq!(line, "mayfly: none.trace: byte 0: No such file or directory");
}

#[test]
fn a_static_program_runs_with_a_warning() {
    let folder = tempdir().unwrap();
    let program = compiled(folder.path(), "int main(void) { return 3; }\n", &["-static"]);
    let output = run(folder.path(), &["run", "--", program.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3));
    let warning = format!(
        "mayfly: warning: {} is statically linked: it runs without Mayfly's heap\n",
        program.display()
    );
    assert_eq!(text(&output.stderr), warning);
}

#[test]
fn a_program_with_its_own_malloc_runs_with_a_warning() {
    let folder = tempdir().unwrap();
    let on_heap = |source, options: &[&str]| {
        let program = compiled(folder.path(), source, options);
        let output = run(folder.path(), &["run", "--stats", "--", program.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
        text(&output.stderr).replace(program.to_str().unwrap(), "PROGRAM")
    };
    let lines = on_heap("int main(void) { return 3; }\n", &["-fsanitize=address"]);
    assert!(lines.starts_with("mayfly: warning: PROGRAM is built with AddressSanitizer, "), "{lines}");
    let own = "static char room[64];
        void *malloc(unsigned long size) { return size > 64 ? 0 : room; }
        int main(void) { return malloc(3) == room ? 3 : 4; }\n";
    let lines = on_heap(own, &["-rdynamic", "-fno-builtin"]);
    assert!(lines.starts_with("mayfly: warning: PROGRAM has a malloc of its own: "), "{lines}");
}

#[test]
fn statistics_are_a_table_or_json() {
    let folder = tempdir().unwrap();
    let output = run(folder.path(), &["run", "--stats", "--", "echo", "hello"]);
    assert_eq!(text(&output.stdout), "hello\n");
    let table = text(&output.stderr);
    for key in ["heap.live_bytes", "heap.mapped_bytes", "heap.huge_pages.live", "heap.huge_pages.peak"] {
        assert!(table.lines().any(|line| line.starts_with(key)), "no {key} in:\n{table}");
    }
    let output = run(folder.path(), &["run", "--stats", "--json", "--", "true"]);
    let statistics: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(statistics["heap.live_bytes"].is_u64());

    let output = run(folder.path(), &["run", "--stats", "--", "sh", "-c", "kill -KILL $$"]);
    let first = "mayfly: no statistics: the program was ended by signal 9";
    assert_eq!(text(&output.stderr).lines().next(), Some(first));

    // A program that starts others: only its own statistics are written, or those of all. (dash exits by
    // _exit: none.)
    let shell = ["bash", "-c", "echo a | cat >/dev/null; exit 4"];
    let output = run(folder.path(), &[&["run", "--stats=own.json", "--"], &shell[..]].concat());
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    let own = std::fs::read(folder.path().join("own.json")).unwrap();
    assert!(serde_json::from_slice::<Value>(&own).unwrap()["heap.huge_pages.peak"].is_u64());
    run(folder.path(), &[&["run", "--stats=all.%p.json", "--"], &shell[..]].concat());
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let all = names.filter(|name| name.to_string_lossy().starts_with("all.")).count();
    assert!(all >= 2, "{all} files");
}

#[test]
fn shows_the_owners_of_memory_of_a_program_without_statistics() {
    let folder = tempdir().unwrap();
    let ended = ["sh", "-c", "sleep 2; kill -TERM $$"];
    let output = run(folder.path(), &[&["run", "--stats", "--"], &ended[..]].concat());
    let shown = text(&output.stderr);
    let (first, rest) = shown.split_once('\n').unwrap();
    assert_eq!(first, "mayfly: no statistics: the program was ended by signal 15");
    assert!(rest.starts_with("shortly before its end, process "), "{shown}");
    assert!(rest.contains("malloc, Mayfly's heap"), "{shown}");

    let output = run(folder.path(), &[&["run", "--stats", "--json", "--"], &ended[..]].concat());
    let shown = text(&output.stderr);
    let account: Value = serde_json::from_str(shown.split_once('\n').unwrap().1).unwrap();
    assert!(account["who.malloc_bytes"].is_u64(), "{shown}");
}

/// A filter that answers calls of socket(2) with the action of argument 1, for the program of the others.
const FILTERS_SOCKETS: &str = "
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int count, char **arguments) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, strtoul(arguments[1], NULL, 0)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {4, rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 99;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 99;
    execv(arguments[2], arguments + 2);
    return 98;
}
";

#[test]
fn control_is_off_under_a_filter_that_kills_at_a_socket() {
    let folder = tempdir().unwrap();
    let filter = compiled(folder.path(), FILTERS_SOCKETS, &[]);
    let control = |action: &str| {
        let output = Command::new(&filter)
            .arg(action)
            .arg(mayfly().get_program())
            .args(["run", "--", "sh", "-c", "echo $MAYFLY_HEAP_CONTROL"])
            .env("MAYFLY_HEAP_LIB", heap_library())
            .env_remove("MAYFLY_HEAP_CONTROL")
            .env_remove("LD_PRELOAD")
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout).trim().to_owned()
    };
    assert_eq!(control("0x80000000"), "", "SECCOMP_RET_KILL_PROCESS");
    assert_eq!(control("0x00050001"), "on", "SECCOMP_RET_ERRNO, EPERM");
}

#[test]
fn forwards_signals_to_the_program() {
    let folder = tempdir().unwrap();
    for signal in ["TERM", "USR1", "WINCH", "TTIN", "TTOU"] {
        let traps = format!("trap 'exit 9' {signal}; echo ready; while :; do sleep 0.1; done");
        let mut command = on_heap(folder.path());
        command.args(["run", "--stats", "--", "sh", "-c", &traps]);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let sent = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
        assert!(sent.unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(9), "{signal}");
    }
}

#[test]
fn ignored_signals_stay_ignored_in_the_program() {
    let folder = tempdir().unwrap();
    let output = Command::new("nohup")
        .arg(mayfly().get_program())
        .args(["run", "--stats", "--", "sh", "-c", "kill -HUP $$; echo alive"])
        .env("MAYFLY_HEAP_LIB", heap_library())
        .env_remove("LD_PRELOAD")
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), "alive\n", "{}", text(&output.stderr));
}

/// 1000 objects of 12345 B, 100 of them never freed, and 10 reallocations.
const ALLOCATES: &str = "
#include <stdlib.h>
int main(void) {
    static char *objects[1000];
    for (int i = 0; i < 1000; i++) objects[i] = malloc(12345);
    for (int i = 0; i < 1000; i++) if (i % 10) free(objects[i]);
    char *grown = malloc(7777);
    for (int i = 0; i < 10; i++) grown = realloc(grown, 7777 * (i + 2));
    free(grown);
    return 5;
}
";

#[test]
fn a_trace_holds_every_allocation_and_serves_as_oracle() {
    let folder = tempdir().unwrap();
    let program = compiled(folder.path(), ALLOCATES, &["-O0"]);
    let program = program.to_str().unwrap();
    let output = run(folder.path(), &["trace", "-o", "app.trace", "--json", "--", program]);
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(summary["trace.allocations"].as_u64().unwrap() >= 1011);
    assert!(summary["live.peak_bytes"].as_u64().unwrap() >= 1000 * 12345);
    assert_eq!(summary["trace.threads"].as_u64(), Some(1));
    assert_eq!(
        (&summary["trace.frees_missing"], &summary["trace.torn_bytes"]),
        (&Value::from(0), &Value::from(0))
    );

    let trace = folder.path().join("app.trace");
    let records: Vec<_> = Reader::open(&trace).unwrap().map(Result::unwrap).collect();
    let count = |size: u64| records.iter().filter(|record| record.size_bytes == size).count();
    assert_eq!(count(12345), 1000);
    assert!((1..=11).all(|times| count(7777 * times) == 1));
    let allocations = records.iter().filter(|record| record.operation == Operation::Allocation);
    assert!(allocations.clone().enumerate().all(|(index, record)| record.sequence as usize == index));
    assert!(allocations.clone().all(|record| record.caller != 0 && record.address % 16 == 0));

    let replay = run(folder.path(), &["replay", "app.trace", "--json", "--allocator", "recorded,mayfly"]);
    assert!(replay.status.success(), "{}", text(&replay.stderr));
    let result: Value = serde_json::from_slice(&replay.stdout).unwrap();
    assert!(result["live.end_bytes"].as_u64().unwrap() >= 100 * 12345);
    assert!(result["mayfly.2MiB.peak_bytes"].as_u64().unwrap() >= 1000 * 12345);

    let again = run(folder.path(), &["run", "--lifetimes", "oracle=app.trace", "--", program]);
    assert_eq!((again.status.code(), text(&again.stderr)), (Some(5), String::new()));
}

#[test]
fn leaves_out_or_keeps_traces_of_started_processes() {
    let folder = tempdir().unwrap();
    let shell = ["sh", "-c", "ls / | cat >/dev/null; true"];
    let output = run(folder.path(), &[&["trace", "-o", "own.trace", "--"], &shell[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("processes that it started"), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing but the trace is left");
    run(folder.path(), &[&["trace", "-o", "all.%p.trace", "--"], &shell[..]].concat());
    assert!(std::fs::read_dir(folder.path()).unwrap().count() >= 3);

    let line = refusal(&run(folder.path(), &["trace", "-o", "/nowhere/a.trace", "--", "true"]), 125);
    assert_eq!(line, "mayfly: /nowhere: no such directory");
}

#[test]
fn every_verb_has_help_with_examples() {
    let all = text(&mayfly().arg("--help").output().unwrap().stdout);
    for verb in
        ["run", "trace", "replay", "profile", "train", "predict", "share", "up", "load", "report", "sim"]
    {
        let output = mayfly().args([verb, "--help"]).output().unwrap();
        let help = text(&output.stdout);
        assert!(output.status.success() && help.contains("Examples"), "{verb}");
        assert!(help.contains(&format!("mayfly {verb}")), "{verb}");
        assert!(all.contains(&format!("\n  {verb} ")), "{verb} is not listed");
    }
    for layer in ["Objects:", "Pages:", "Virtual machines:", "Hardware:", "Functions:"] {
        assert!(all.contains(layer), "{layer}");
    }
}

#[test]
fn saves_learned_lifetimes_in_the_named_table() {
    let folder = tempdir().unwrap();
    let recalled = |arguments: &[&str]| {
        let all = [&["run"], arguments, &["--stats", "--json", "--", "ls", "/"]].concat();
        let output = run(folder.path(), &all);
        let statistics: Value = serde_json::from_slice(&output.stderr).unwrap();
        statistics["heap.predictions.recalled"].as_u64().unwrap()
    };
    assert_eq!(recalled(&["--table", "kept"]), 0);
    assert!(recalled(&["--table", "kept"]) > 0);
    assert_eq!((recalled(&["--table", "none"]), recalled(&[])), (0, 0));
    let files: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files, ["kept"], "nothing else, and no temporary file");
    let line = refusal(&run(folder.path(), &["run", "--table", "no/such/table", "--", "true"]), 125);
    assert_eq!(line, "mayfly: --table no/such/table: no such directory");
    let output = on_heap(folder.path())
        .args(["run", "--", "sh", "-c", "echo $MAYFLY_HEAP_TABLE"])
        .env("MAYFLY_HEAP_MODEL", "server.model")
        .output()
        .unwrap();
    let wanted = folder.path().canonicalize().unwrap().join("server.model.table");
    assert_eq!(text(&output.stdout).trim(), wanted.display().to_string(), "beside the model");
}
