//! Restored processes whose working set is known prepare it, beside what they do.

mod copies;
mod scripts;

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use scripts::{LIMITS, Process, restored, start};
use worker_snapshot::working_set::MOST_WRITTEN;
use worker_snapshot::{Limits, WorkingSet, saved};

const PAGE: u64 = 4096;
/// What the first answer writes: one byte of each second page.
const WRITES: u64 = 64;
const SCRIPT: &str = r#"
block = bytearray(b"x" * (1 << 20))
def work():
    for number in range(64):
        block[number * 8192] = 121
    return block.count(b"x"), block.count(b"y")
"#;
/// The whole of it.
const ANSWER: &str = "(1048512, 64)";

/// What a process has written by now of the pages that were a file's.
fn written(process: u32) -> WorkingSet {
    let maps = std::fs::read(format!("/proc/{process}/maps")).unwrap();
    let page_map = File::open(format!("/proc/{process}/pagemap")).unwrap();
    WorkingSet::read(&maps, |entries, offset| page_map.read_exact_at(entries, offset)).unwrap()
}

fn until(what: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !what() {
        assert!(Instant::now() < end, "not in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn has_threads(process: &Process, count: usize) -> bool {
    std::fs::read_dir(format!("/proc/{}/task", process.child.id())).unwrap().count() == count
}

#[test]
fn pages_that_the_first_answer_wrote_are_there_before_the_next_ones() {
    let snapshot = start(SCRIPT).take().unwrap();
    let mut first = restored(&snapshot);
    assert_eq!(first.ask("work()"), ANSWER);
    let set = written(first.child.id());
    assert!((WRITES * PAGE..MOST_WRITTEN).contains(&set.written_bytes()), "{} bytes", set.written_bytes());
    let (child, line) = copies::restored(&snapshot);
    let plain = Process { child, line };
    std::thread::sleep(Duration::from_millis(200));
    let before = written(plain.child.id()).written_bytes();
    assert!(before < WRITES * PAGE, "{before} bytes are written without any work");
    assert!(snapshot.prepare(set.clone()).unwrap());
    assert_eq!(snapshot.working_set(), Some(&set));
    for _ in 0..8 {
        let (child, line) = copies::restored(&snapshot);
        let mut next = Process { child, line };
        // It waits for a line from this test.
        until(|| written(next.child.id()).written_bytes() >= before + WRITES * PAGE);
        until(|| has_threads(&next, 1));
        next.line.write_all(b"go").unwrap();
        assert_eq!(next.ask("block.count(b'x')"), (1 << 20).to_string(), "they are as they were");
        assert_eq!(next.ask("work()"), ANSWER);
    }
    // Only the first list counts.
    snapshot
        .prepare(WorkingSet::parse(br#"{"written":[{"start":4096,"end":8192}],"read":[]}"#).unwrap())
        .unwrap();
    assert_eq!(snapshot.working_set(), Some(&set));
}

#[test]
fn ranges_that_do_not_fit_the_process_change_nothing() {
    let process = start(SCRIPT);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.child.id())).unwrap();
    let code = mappings::each(maps.as_bytes()).find(|area| area.executable).unwrap().range;
    let ranges = [
        (65536, 131_072),
        (code.start as u64, code.start as u64 + PAGE),
        (0x7fff_ffff_0000, 0x7fff_ffff_1000),
    ];
    let ranges = ranges.map(|(start, end)| format!(r#"{{"start":{start},"end":{end}}}"#)).join(",");
    let set = WorkingSet::parse(format!(r#"{{"written":[{ranges}],"read":[{ranges}]}}"#).as_bytes()).unwrap();
    let snapshot = process.take().unwrap();
    snapshot.prepare(set).unwrap();
    let mut next = restored(&snapshot);
    assert_eq!(next.ask("work()"), ANSWER);
    until(|| has_threads(&next, 1));
}

#[test]
fn list_is_saved_with_its_snapshot_and_goes_with_it() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = File::open(path).unwrap();
    let snapshot = start(SCRIPT).take_within(Limits { disk: Some(folder.as_fd()), ..LIMITS }).unwrap();
    if !snapshot.is_on_disk() {
        eprintln!("skipped: the folder for tests is no disk's");
        return;
    }
    let mut first = restored(&snapshot);
    first.ask("work()");
    let set = written(first.child.id());
    let save = || saved::save(&snapshot, folder.as_fd(), "working_set", "a test", |_| None).unwrap();
    let loaded = || {
        let loaded = saved::load(folder.as_fd(), "working_set", "a test", |_| None).unwrap().unwrap();
        let mut next = restored(&loaded);
        assert_eq!(next.ask("work()"), ANSWER);
        loaded.working_set().cloned()
    };
    save();
    assert_eq!(loaded(), None, "it is not known yet");
    assert!(snapshot.prepare(set.clone()).unwrap());
    saved::save_working_set(&snapshot, folder.as_fd(), "working_set").unwrap();
    assert_eq!(loaded(), Some(set.clone()));
    // Saved after it is known, it comes along.
    save();
    assert_eq!(loaded(), Some(set));
    let touched = path.join("working_set.touched");
    let text = std::fs::read(&touched).unwrap();
    let of_another = [if text[0] == b'0' { b"1" } else { b"0" }, &text[1..]].concat();
    for changed in [&text[..text.len() - 1], &text[..10], b"", &of_another] {
        std::fs::write(&touched, changed).unwrap();
        assert_eq!(loaded(), None);
    }
    saved::remove(folder.as_fd(), "working_set");
    assert!(!touched.exists());
    // Without a snapshot of this name nothing is saved.
    saved::save_working_set(&snapshot, folder.as_fd(), "working_set").unwrap();
    assert!(!touched.exists());
}
