//! The tables and pages of `mayfly profile` for a finished profile, and programs that it refuses.

mod known;
mod synthetic;

use std::path::Path;
use std::process::Command;

use known::{of, program};
use lifetime::profile::contents::Profile;
use lifetime::profile::label::t95;
use synthetic::{heap_library, mayfly, refusal};
use tempfile::tempdir;

#[test]
fn shows_a_finished_profile_in_every_way() {
    let folder = tempdir().unwrap();
    let program = program(folder.path());
    let out = folder.path().join("out");
    let mut command = mayfly();
    command.args(["profile", "--leaks", "--every", "32k", "-o"]).arg(&out).arg("--").arg(&program);
    let output = command.env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    // Without the lines of progress on a slow machine.
    let shown = |output: std::process::Output| -> String {
        let text = String::from_utf8(output.stderr).unwrap();
        text.lines().filter(|line| !line.starts_with("mayfly: ")).map(|line| format!("{line}\n")).collect()
    };
    let text = shown(output);
    let mut lines = text.lines();
    assert!(lines.next().unwrap().ends_with("were never freed"), "{text}");
    assert!(lines.nth(1).unwrap().contains("  permanent < main"), "most first: {text}");

    let raw = out.with_extension("profile");
    let page = folder.path().join("page.html");
    let mut command = mayfly();
    command.args(["profile", "--from"]).arg(&raw).arg("--minus").arg(&raw).arg("--flame").arg(&page);
    let text = shown(command.output().unwrap());
    let changes: Vec<_> = text.lines().skip(2).take_while(|line| !line.starts_with("written")).collect();
    assert!(changes.len() > 4 && changes.iter().all(|line| line.trim_start().starts_with("+0")), "{text}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("\"permanent\"") && html.contains("\"compares\":true"));

    let mut command = mayfly();
    command.args(["profile", "--frees", "--from"]).arg(&raw);
    let text = shown(command.output().unwrap());
    let lines: Vec<_> = text.lines().collect();
    let crossing = lines.iter().position(|line| line.ends_with("  crossing < main")).unwrap();
    assert!(lines[crossing + 1].contains("100.0%  freed by free_all"), "{text}");

    // Two of the same have twice the bytes, and the same lifetimes.
    let twice = folder.path().join("twice");
    let mut command = mayfly();
    command.args(["profile", "--from"]).arg(&raw).arg(&raw).arg("-o").arg(&twice);
    assert!(shown(command.output().unwrap()).contains("of 2 processes"));
    let [one, two] = [raw, twice.with_extension("profile")].map(|path| Profile::read(&path).unwrap());
    assert_eq!(one.bytes() * 2.0, two.bytes());
    assert_eq!(t95(of(&one, "permanent")), t95(of(&two, "permanent")));
}

#[test]
fn refuses_programs_that_cannot_be_profiled_before_they_start() {
    let folder = tempdir().unwrap();
    let source = folder.path().join("static.c");
    let program = folder.path().join("static");
    let text = "#include <stdio.h>\nint main(void) { puts(\"started\"); return 0; }";
    std::fs::write(&source, text).unwrap();
    let cc = Command::new("cc").arg("-static").arg("-o").arg(&program).arg(&source).status().unwrap();
    assert!(cc.success());
    let refused = |program: &Path| {
        let mut command = mayfly();
        command.args(["profile", "-o"]).arg(folder.path().join("out")).arg("--").arg(program);
        refusal(&command.env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap(), 125)
    };
    let line = refused(&program);
    assert!(line.contains("static is statically linked") && line.ends_with("(without -static)"), "{line}");
    // A setuid program of another user.
    // SAFETY: always allowed.
    if unsafe { libc::geteuid() } == 0 {
        let copy = folder.path().join("suid");
        std::fs::copy("/bin/true", &copy).unwrap();
        assert!(Command::new("chown").arg("65534").arg(&copy).status().unwrap().success());
        assert!(Command::new("chmod").arg("4755").arg(&copy).status().unwrap().success());
        let line = refused(&copy);
        assert!(line.contains("suid is setuid") && line.contains("without these rights"), "{line}");
    }
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        3 - usize::from(!folder.path().join("suid").exists())
    );
}

#[test]
fn generated_code_has_the_names_of_its_perf_map_or_a_common_one() {
    let folder = tempdir().unwrap();
    let (program, raw) = (folder.path().join("made"), folder.path().join("out.profile"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("train/tests/made_code.c");
    assert!(Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(source).status().unwrap().success());
    let mut profile = mayfly();
    profile.args(["profile", "--every", "8k", "-o"]).arg(folder.path().join("out")).arg("--").arg(&program);
    let output = profile.arg("3").env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap();
    let without = String::from_utf8(output.stderr).unwrap();
    assert!(without.contains("brief < [anonymous]\n"), "{without}");

    let map = format!("/tmp/perf-{}.map", Profile::read(&raw).unwrap().pid);
    std::fs::write(&map, "2ffffff00 20 elsewhere\n300000000 1000 JS:*serve server.js:3\n").unwrap();
    let shown = || {
        let mut command = mayfly();
        String::from_utf8(command.args(["profile", "--from"]).arg(&raw).output().unwrap().stderr).unwrap()
    };
    let with = shown();
    let hour_later = std::time::SystemTime::now() + std::time::Duration::from_secs(3600);
    std::fs::File::options().write(true).open(&map).unwrap().set_modified(hour_later).unwrap();
    let of_another = shown();
    std::fs::remove_file(&map).unwrap();
    assert!(with.contains("brief < JS:*serve server.js:3\n"), "{with}");
    assert!(of_another.contains("brief < [anonymous]\n"), "{of_another}");
}

#[test]
fn names_a_missing_folder() {
    let folder = tempdir().unwrap();
    let mut command = mayfly();
    command.args(["profile", "-o"]).arg(folder.path().join("no/such/out")).args(["--", "true"]);
    let line = refusal(&command.env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap(), 125);
    assert!(line.ends_with("no such directory"), "{line}");
}
