//! `mayfly profile` on a program with known lifetimes.

mod known;
mod synthetic;

use std::path::Path;
use std::process::Command;

use known::{of, program};
use lifetime::code::ranges;
use lifetime::code::symbols::Symbols;
use lifetime::profile::contents::{Context, Profile};
use lifetime::profile::label::{CLASS_NAMES, t95};
use serde_json::Value;
use synthetic::{heap_library, mayfly};
use tempfile::tempdir;

#[test]
fn reports_bytes_and_lifetimes_of_each_context() {
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
    // Allocated bytes, and the class by which 95% of them die.
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
        // A busy machine may be slower than the program expects, never faster.
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
    let crossing = of(&profile, "crossing");
    assert_eq!(crossing.same_thread, 0);
    for (function, freed_by) in [("crossing", "free_all"), ("second", "second"), ("brief", "brief")] {
        let context = of(&profile, function);
        let mut symbols = Symbols::new(&profile);
        assert!(context.frees.iter().all(|frees| symbols.text_of(frees.frames[0]) == freed_by), "{function}");
        assert_eq!(context.frees.iter().map(|frees| frees.objects).sum::<u64>(), context.freed, "{function}");
    }
    let second = of(&profile, "second");
    assert_eq!((second.same_thread, second.live), (second.freed, 0));
    assert_eq!((second.size.min, second.size.max), (20_000, 20_000));
    assert!(second.lifetime_ns.min >= 300_000_000);
    assert_eq!(of(&profile, "aligned").alignment.min, 256);
    let permanent = of(&profile, "permanent");
    assert!(permanent.frees.is_empty());
    assert_eq!((permanent.freed, permanent.live), (0, permanent.sampled - permanent.unwatched));
    let vast = of(&profile, "vast");
    assert_eq!((vast.sampled, vast.freed, vast.live), (1, 1, 0), "moved by realloc, and found again");
    for file in ["out.pb.gz", "out.parquet", "out.symbols.parquet"] {
        assert!(std::fs::metadata(folder.path().join(file)).unwrap().len() > 500, "{file}");
    }
}

#[test]
fn all_code_has_the_names_of_stacks() {
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
        let ranges = ranges::ranges(&mut symbols, module, number, &calls);
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "ascending, without overlaps");
        for call in calls {
            let address = call.offset - 1;
            let range = ranges.iter().find(|range| (range.start..range.end).contains(&address)).unwrap();
            assert_eq!(*range.names, *symbols.text_of(call));
        }
        if module.path == program {
            let has = |names: &str| ranges.iter().any(|range| *range.names == *names);
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

/// A server's worker is forked, becomes another user where it may, and ends; the server's own part is small.
const FORKS: &str = r#"
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#define FUNCTION __attribute__((noinline, noclone))
static void churn(int n) { for (int i = 0; i < n; i++) { void *p = malloc(i % 300); *(volatile char *)p = 1; free(p); } }
FUNCTION void master(void) { churn(100000); }
FUNCTION void worker(void) { if (!geteuid() && (chdir("/") || setuid(65534))) _exit(1); churn(1000000); }
int main(int count, char **arguments) {
    master();
    for (int i = 1; i < count; i++) if (!fork()) { worker(); _exit(0); }
    for (int i = 1, status; i < count; i++) if (wait(&status) < 0 || status) return 1;
    return 0;
}
"#;

/// Profiles that program with three workers; the totals, and the profile.
fn profile_of_forks(folder: &Path, options: &[&str]) -> (Value, Profile) {
    let (source, program) = (folder.join("forks.c"), folder.join("forks"));
    std::fs::write(&source, FORKS).unwrap();
    let flags = ["-O1", "-fno-builtin", "-o"];
    assert!(Command::new("cc").args(flags).arg(&program).arg(&source).status().unwrap().success());
    let mut command = mayfly();
    command.args(["profile", "--json", "--every", "20000"]).args(options).arg("-o").arg(folder.join("out"));
    command.arg("--").arg(&program).args(["1", "2", "3"]).env("MAYFLY_HEAP_LIB", heap_library());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let totals = serde_json::from_slice(&output.stderr).unwrap();
    (totals, Profile::read(&folder.join("out.profile")).unwrap())
}

#[test]
fn merges_the_profiles_of_forked_processes() {
    let folder = tempdir().unwrap();
    let (totals, profile) = profile_of_forks(folder.path(), &[]);
    assert_eq!((&totals["profile.processes"], profile.processes), (&4.into(), 4));
    let mut symbols = Symbols::new(&profile);
    let mut of = |function: &str| -> f64 {
        let is_of =
            |context: &&Context| context.frames.iter().any(|&frame| symbols.text_of(frame) == function);
        profile.contexts.iter().filter(is_of).map(|context| context.bytes).sum()
    };
    for (function, wanted) in [("master", 100_000.0 * 150.0), ("worker", 3.0 * 1_000_000.0 * 150.0)] {
        let share = of(function) / wanted;
        assert!((0.8..1.25).contains(&share), "{function}: {share} of its allocations");
    }
    let program = &profile.modules[profile.program().unwrap()];
    assert_eq!(program.path, folder.path().join("forks"));
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("parts")), "{left:?}");
}

#[test]
fn profiles_only_the_programs_own_process() {
    let folder = tempdir().unwrap();
    let (totals, profile) = profile_of_forks(folder.path(), &["--only"]);
    assert_eq!(profile.processes, 1);
    let bytes = totals["profile.bytes"].as_f64().unwrap();
    assert!((0.7..1.3).contains(&(bytes / (100_000.0 * 150.0))), "the parent's alone: {bytes}");
}

#[test]
fn profiles_of_many_ended_processes_are_merged() {
    let folder = tempdir().unwrap();
    let mut command = mayfly();
    command.args(["profile", "--json", "--every", "1k", "-o"]).arg(folder.path().join("out")).arg("--");
    let script = "for i in $(seq 200); do /bin/true; done";
    let output = command.args(["sh", "-c", script]).env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let totals: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(totals["profile.processes"].as_u64().unwrap() > 200, "{totals}");
}

#[test]
fn reads_a_profile_while_it_is_taken_and_after_a_kill() {
    let folder = tempdir().unwrap();
    let source = folder.path().join("serves.c");
    let program = folder.path().join("serves");
    let text = "
#include <stdlib.h>
#include <unistd.h>
static void *kept[1 << 16];
__attribute__((noinline, noclone)) void keep(int i) { free(kept[i]); *(volatile char *)(kept[i] = malloc(5000)) = 1; }
int main(void) { for (unsigned i = 0;; i++) { keep(i % (1 << 16)); if (i % 100 == 0) usleep(1000); } }";
    std::fs::write(&source, text).unwrap();
    let flags = ["-O2", "-g", "-fno-builtin-malloc", "-o"];
    assert!(Command::new("cc").args(flags).arg(&program).arg(&source).status().unwrap().success());
    let mut command = mayfly();
    command.args(["profile", "--every", "20k", "-o"]).arg(folder.path().join("out")).arg("--").arg(&program);
    let mut running =
        command.env("MAYFLY_HEAP_LIB", heap_library()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let parts = || {
        let entries = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path());
        entries.into_iter().find(|path| path.to_string_lossy().contains("out.parts-"))
    };
    let from = |name: &Path| -> Option<Profile> {
        let out = folder.path().join("again");
        let output =
            mayfly().args(["profile", "--json", "--from"]).arg(name).arg("-o").arg(&out).output().unwrap();
        output.status.success().then(|| Profile::read(&out.with_extension("profile")).unwrap())
    };
    let enough = |profile: &Profile| profile.contexts.iter().any(|context| context.live > 3);
    let folder_of_parts =
        wait_for(|| parts().filter(|parts| from(parts).is_some_and(|profile| enough(&profile))));
    let profile = from(&folder_of_parts).unwrap();
    let keep = of(&profile, "keep");
    assert_eq!(
        keep.censored().iter().sum::<u64>(),
        keep.live,
        "the process runs: their lifetimes have only a lower bound"
    );

    // By a signal, once mayfly waits for its program.
    let pid = i32::try_from(running.id()).unwrap();
    // SAFETY: the process is a child that was not waited for.
    let ask = || unsafe { libc::kill(pid, libc::SIGRTMIN()) };
    let snapshot = folder.path().join("out.1.profile");
    wait_for(|| (snapshot.is_file() || ask() != 0).then_some(()));
    assert!(enough(&Profile::read(&snapshot).unwrap()));

    running.kill().unwrap();
    running.wait().unwrap();
    let left = from(&folder_of_parts).unwrap();
    assert!(enough(&left), "a killed profiler leaves what it saved");
    let pid = i32::try_from(left.pid).unwrap();
    // SAFETY: by its profile the program runs.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0, "and its program runs on");
}

fn wait_for<T>(mut find: impl FnMut() -> Option<T>) -> T {
    let began = std::time::Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(began.elapsed().as_secs() < 60, "it never happened");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
