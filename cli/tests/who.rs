//! `mayfly who` on real programs, whose memory is malloc's, a runtime's, or a library's own.

mod synthetic;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use synthetic::{heap_library, mayfly, refusal};
use tempfile::tempdir;

const MIB: u64 = 1 << 20;

/// A program that has its memory and waits.
struct Ready(Child);

impl Ready {
    fn new(command: &mut Command) -> Ready {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{command:?}");
        Ready(child)
    }

    fn account(&self) -> Value {
        let output = mayfly().args(["who", "--json", &self.0.id().to_string()]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn number(account: &Value, key: &str) -> u64 {
    account[key].as_u64().unwrap_or_else(|| panic!("{key} in {account}"))
}

/// Bytes of the parts whose words contain this.
fn of(account: &Value, words: &str) -> u64 {
    let parts = account["who.parts"].as_array().unwrap();
    let fitting = parts.iter().filter(|part| part["who"].as_str().unwrap().contains(words));
    fitting.map(|part| part["bytes"].as_u64().unwrap()).sum()
}

/// Whether a program is installed; if not, a line says that the test is skipped.
fn is_installed(name: &str, test: &str) -> bool {
    let is_there = which(name).is_some();
    if !is_there {
        let _ = writeln!(std::io::stderr(), "\nskipped: who::{test}: no {name}");
    }
    is_there
}

fn which(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// 64 MiB each of small objects, by threads as well, of large ones, and of mappings past malloc; a quarter of
/// one more object; and stacks.
const EVERY_KIND: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static char own_data[8 << 20];
static void *small(void *bytes) {
    for (size_t made = 0; made < (size_t)bytes; made += 1024) memset(malloc(1000), 1, 1000);
    return 0;
}
static void *deep(void *ready) {
    volatile char frame[4 << 20];
    for (size_t i = 0; i < sizeof frame; i += 4096) frame[i] = 1;
    pthread_barrier_wait(ready);
    pause();
    return 0;
}
int main(void) {
    pthread_t threads[3];
    pthread_barrier_t ready;
    small((void *)(32UL << 20));
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, small, (void *)(16UL << 20));
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    for (int i = 0; i < 4; i++) memset(malloc(8 << 20), 1, 8 << 20);
    memset(malloc(32 << 20), 1, 32 << 20);
    memset(own_data, 1, sizeof own_data);
    memset(malloc(64 << 20), 1, 16 << 20);
    char *past = mmap(0, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(past, 1, 64 << 20);
    pthread_barrier_init(&ready, 0, 2);
    pthread_create(&threads[2], 0, deep, &ready);
    pthread_barrier_wait(&ready);
    puts("ready");
    fflush(stdout);
    getchar();
}
"#;

fn compiled(folder: &Path, source: &str) -> PathBuf {
    let (code, program) = (folder.join("program.c"), folder.join("program"));
    std::fs::write(&code, source).unwrap();
    let cc =
        Command::new("cc").args(["-O1", "-fno-builtin", "-pthread", "-o"]).arg(&program).arg(&code).status();
    assert!(cc.unwrap().success());
    program
}

#[test]
fn each_kind_of_memory_has_its_line() {
    let folder = tempdir().unwrap();
    let program = compiled(folder.path(), EVERY_KIND);
    let mut on_heap = Command::new(&program);
    on_heap.env("LD_PRELOAD", heap_library());
    for (allocator, mut command) in [("glibc's", Command::new(&program)), ("Mayfly's heap", on_heap)] {
        let account = Ready::new(&mut command).account();
        let near = |what: &str, wanted: u64, more: u64| {
            let found = of(&account, what) / MIB;
            assert!(
                (wanted - 2..=wanted + more).contains(&found),
                "{what}: {found}, not {wanted}: {account}"
            );
        };
        near(&format!("malloc, {allocator}"), 144, 24);
        near("past malloc: mapped by the program", 64, 2);
        near("stacks", 4, 2);
        near("data of the program", 8, 4);
        let kinds: u64 =
            ["malloc, ", "past malloc", "stacks", "data of"].iter().map(|one| of(&account, one)).sum();
        assert_eq!(number(&account, "who.anonymous_bytes"), kinds);
        assert_eq!(number(&account, "who.malloc_bytes"), of(&account, &format!("malloc, {allocator}")));
    }
}

/// A runtime's share must be most of the memory, and malloc's little.
fn most_is_past_malloc(command: &mut Command, owner: &str) {
    let account = Ready::new(command).account();
    let (all, past) = (number(&account, "who.anonymous_bytes"), of(&account, owner));
    assert!(past > all / 2 && past > 32 * MIB, "{owner}: {account}");
    assert!(number(&account, "who.malloc_bytes") < all / 2, "{account}");
}

#[test]
fn v8_is_past_malloc() {
    if is_installed("node", "v8_is_past_malloc") {
        let script = "const kept = []; for (let i = 0; i < 1e6; i++) kept.push({ i, name: 'n' + i });
            console.log('ready'); process.stdin.on('data', () => console.log(kept.length));";
        most_is_past_malloc(Command::new("node").args(["-e", script]), "past malloc: V8 in ");
    }
}

#[test]
fn a_jvm_is_past_malloc() {
    if is_installed("java", "a_jvm_is_past_malloc") {
        let folder = tempdir().unwrap();
        let source = "public class Main { public static void main(String[] names) throws Exception {
            byte[][] kept = new byte[64][]; for (int i = 0; i < 64; i++) kept[i] = new byte[1 << 20];
            System.out.println(\"ready\"); System.in.read(); System.out.println(kept.length); } }";
        std::fs::write(folder.path().join("Main.java"), source).unwrap();
        let mut java = Command::new("java");
        java.arg("-Xmx512m").arg(folder.path().join("Main.java"));
        most_is_past_malloc(&mut java, "past malloc: the JVM in libjvm.so");
    }
}

#[test]
fn php_is_past_malloc() {
    if is_installed("php", "php_is_past_malloc") {
        let script = "$kept = []; for ($i = 0; $i < 1000000; $i++) $kept[] = \"n$i\";
            echo \"ready\\n\"; fgets(STDIN); echo count($kept);";
        let mut php = Command::new("php");
        most_is_past_malloc(php.args(["-d", "memory_limit=1G", "-r", script]), "PHP in ");
    }
}

#[test]
fn go_is_past_malloc() {
    if is_installed("go", "go_is_past_malloc") {
        let folder = tempdir().unwrap();
        let source = "package main\nimport \"os\"\nvar kept [][]byte\nfunc main() {
            for i := 0; i < 64; i++ { part := make([]byte, 1<<20); for n := range part { part[n] = 1 }; kept = append(kept, part) }
            os.Stdout.WriteString(\"ready\\n\"); os.Stdin.Read(make([]byte, 1)) }\n";
        std::fs::write(folder.path().join("main.go"), source).unwrap();
        let mut build = Command::new("go");
        build.args(["build", "-o", "program", "main.go"]).current_dir(folder.path());
        build.env("GOFLAGS", "-mod=mod").env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0");
        assert!(build.status().unwrap().success());
        most_is_past_malloc(&mut Command::new(folder.path().join("program")), "past malloc: Go");
    }
}

#[test]
fn small_objects_of_python_are_past_malloc_unless_it_is_asked() {
    if is_installed("python3", "small_objects_of_python_are_past_malloc_unless_it_is_asked") {
        let script = "kept = [f'{i}' for i in range(10**6)]\nprint('ready', flush=True)\ninput()";
        let python = |malloc| {
            let mut command = Command::new("python3");
            command.args(["-c", script]).env("PYTHONMALLOC", malloc);
            command
        };
        most_is_past_malloc(&mut python("pymalloc"), "CPython's arenas");
        let account = Ready::new(&mut python("malloc")).account();
        assert!(
            number(&account, "who.malloc_bytes") > number(&account, "who.anonymous_bytes") / 2,
            "{account}"
        );
    }
}

/// A library's own jemalloc has symbols of other names, or none; what it prints gives it away.
#[test]
fn an_allocator_in_a_library_is_named() {
    let folder = tempdir().unwrap();
    let library = folder.path().join("libstore.so");
    let source = "#include <string.h>\n#include <sys/mman.h>
        const char *about(void) { return \"<jemalloc>: Error in munmap()\"; }
        void store(void) { memset(mmap(0, 64 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 64 << 20); }";
    std::fs::write(folder.path().join("store.c"), source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-s", "-o"]).arg(&library).arg(folder.path().join("store.c"));
    assert!(cc.status().unwrap().success());
    std::fs::write(
        folder.path().join("main.c"),
        "#include <stdio.h>\nvoid store(void);\nint main(void) { store(); puts(\"ready\"); fflush(stdout); getchar(); }",
    )
    .unwrap();
    let program = folder.path().join("program");
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&program).arg(folder.path().join("main.c")).arg(&library);
    cc.arg(format!("-Wl,-rpath,{}", folder.path().display()));
    assert!(cc.status().unwrap().success());
    most_is_past_malloc(&mut Command::new(&program), "past malloc: jemalloc in libstore.so");
}

/// A Python that has a package: `MAYFLY_TEST_PYTHON`, training's, or the system's; if none has it, one line
/// says that the case is skipped.
fn python_with(package: &str) -> Option<PathBuf> {
    let training = std::env::home_dir().map(|home| home.join(".cache/mayfly/train/bin/python"));
    let given = std::env::var_os("MAYFLY_TEST_PYTHON").map(PathBuf::from);
    let has_it = |python: &PathBuf| {
        let mut import = Command::new(python);
        import.args(["-c", &format!("import {package}")]).stderr(Stdio::null());
        import.status().is_ok_and(|status| status.success())
    };
    let found = given.into_iter().chain(training).chain(which("python3")).find(has_it);
    if found.is_none() {
        let test = "allocators_of_extensions_are_separate_from_pythons_arenas";
        let _ = writeln!(std::io::stderr(), "\nskipped: who::{test}: no Python has {package}");
    }
    found
}

/// Arrow's pool, DuckDB's and Polars' allocators lie among CPython's arenas: pools have headers.
#[test]
fn allocators_of_extensions_are_separate_from_pythons_arenas() {
    let duckdb = "kept = duckdb.connect()\nkept.sql('set enable_progress_bar = false')\n\
                  kept.sql('create table t as select range i from range(5000000)')";
    let polars = "kept = polars.select(polars.int_range(2000000).cast(polars.String).alias('s'))";
    for (package, script, owner) in [
        ("pyarrow", "kept = pyarrow.array(range(10**7))", "libarrow.so"),
        ("duckdb", duckdb, "duckdb"),
        ("polars", polars, "jemalloc in _polars_runtime"),
    ] {
        let Some(python) = python_with(package) else { continue };
        let small = "objects = [f'{i}' for i in range(10**6)]";
        let all =
            [&format!("import {package}"), script, small, "print('ready', flush=True)", "input()"].join("\n");
        let account = Ready::new(Command::new(&python).args(["-c", &all])).account();
        let (its, pythons) = (of(&account, owner), of(&account, "CPython's arenas"));
        assert!(its > 16 * MIB && pythons > 32 * MIB, "{package}: {account}");
        let parts = account["who.parts"].as_array().unwrap();
        let shared = parts.iter().map(|part| part["who"].as_str().unwrap());
        let mut shared = shared.filter(|who| who.contains("CPython") && who.contains(", or "));
        assert_eq!(shared.next(), None, "{package}: {account}");
    }
}

#[test]
fn the_account_is_below_the_statistics_and_the_profile() {
    let folder = tempdir().unwrap();
    let source = EVERY_KIND.replace("getchar();", "sleep(2);");
    let program = compiled(folder.path(), &source);
    for verb in [&["run", "--stats"][..], &["profile", "-o", "p"]] {
        let mut command = mayfly();
        command.args(verb).arg("--").arg(&program).current_dir(folder.path());
        let output = command.env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        for line in ["malloc, Mayfly's heap", "past malloc: mapped by the program or a library itself"] {
            assert!(text.lines().any(|one| one.ends_with(line)), "{verb:?}: no {line} in {text}");
        }
    }
}

#[test]
fn there_must_be_such_a_process() {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let line = refusal(&mayfly().args(["who", &child.id().to_string()]).output().unwrap(), 1);
    assert_eq!(line, format!("mayfly: there is no process {}", child.id()));
}
