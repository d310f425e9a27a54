//! `mayfly profile` on a program whose lifetimes are known.

mod synthetic;

use std::path::{Path, PathBuf};
use std::process::Command;

use lifetime::code;
use lifetime::label::{CLASS_NAMES, t95};
use lifetime::profile::{Context, Profile};
use lifetime::symbols::Symbols;
use serde_json::Value;
use synthetic::{heap_library, mayfly, refusal};
use tempfile::tempdir;

/// Each function allocates in a way of its own; none is inlined, all are compiled without frame pointers.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#define FUNCTION __attribute__((noinline, noclone))
static void *kept[50000], *held[2000], *passed[4000];
static void touch(void *p) { *(volatile char *)p = 1; }
FUNCTION void brief(void) { for (int i = 0; i < 200000; i++) { void *p = malloc(100); touch(p); free(p); } }
FUNCTION void permanent(void) { for (int i = 0; i < 50000; i++) touch(kept[i] = malloc(200)); }
FUNCTION void second(void) {
    for (int i = 0; i < 2000; i++) touch(held[i] = malloc(20000));
    usleep(300000);
    for (int i = 0; i < 2000; i++) free(held[i]);
}
FUNCTION void *free_all(void *all) { for (int i = 0; i < 4000; i++) free(((void **)all)[i]); return 0; }
FUNCTION void crossing(void) {
    pthread_t other;
    for (int i = 0; i < 4000; i++) touch(passed[i] = malloc(4000));
    pthread_create(&other, 0, free_all, passed);
    pthread_join(other, 0);
}
FUNCTION void aligned(void) { for (int i = 0; i < 20000; i++) { void *p = aligned_alloc(256, 1024); touch(p); free(p); } }
FUNCTION void vast(void) { char *p = malloc(40 << 20); p = realloc(p, 200 << 20); usleep(20000); touch(p); free(p); }
FUNCTION void unseen(void) { touch(malloc(10)); }
static inline __attribute__((always_inline)) void inlined(void) { for (int i = 0; i < 20000; i++) free(malloc(500)); }
FUNCTION void outer(void) { inlined(); }
int main(int count, char **arguments) {
    if (count > 2) unseen();
    outer(); brief(); permanent(); second(); crossing(); aligned(); vast();
    if (count > 1) raise(SIGKILL);
    return 7;
}
"#;

fn program(folder: &Path) -> PathBuf {
    let source = folder.join("known.c");
    std::fs::write(&source, PROGRAM).unwrap();
    let program = folder.join("known");
    let flags = ["-O2", "-fomit-frame-pointer", "-g", "-pthread", "-fno-builtin-malloc", "-o"];
    let cc = Command::new("cc").args(flags).arg(&program).arg(&source).status().unwrap();
    assert!(cc.success());
    program
}

/// The context that `function` allocates in.
fn of<'a>(profile: &'a Profile, function: &str) -> &'a Context {
    let mut symbols = Symbols::new(profile);
    let caller = |context: &&Context| symbols.of(context.frames[0])[0].name == function;
    profile.contexts.iter().find(caller).unwrap_or_else(|| panic!("no context of {function}"))
}

#[test]
fn says_of_each_context_how_much_it_allocates_and_how_long_it_lives() {
    let folder = tempdir().unwrap();
    let program = program(folder.path());
    let output = mayfly()
        .args(["profile", "--json", "--every", "32k", "-o"])
        .arg(folder.path().join("out"))
        .arg("--")
        .arg(&program)
        .env("MAYFLY_HEAP_LIB", heap_library())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    let totals: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(totals["profile.lost"], 0);

    let profile = Profile::read(&folder.path().join("out.profile")).unwrap();
    // Bytes that were allocated, and the class by which 95% of them die.
    for (function, bytes, class) in [
        ("brief", 100 * 200_000, "10ms"),
        ("permanent", 200 * 50_000, "inf"),
        ("second", 20_000 * 2000, "1s"),
        ("crossing", 4000 * 4000, "100ms"),
        ("aligned", 1024 * 20_000, "10ms"),
    ] {
        let context = of(&profile, function);
        // Some 300 samples and more: four standard deviations are below a quarter.
        let error = context.bytes / f64::from(bytes) - 1.0;
        assert!(error.abs() < 0.25, "{function}: {error} off, of {} samples", context.sampled);
        let found = CLASS_NAMES[t95(context).unwrap()];
        // A busy machine may be slower than the program is written for, never faster.
        let (found, wanted) = (place(found), place(class));
        assert!(
            found == wanted || class != "inf" && found == wanted + 1 || function == "crossing",
            "{function}: {found}"
        );
        let main = context.frames[1];
        assert_eq!(
            Symbols::new(&profile).of(main)[0].name,
            "main",
            "{function}: unwound without frame pointers"
        );
    }
    assert_eq!(of(&profile, "crossing").same_thread, 0);
    let second = of(&profile, "second");
    assert_eq!((second.same_thread, second.live), (second.freed, 0));
    assert_eq!((second.size.min, second.size.max), (20_000, 20_000));
    assert!(second.lifetime_ns.min >= 300_000_000);
    assert_eq!(of(&profile, "aligned").alignment.min, 256);
    let permanent = of(&profile, "permanent");
    assert_eq!((permanent.freed, permanent.live), (0, permanent.sampled - permanent.unwatched));
    let vast = of(&profile, "vast");
    assert_eq!((vast.sampled, vast.freed, vast.live), (1, 1, 0), "moved by realloc, and found again");
    for file in ["out.pb.gz", "out.parquet", "out.symbols.parquet"] {
        assert!(std::fs::metadata(folder.path().join(file)).unwrap().len() > 500, "{file}");
    }
}

#[test]
fn all_code_has_the_names_that_stacks_have() {
    let folder = tempdir().unwrap();
    let program = program(folder.path());
    let mut command = mayfly();
    command
        .args(["profile", "--json", "--every", "32k", "-o"])
        .arg(folder.path().join("out"))
        .arg("--")
        .arg(&program);
    assert_eq!(command.env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap().status.code(), Some(7));
    let profile = Profile::read(&folder.path().join("out.profile")).unwrap();
    let mut symbols = Symbols::new(&profile);
    let frames: Vec<_> = profile.contexts.iter().flat_map(|context| context.frames.clone()).collect();
    for (number, module) in profile.modules.iter().enumerate() {
        let calls: Vec<_> = frames.iter().filter(|frame| frame.module == Some(number)).copied().collect();
        let ranges = code::ranges(&mut symbols, module, number, &calls);
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "ascending, without overlaps");
        for call in calls {
            let address = call.offset - 1;
            let range = ranges.iter().find(|range| (range.start..range.end).contains(&address)).unwrap();
            assert_eq!(range.names, symbols.text_of(call));
        }
        if module.path == program {
            let has = |names: &str| ranges.iter().any(|range| range.names == names);
            assert!(has("unseen") && has("inlined;outer") && has("main"));
        } else {
            assert!(
                ranges
                    .iter()
                    .any(|range| range.names.starts_with("malloc_usable_size")
                        || range.names.contains("start"))
            );
        }
    }
    assert!(frames.iter().any(|&frame| symbols.text_of(frame) == "inlined;outer"));
}

fn place(class: &str) -> usize {
    CLASS_NAMES.iter().position(|name| *name == class).unwrap()
}

#[test]
fn a_killed_program_leaves_its_profile() {
    let folder = tempdir().unwrap();
    let program = program(folder.path());
    let output = mayfly()
        .args(["profile", "-o"])
        .arg(folder.path().join("out"))
        .arg("--")
        .arg(&program)
        .arg("kill")
        .env("MAYFLY_HEAP_LIB", heap_library())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(128 + 9));
    let profile = Profile::read(&folder.path().join("out.profile")).unwrap();
    assert!(of(&profile, "second").freed > 0);
}

#[test]
fn a_forked_child_allocates_and_leaves_its_parents_profile_alone() {
    let folder = tempdir().unwrap();
    let (source, program) = (folder.path().join("forks.c"), folder.path().join("forks"));
    let text = "
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void churn(int n) { for (int i = 0; i < n; i++) { void *p = malloc(i % 300); *(volatile char *)p = 1; free(p); } }
int main(void) {
    int status;
    churn(100000);
    if (!fork()) { churn(3000000); _exit(0); }
    wait(&status);
    return status != 0;
}";
    std::fs::write(&source, text).unwrap();
    let flags = ["-O1", "-fno-builtin", "-o"];
    assert!(Command::new("cc").args(flags).arg(&program).arg(&source).status().unwrap().success());
    let mut command = mayfly();
    command.args(["profile", "--json", "--every", "20000", "-o"]).arg(folder.path().join("out"));
    let output = command.arg("--").arg(&program).env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let totals: Value = serde_json::from_slice(&output.stderr).unwrap();
    let bytes = totals["profile.bytes"].as_f64().unwrap();
    assert!((0.7..1.3).contains(&(bytes / (100_000.0 * 150.0))), "the parent's alone: {bytes}");
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let folder = tempdir().unwrap();
    let mut command = mayfly();
    command.args(["profile", "-o"]).arg(folder.path().join("no/such/out")).args(["--", "true"]);
    let line = refusal(&command.env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap(), 125);
    assert!(line.ends_with("no such directory"), "{line}");
}
