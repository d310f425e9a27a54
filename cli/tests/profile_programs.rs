//! Profiles of programs that other tools built or read: pprof, Go with C code, code without unwind tables.

mod synthetic;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use synthetic::{heap_library, mayfly, refusal};
use tempfile::tempdir;

/// Objects of two functions: those of `brief` die after a fifth of a second, those of `kept` never.
const TWO_LIVES: &str = r#"
#include <stdlib.h>
#include <unistd.h>
enum { COUNT = 2000, SIZE = 1000 };
static void *objects[COUNT], *left[COUNT];
__attribute__((noinline)) void *brief(void) { return malloc(SIZE); }
__attribute__((noinline)) void *kept(void) { return malloc(SIZE); }
__attribute__((noinline)) void fill(void **table, void *(*make)(void)) {
    for (int i = 0; i < COUNT; i++) table[i] = make();
}
int main(void) {
    fill(left, kept);
    for (int round = 0; round < 3; round++) {
        fill(objects, brief);
        usleep(200000);
        for (int i = 0; i < COUNT; i++) free(objects[i]);
    }
    return left[7] == 0;
}
"#;

fn compiled(folder: &Path, options: &[&str]) -> PathBuf {
    let (code, program) = (folder.join("program.c"), folder.join("program"));
    std::fs::write(&code, TWO_LIVES).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-fno-optimize-sibling-calls", "-o"]).arg(&program).arg(&code).args(options);
    assert!(cc.status().unwrap().success());
    program
}

/// Profiles a program as `p` in the folder; returns what was shown.
fn profiled(folder: &Path, program: &Path) -> String {
    let mut command = mayfly();
    command.args(["profile", "--every", "4k", "-o", "p", "--"]).arg(program).current_dir(folder);
    let output = command.env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    text
}

fn has_go(test: &str) -> bool {
    let is_there = Command::new("go").arg("version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        let _ = writeln!(std::io::stderr(), "\nskipped: profile_programs::{test}: no Go");
    }
    is_there
}

#[test]
fn pprof_shows_the_objects_of_one_class() {
    if !has_go("pprof_shows_the_objects_of_one_class") {
        return;
    }
    let folder = tempdir().unwrap();
    let program = compiled(folder.path(), &[]);
    profiled(folder.path(), &program);
    // As docs/lifetime.md has it, with text in place of pages.
    let top = |focus: &str| {
        let mut pprof = Command::new("go");
        pprof.args(["tool", "pprof", "-top", "-tagfocus", focus, "p.pb.gz"]).current_dir(folder.path());
        let output = pprof.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let has = |text: &str, function: &str| text.lines().any(|line| line.ends_with(&format!(" {function}")));
    let one_second = top("lifetime=^1s$");
    assert!(has(&one_second, "brief") && !has(&one_second, "kept"), "{one_second}");
    let never = top("lifetime=^inf$");
    assert!(has(&never, "kept") && !has(&never, "brief"), "{never}");
}

#[test]
fn stacks_that_end_at_code_without_unwind_tables_are_named() {
    let folder = tempdir().unwrap();
    let for_debuggers = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    for (options, ends) in [(&for_debuggers[..], true), (&[], false)] {
        let program = compiled(folder.path(), options);
        let text = profiled(folder.path(), &program);
        let line =
            format!("mayfly: stacks end in {}, whose code has tables for debuggers alone", program.display());
        assert_eq!(text.contains(&line), ends, "{options:?}: {text}");
        let has_callers = text.lines().any(|line| line.contains("brief < fill"));
        assert_eq!(has_callers, !ends, "{options:?}: {text}");
    }
}

#[test]
fn c_code_of_a_dynamic_go_program_is_profiled() {
    if !has_go("c_code_of_a_dynamic_go_program_is_profiled") {
        return;
    }
    let folder = tempdir().unwrap();
    let source = "package main\n\n// #include <stdlib.h>\n\
        // void *from_c(void) { void *one = 0;\n// for (int i = 0; i < 2000; i++) one = malloc(1000);\n\
        // return one; }\n\
        import \"C\"\n\nfunc main() {\n\tif C.from_c() == nil {\n\t\tpanic(\"no memory\")\n\t}\n}\n";
    std::fs::write(folder.path().join("main.go"), source).unwrap();
    let built = |cgo: &str, source: &str, name: &str| {
        let mut go = Command::new("go");
        go.args(["build", "-o", name, source]).current_dir(folder.path()).env("CGO_ENABLED", cgo);
        go.env("GOTOOLCHAIN", "local");
        let output = go.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder.path().join(name)
    };
    let text = profiled(folder.path(), &built("1", "main.go", "with-c"));
    assert!(text.contains("is written in Go, whose objects are not malloc's"), "{text}");
    assert!(text.lines().any(|line| line.contains("from_c")), "{text}");

    std::fs::write(folder.path().join("plain.go"), "package main\n\nfunc main() {}\n").unwrap();
    let mut command = mayfly();
    command
        .args(["profile", "-o", "p", "--"])
        .arg(built("0", "plain.go", "plain"))
        .current_dir(folder.path());
    let line = refusal(&command.env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap(), 125);
    assert!(line.ends_with("use Go's own, runtime/pprof"), "{line}");
}
