//! Names from files beside a program: `.gnu_debuglink`, `dwz`'s, a `.dwp`; and a reason where there are none.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use lifetime::code::symbols::{Symbols, build_id};
use lifetime::profile::contents::{Frame, Module, Profile};

const PROGRAM: &str = "
#include <stdlib.h>
static inline __attribute__((always_inline)) char *inlined(int n) { char *p = malloc(n); p[0] = 1; return p; }
__attribute__((noinline)) char *outer(int n) { return inlined(n + 1); }
int main(int count, char **arguments) { return outer(count)[0] == (arguments == 0); }
";

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The program, and the addresses of `outer`.
fn built(folder: &Path, flags: &[&str]) -> (PathBuf, Range<u64>) {
    let (source, program) = (folder.join("program.c"), folder.join("program"));
    std::fs::write(&source, PROGRAM).unwrap();
    let build_id = "-Wl,--build-id";
    let mut cc = Command::new("cc");
    cc.current_dir(folder).args(["-O1", build_id]).args(flags).arg("-o").arg(&program).arg(&source);
    run(&mut cc);
    let symbols = run(Command::new("nm").arg("-S").arg(&program));
    let line = symbols.lines().find(|line| line.ends_with(" outer")).unwrap();
    let number = |field: usize| u64::from_str_radix(line.split_whitespace().nth(field).unwrap(), 16).unwrap();
    (program, number(0)..number(0) + number(1))
}

/// The names of that function's code, and what is said about the program.
fn names(program: &Path, addresses: Range<u64>) -> (Vec<String>, Vec<String>) {
    let build_id = build_id(program).unwrap();
    let module = Module { path: program.into(), build_id, addresses: 0..1 << 30, load_address: 0 };
    let profile = Profile { modules: vec![module], ..Profile::default() };
    let mut symbols = Symbols::new(&profile);
    let found = addresses.map(|address| symbols.text_of(Frame { module: Some(0), offset: address + 1 }));
    (found.collect(), symbols.missing)
}

fn objcopy(program: &Path, arguments: &[&str]) {
    run(Command::new("objcopy").args(arguments).arg(program));
}

#[test]
fn a_debuglink_gives_inlined_functions() {
    let folder = tempfile::tempdir().unwrap();
    let (program, outer) = built(folder.path(), &["-g"]);
    let with_names = |wanted: bool| {
        let (names, missing) = names(&program, outer.clone());
        assert_eq!(names.contains(&"inlined;outer".to_owned()), wanted, "{names:?}");
        assert!(missing.is_empty(), "{missing:?}");
    };
    with_names(true);
    let debug = folder.path().join("program.debug");
    run(Command::new("objcopy").arg("--only-keep-debug").arg(&program).arg(&debug));
    objcopy(&program, &["--strip-all", &format!("--add-gnu-debuglink={}", debug.display())]);
    with_names(true);
    std::fs::create_dir(folder.path().join(".debug")).unwrap();
    std::fs::rename(&debug, folder.path().join(".debug/program.debug")).unwrap();
    with_names(true);
    // Of another build.
    let other = tempfile::tempdir().unwrap();
    let (another, _) = built(other.path(), &["-g", "-DOTHER", "-O0"]);
    std::fs::rename(another, folder.path().join(".debug/program.debug")).unwrap();
    with_names(false);
}

#[test]
fn a_package_of_split_symbols_gives_inlined_functions() {
    let folder = tempfile::tempdir().unwrap();
    let (program, outer) = built(folder.path(), &["-gsplit-dwarf", "-gdwarf-5"]);
    let files = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path());
    let split: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "dwo")).collect();
    let package = folder.path().join("program.dwp");
    let packed = ["llvm-dwp", "dwp"].iter().any(|tool| {
        let done = Command::new(tool).arg("-e").arg(&program).arg("-o").arg(&package).output();
        done.is_ok_and(|output| output.status.success())
    });
    split.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    if !packed {
        eprintln!("skipped: a_package_of_split_symbols_gives_inlined_functions: no dwp");
        return;
    }
    let (found, _) = names(&program, outer.clone());
    assert!(found.contains(&"inlined;outer".to_owned()), "{found:?}");
    std::fs::remove_file(&package).unwrap();
    let (found, _) = names(&program, outer);
    assert!(found.iter().all(|name| name == "outer"), "{found:?}");
}

/// As distributions do it: what the debug symbols of two programs have in common is in a third file.
#[test]
fn a_file_that_dwz_shares_gives_inlined_functions() {
    if Command::new("dwz").arg("--version").output().is_err() {
        eprintln!("skipped: a_file_that_dwz_shares_gives_inlined_functions: no dwz");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (program, outer) = built(folder.path(), &["-g"]);
    let another = folder.path().join("another");
    std::fs::copy(&program, &another).unwrap();
    let shared = folder.path().join("shared.debug");
    let mut dwz = Command::new("dwz");
    run(dwz.current_dir(folder.path()).args(["-m", "shared.debug", "program", "another"]));
    let sections = run(Command::new("readelf").arg("-SW").arg(&program));
    assert!(shared.is_file() && sections.contains(".gnu_debugaltlink"), "{sections}");
    let (found, missing) = names(&program, outer.clone());
    assert!(found.contains(&"inlined;outer".to_owned()) && missing.is_empty(), "{found:?} {missing:?}");
    std::fs::remove_file(&shared).unwrap();
    let (_, missing) = names(&program, outer);
    assert!(missing[0].contains("shared.debug with others, which is not there"), "{missing:?}");
}

#[test]
fn says_which_symbols_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let (program, outer) = built(folder.path(), &["-g"]);
    let section = folder.path().join("section");
    let add = |name: &str, content: &[u8]| {
        std::fs::write(&section, content).unwrap();
        objcopy(&program, &["--add-section", &format!("{name}={}", section.display())]);
    };
    add(".gnu_debugaltlink", b"/usr/lib/debug/.dwz/none.debug\0\x01\x02\x03");
    let (_, missing) = names(&program, outer.clone());
    assert!(missing[0].contains("share /usr/lib/debug/.dwz/none.debug"), "{missing:?}");
    objcopy(&program, &["--strip-all", "--remove-section=.gnu_debugaltlink"]);
    assert_eq!(names(&program, outer.clone()).1, Vec::<String>::new());
    add(".gnu_debugdata", b"compressed");
    let (_, missing) = names(&program, outer);
    assert!(missing[0].contains("MiniDebugInfo"), "{missing:?}");
}
