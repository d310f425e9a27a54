//! `mayfly replay` on traces with known results.

mod synthetic;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde_json::{Map, Value};
use synthetic::{TraceMaker, heap_library, mayfly, refusal, swinging_heap};
use tempfile::tempdir;

fn replayed(trace: &std::path::Path, arguments: &[&str]) -> Map<String, Value> {
    let output = mayfly().arg("replay").arg(trace).arg("--json").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let Value::Object(object) = serde_json::from_slice(&output.stdout).unwrap() else { panic!("an object") };
    object
}

#[test]
fn long_lived_objects_keep_every_huge_page_but_few_small_ones() {
    let folder = tempdir().unwrap();
    let trace = folder.path().join("swing.trace");
    // 64 objects fill a page of 4 KiB and 32768 a huge one; one in 1024 stays.
    swinging_heap(&trace, 2, 1 << 17, 1024);
    let result = replayed(&trace, &["--allocator", "recorded,packed"]);
    let number = |key: &str| result[key].as_u64().unwrap_or_else(|| panic!("{key}: {:?}", result[key]));
    assert_eq!(number("trace.allocations"), 1 << 18);
    assert_eq!(number("live.end_objects"), 256);
    assert_eq!(number("live.end_bytes"), 256 * 64);
    assert_eq!(number("recorded.4KiB.final_bytes"), 256 * 4096);
    assert_eq!(number("recorded.2MiB.final_bytes"), 8 * (2 << 20));
    assert_eq!(number("recorded.2MiB.peak_bytes"), 8 * (2 << 20));
    assert_eq!(number("packed.2MiB.final_bytes"), 2 << 20);
    assert_eq!(result["recorded.4KiB.final_ratio"].as_f64(), Some(64.0));
    assert_eq!(result["recorded.2MiB.final_ratio"].as_f64(), Some(1024.0));
    // Freed a second after they were allocated: class 10s; those that stay: inf.
    assert_eq!(number("lifetimes.10s.objects"), (1 << 18) - 256);
    assert_eq!(number("lifetimes.inf.objects"), 256);
    assert_eq!(number("lifetimes.never_freed.objects"), 256);
    let points = result["timeline.recorded.2MiB.bytes"].as_array().unwrap();
    assert!((1000..=2048).contains(&points.len()), "{}", points.len());
}

#[test]
fn averages_are_over_time_not_over_records() {
    let folder = tempdir().unwrap();
    let trace = folder.path().join("t");
    let mut maker = TraceMaker::new(&trace);
    // 1 page of 4 KiB for 1 s, then 3 for 3 s.
    maker.alloc(0, 1 << 20, 4096);
    maker.alloc(1_000_000_000, 2 << 20, 8192);
    maker.alloc(4_000_000_000, 3 << 20, 1);
    maker.finish();
    let result = replayed(&trace, &["--page", "4KiB", "--interval", "1000"]);
    assert_eq!(result["live.average_bytes"].as_f64(), Some(4096.0 * 10.0 / 4.0));
    assert_eq!(result["recorded.4KiB.average_ratio"].as_f64(), Some(1.0));
    assert_eq!(result["timeline.live.bytes"].as_array().unwrap().len(), 4);
    assert_eq!(result["timeline.live.time_ms"][0].as_f64(), Some(500.0));
}

#[test]
fn figures_are_drawn_with_axes_and_units() {
    let folder = tempdir().unwrap();
    let trace = folder.path().join("swing.trace");
    swinging_heap(&trace, 2, 1 << 15, 1024);
    let [memory, lifetimes] = ["memory.svg", "lifetimes.svg"].map(|name| folder.path().join(name));
    let mut command = mayfly();
    command.arg("replay").arg(&trace).arg("--plot").arg(&memory).arg("--lifetimes-plot").arg(&lifetimes);
    let output = command.output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().contains("recorded 2MiB"));
    for (figure, words) in [
        (memory, ["time [s]", "memory [MiB]", "2MiB pages, recorded addresses"]),
        (lifetimes, ["lifetime (logarithmic)", "freed within it [%]", "(64 were never freed)"]),
    ] {
        let svg = std::fs::read_to_string(&figure).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for word in words {
            assert!(svg.contains(word), "{}: no {word}", figure.display());
        }
    }
}

#[test]
fn replays_an_empty_trace() {
    let folder = tempdir().unwrap();
    let trace = folder.path().join("empty");
    TraceMaker::new(&trace).finish();
    let plot = folder.path().join("plot.svg");
    let plots = ["--plot", plot.to_str().unwrap(), "--lifetimes-plot", plot.to_str().unwrap()];
    let result = replayed(&trace, &plots);
    assert_eq!(result["recorded.2MiB.average_ratio"], Value::Null);
    assert_eq!(result["lifetimes.p50_ms"], Value::Null);
}

#[test]
fn refuses_other_files_in_one_line() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("t");
    let replay =
        |arguments: &[&str]| refusal(&mayfly().arg("replay").arg(&file).args(arguments).output().unwrap(), 1);
    let shown = file.display();
    assert_eq!(replay(&[]), format!("mayfly: {shown}: byte 0: No such file or directory"));
    std::fs::write(&file, "hello").unwrap();
    assert_eq!(
        replay(&[]),
        format!("mayfly: {shown}: byte 0: not a Mayfly trace: it does not begin with MAYFLYTR")
    );
    swinging_heap(&file, 1, 100, 10);
    let error = replay(&["--plot", "/nowhere/plot.svg"]);
    assert_eq!(error, "mayfly: /nowhere/plot.svg: No such file or directory");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[64 + 48 + 40] = 7;
    std::fs::write(&file, &bytes).unwrap();
    assert!(replay(&[]).contains(": byte 112: operation 7"));
}

#[test]
fn drops_and_reports_a_torn_tail() {
    let folder = tempdir().unwrap();
    let trace = folder.path().join("torn.trace");
    swinging_heap(&trace, 1, 100, 10);
    let bytes = std::fs::read(&trace).unwrap();
    std::fs::write(&trace, &bytes[..bytes.len() - 20]).unwrap();
    assert_eq!(replayed(&trace, &[])["trace.torn_bytes"].as_u64(), Some(28));
    let output = mayfly().arg("replay").arg(&trace).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("note: 28 bytes of an unfinished last record were dropped"), "{text}");
}

/// Fig. 9: objects that keep all 8 huge pages at the recorded addresses fit in few when lifetimes are known.
#[test]
fn true_lifetimes_pack_the_swinging_heap() {
    let folder = tempdir().unwrap();
    let trace = folder.path().join("swing.trace");
    swinging_heap(&trace, 4, 1 << 18, 4096);
    let mut command = mayfly();
    command.args(["replay", "--json", "--allocator", "recorded,mayfly"]).arg(&trace);
    let output = command.env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pages = |key: &str| result[key].as_u64().unwrap() >> 21;
    assert_eq!(pages("recorded.2MiB.final_bytes"), 32);
    let (last, peak) = (pages("mayfly.2MiB.final_bytes"), pages("mayfly.2MiB.peak_bytes"));
    assert!(last <= 4, "{last} huge pages for 256 objects of 64 B");
    assert!((8..=16).contains(&peak), "{peak} huge pages at the peak for 16 MiB");
    let points = result["timeline.mayfly.2MiB.bytes"].as_array().unwrap();
    assert!(points.len() > 1000);

    // Held pages do not stand below the heading of pages with live objects.
    let mut command = mayfly();
    command.args(["replay", "--allocator", "recorded,mayfly"]).arg(&trace);
    let output = command.env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let headings = ["pages with live objects", "recorded 2MiB", "pages that the heap holds", "mayfly 2MiB"];
    let places = headings.map(|heading| text.find(heading).unwrap_or_else(|| panic!("{heading}: {text}")));
    assert!(places.is_sorted(), "{text}");

    // The parts add up, and the requested bytes are the live ones.
    for when in ["average", "final"] {
        let parts =
            result.as_object().unwrap().iter().filter(|(key, _)| {
                key.starts_with("mayfly.where.") && key.ends_with(&format!(".{when}_bytes"))
            });
        let sum: f64 = parts.map(|(_, bytes)| bytes.as_f64().unwrap()).sum();
        let held = result[format!("mayfly.2MiB.{when}_bytes")].as_f64().unwrap();
        assert!((sum - held).abs() < 100.0, "{when}: {sum} of {held}");
        let requested = result[format!("mayfly.where.objects.{when}_bytes")].as_f64().unwrap();
        let live =
            result[format!("live.{}_bytes", if when == "final" { "end" } else { when })].as_f64().unwrap();
        assert!((requested - live).abs() <= live / 1000.0, "{when}: {requested} of {live}");
    }
}

/// Objects with a mapping of their own count as memory, too: no curve lies below the live bytes.
#[test]
fn no_heap_holds_less_than_the_live_bytes() {
    let folder = tempdir().unwrap();
    let trace = folder.path().join("large.trace");
    let mut maker = TraceMaker::new(&trace);
    let (large, second) = (40 << 20, 1_000_000_000);
    maker.alloc(0, 1 << 40, large);
    maker.alloc(second, 2 << 40, 100);
    // Lives between two points of the curve.
    maker.alloc(2 * second, 3 << 40, large);
    maker.free(2 * second + 1, 3 << 40);
    maker.free(4 * second, 2 << 40);
    maker.finish();
    let mut command = mayfly();
    command.args(["replay", "--json", "--interval", "1000", "--allocator", "mayfly,packed"]).arg(&trace);
    let output = command.env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["average_bytes", "final_bytes", "peak_bytes"] {
        let bytes = |name: &str| result[format!("{name}.2MiB.{key}")].as_f64().unwrap();
        let (ours, least) = (bytes("mayfly"), bytes("packed"));
        assert!(ours >= least && ours <= least + f64::from(4 << 20), "{key}: {ours} to {least}");
    }
}

/// Four kinds of objects in turn, as many as a page holds of each within a second or less; those alive at the
/// end are never freed.
fn four_lifetimes(path: &std::path::Path) {
    const STEP_NS: u64 = 40_000;
    let kinds = [(30, 200), (400, 1200), (3000, 1400), (u64::MAX, 4800)];
    let mut due: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    let mut trace = TraceMaker::new(path);
    for number in 0..180_000u64 {
        let now = number * STEP_NS;
        while let Some(&Reverse((at, address))) = due.peek()
            && at <= now
        {
            trace.free(at, address);
            due.pop();
        }
        let kind = match number * 7919 % 1000 {
            0..660 => 0,
            660..890 => 1,
            890..997 => 2,
            _ => 3,
        };
        let (milliseconds, bytes) = kinds[kind];
        let address = 0x7000_0000_0000 + number * 8192;
        trace.alloc(now, address, bytes);
        if milliseconds != u64::MAX {
            due.push(Reverse((now + milliseconds * 1_000_000 + number % 1000, address)));
        }
    }
    trace.finish();
}

/// Objects with true lifetimes used to open pages beside half-empty ones of shorter classes: they held a
/// quarter more than with one class for all.
#[test]
fn true_lifetimes_hold_little_more_than_one_class() {
    let folder = tempdir().unwrap();
    let trace = folder.path().join("lifetimes.trace");
    four_lifetimes(&trace);
    let held = |options: &[&str]| {
        let mut command = mayfly();
        command.args(["replay", "--json", "--allocator", "mayfly"]).args(options).arg(&trace);
        let output = command.env("MAYFLY_HEAP_LIB", heap_library()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        ["average", "final", "peak"].map(|one| result[format!("mayfly.2MiB.{one}_bytes")].as_f64().unwrap())
    };
    let one_class = "10ms=inf:100,100ms=inf:100,1s=inf:100,10s=inf:100";
    let (true_ones, one) = (held(&[]), held(&["--confuse", one_class]));
    for ((held, of_one_class), bound) in true_ones.into_iter().zip(one).zip([1.15, 1.02, 1.15]) {
        assert!(held <= bound * of_one_class, "{true_ones:?}, {one:?}");
    }
}
