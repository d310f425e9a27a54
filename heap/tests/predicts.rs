//! Prediction in malloc (LLAMA §7): the finished library, preloaded into a C program with a model that the
//! test made for it, so the class of each call is known.
//!
//! Needs `target/release/libmayfly_heap.so`.

#[path = "../../lifetime/model/tests/maker/mod.rs"]
mod maker;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use maker::Maker;

const PROGRAM: &str = include_str!("predicts/program.c");

struct Built {
    folder: PathBuf,
    program: PathBuf,
    build_id: Vec<u8>,
    /// Functions' addresses and lengths, ascending.
    functions: Vec<(String, u32, u32)>,
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The program, compiled once for all tests.
fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("predicts-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (source, program) = (folder.join("program.c"), folder.join("program"));
        std::fs::write(&source, PROGRAM).unwrap();
        let flags =
            ["-O2", "-fomit-frame-pointer", "-fno-builtin-malloc", "-fno-optimize-sibling-calls", "-pthread"];
        let link = ["-Wl,--build-id=sha1", "-w", "-o"];
        output(Command::new("cc").args(flags).args(link).arg(&program).arg(&source));
        let notes = output(Command::new("readelf").arg("-n").arg(&program));
        let hex = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).unwrap().to_owned();
        let build_id =
            (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
        let symbols = output(Command::new("nm").args(["-n", "-S", "--defined-only"]).arg(&program));
        let functions = symbols.lines().filter_map(|line| {
            let [start, length, kind, name] = line.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
            let number = |hex: &str| u32::from_str_radix(hex, 16).ok();
            (kind == "T" || kind == "t").then(|| Some((name.to_owned(), number(start)?, number(length)?)))?
        });
        Built { functions: functions.collect(), folder, program, build_id }
    })
}

/// A model that predicts the class of the outermost of the four innermost frames that `classes` names; else
/// 10 ms.
fn model(name: &str, classes: &[(&str, usize)]) -> PathBuf {
    let built = built();
    // Frame 0 is unknown, and has no step; frame i + 1 has the class of function i.
    let mut made = Maker::by_innermost_frame(&classes.iter().map(|&(_, class)| class).collect::<Vec<_>>());
    made.frames.insert(0, vec![]);
    made.outermost_first = false; // the last step decides: the outermost
    let mut ranges = vec![(0, 0)];
    for (function, start, length) in &built.functions {
        if let Some(number) = classes.iter().position(|(name, _)| name == function) {
            ranges.push((*start, number as u32 + 1));
            ranges.push((*start + *length, 0));
        }
    }
    ranges.dedup_by(|next, last| {
        next.0 == last.0 && {
            *last = *next;
            true
        }
    });
    made.modules = vec![(vec![7; 20], vec![(0, 0)]), (built.build_id.clone(), ranges)];
    let path = built.folder.join(name);
    std::fs::write(&path, made.file()).unwrap();
    path
}

fn library() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let library = target.join("release/libmayfly_heap.so");
    assert!(
        library.is_file(),
        "{} is missing: `cargo build --release -p mayfly_heap` makes it",
        library.display()
    );
    library
}

fn run(what: &str, variables: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(&built().program);
    command.arg(what).env("LD_PRELOAD", library());
    variables.iter().for_each(|(name, value)| {
        command.env(format!("MAYFLY_HEAP_{name}"), value);
    });
    command.output().unwrap()
}

/// The statistics of a run that succeeded and logged nothing.
fn statistics(what: &str, variables: &[(&str, &Path)]) -> HashMap<String, u64> {
    let output = run(what, variables);
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
    numbers(&output.stdout)
}

fn numbers(statistics: &[u8]) -> HashMap<String, u64> {
    let text = String::from_utf8(statistics.to_vec()).unwrap();
    let pairs = text.trim().trim_matches(['{', '}']).split(',').map(|pair| pair.split_once(':').unwrap());
    pairs.filter_map(|(key, value)| Some((key.trim_matches('"').to_owned(), value.parse().ok()?))).collect()
}

const MODEL_ONLY: (&str, &str) = ("LIFETIMES", "model");

#[test]
fn each_context_gets_the_class_that_the_model_predicts() {
    let path = model("classes", &[("briefly", 0), ("fill_short", 4), ("fill_long", 5)]);
    let mode = (MODEL_ONLY.0, Path::new(MODEL_ONLY.1));
    let found = statistics("classes", &[("MODEL", &path), mode]);
    // 300 objects of 8 KiB, each alone in half a span: more than one huge page of each class.
    assert!(found["heap.huge_pages.class.100s"] >= 1, "{found:?}");
    assert!(found["heap.huge_pages.class.1000s"] >= 1, "{found:?}");
    assert_eq!(found["heap.lifetimes_measured"], 0, "the model alone: nothing is watched");
    assert!(found["heap.predictions.model_runs"] >= 3 && found["heap.predictions.model_ns"] > 0);
    assert!(
        (5..=40).contains(&found["heap.predictions.checks"]),
        "after 1,000, 2,000, 4,000 … hits: {found:?}"
    );
    assert_eq!(found["heap.predictions.disagreements"], 0);
    assert!(found["heap.predictions.hits"] >= 99_000);
    assert!(found["heap.predictions.misses"] < 2_000, "{found:?}");
    assert_eq!(found["heap.model_bytes"], std::fs::metadata(&path).unwrap().len());
}

#[test]
fn the_longer_class_holds_for_two_contexts_that_look_alike() {
    let path = model("alias", &[("from_one", 1), ("from_two", 5)]);
    let mode = (MODEL_ONLY.0, Path::new(MODEL_ONLY.1));
    for what in ["alias", "alias_back"] {
        let found = statistics(what, &[("MODEL", &path), mode]);
        let updates = found["heap.predictions.updates"];
        if what == "alias" {
            assert_eq!(updates, 1, "seen as soon as the model ran again: {found:?}");
            assert_eq!(found["heap.predictions.disagreements"], 1, "and from then on it agrees");
        } else {
            assert_eq!(updates, 0, "the first was the longer one: {found:?}");
            assert!(found["heap.predictions.disagreements"] >= 1, "{found:?}");
            assert!(found["heap.predictions.checks"] <= 8, "ever more seldom: {found:?}");
        }
    }
}

#[test]
fn online_learning_corrects_a_wrong_model() {
    let path = model("wrong", &[("fill_short", 6)]);
    let found = statistics("refill", &[("MODEL", &path)]);
    assert!(found["heap.lifetimes_measured"] >= 8, "{found:?}");
    assert!(found["heap.predictions_changed"] >= 1, "{found:?}");
    let mode = (MODEL_ONLY.0, Path::new(MODEL_ONLY.1));
    let alone = statistics("refill", &[("MODEL", &path), mode]);
    assert_eq!((alone["heap.lifetimes_measured"], alone["heap.predictions_changed"]), (0, 0));
}

#[test]
fn a_site_that_allocates_little_gets_the_longest_class() {
    let path = model("seldom", &[("main", 0)]);
    let with_online = statistics("seldom", &[("MODEL", &path)]);
    assert!(with_online["heap.huge_pages.class.inf"] >= 1, "{with_online:?}");
    assert_eq!(with_online["heap.huge_pages.class.10ms"], 0, "{with_online:?}");
    let alone = statistics("seldom", &[("MODEL", &path), (MODEL_ONLY.0, Path::new(MODEL_ONLY.1))]);
    assert_eq!(alone["heap.huge_pages.class.inf"], 0, "{alone:?}");
    assert!(alone["heap.huge_pages.class.10ms"] >= 1, "{alone:?}");
}

#[test]
fn several_threads_predict_at_once() {
    let path = model("threads", &[("briefly", 2), ("from_one", 3)]);
    let mode = (MODEL_ONLY.0, Path::new(MODEL_ONLY.1));
    let found = statistics("threads", &[("MODEL", &path), mode]);
    assert!(
        found["heap.predictions.hits"] > 8 * 100_000 && found["heap.predictions.disagreements"] == 0,
        "{found:?}"
    );
}

#[test]
fn stack_height_identifies_the_thread_function() {
    let path = model("heights", &[("in_shallow", 1), ("in_deep", 5)]);
    let mode = (MODEL_ONLY.0, Path::new(MODEL_ONLY.1));
    let found = statistics("heights", &[("MODEL", &path), mode]);
    assert!(found["heap.predictions.checks"] >= 3, "the model ran again in each thread: {found:?}");
    assert_eq!(found["heap.predictions.disagreements"], 0, "{found:?}");
}

/// The heap's lines on stderr, and its statistics at the end.
fn warning_of(what: &str, path: &Path) -> (String, HashMap<String, u64>) {
    let output = run(what, &[("MODEL", path)]);
    assert_eq!(output.status.code(), Some(0));
    (String::from_utf8(output.stderr).unwrap(), numbers(&output.stdout))
}

#[test]
fn a_model_of_another_program_is_detected_and_ignored() {
    let built = built();
    let path = built.folder.join("foreign");
    let mut made = Maker::by_innermost_frame(&[0, 0]);
    made.modules = vec![(vec![7; 20], vec![(0, 1)])];
    std::fs::write(&path, made.file()).unwrap();
    let (line, found) = warning_of("strange", &path);
    assert_eq!(
        line,
        "mayfly-heap: the model is for another program or build and is ignored: it knows the modules of 0% of the frames on \
         the stack; learning online\n"
    );
    assert_eq!(found["heap.predictions.disbelieved"], 1, "{found:?}");
    // From then on the heap runs as without a model: its prediction, that all dies at once, is not used.
    let online = statistics("strange", &[]);
    assert_eq!(online["heap.predictions.disbelieved"], 0);
    assert!(found["heap.huge_pages.peak"] <= online["heap.huge_pages.peak"] + 4, "{found:?} {online:?}");
    assert!(found["heap.lifetimes_measured"] > 0);
}

#[test]
fn a_model_contradicted_by_lifetimes_is_ignored() {
    let path = model("contrary", &[("many_sites", 5)]);
    let (line, found) = warning_of("contrary", &path);
    assert!(line.starts_with("mayfly-heap: the model is ignored: ") && line.ends_with("learning online\n"));
    assert_eq!((line.lines().count(), found["heap.predictions.disbelieved"]), (1, 1), "{line} {found:?}");
    // They die within 100 ms, or within 1 s or 10 s where the machine is busy.
    let path = model("agreeing", &[("many_sites", 2)]);
    assert_eq!(warning_of("contrary", &path).1["heap.predictions.disbelieved"], 0);
}

#[test]
fn a_table_model_predicts_like_a_network_and_unknown_contexts_are_learned_online() {
    let built = built();
    let names = ["get", "fill_short", "fill_long", "refill"];
    let mut made = Maker::by_innermost_frame(&[0; 5]);
    // Frame i + 1 is function i; frame 0 has no class.
    made.frames = (0..5).map(|function| vec![vec![function]]).collect();
    made.contexts = Some(vec![(vec![1], 255), (vec![1, 2], 4), (vec![1, 3], 5)]);
    let mut ranges = vec![(0, 0)];
    for (name, start, length) in &built.functions {
        if let Some(number) = names.iter().position(|wanted| wanted == name) {
            ranges.retain(|&(at, _)| at != *start);
            ranges.extend([(*start, number as u32 + 1), (*start + *length, 0)]);
        }
    }
    ranges.sort_unstable();
    ranges.dedup_by_key(|range| range.0);
    made.modules = vec![(built.build_id.clone(), ranges)];
    let path = built.folder.join("table");
    std::fs::write(&path, made.file()).unwrap();
    let mode = (MODEL_ONLY.0, Path::new(MODEL_ONLY.1));
    let found = statistics("classes", &[("MODEL", &path), mode]);
    assert!(found["heap.huge_pages.class.100s"] >= 1, "{found:?}");
    assert!(found["heap.huge_pages.class.1000s"] >= 1, "{found:?}");
    assert!(found["heap.lifetimes_measured"] >= 1, "those of `briefly`, which it does not know: {found:?}");
    assert!(found["heap.predictions.model_runs"] < 20, "and the model runs ever less often: {found:?}");
    assert_eq!(found["heap.predictions.disbelieved"], 0);
}

#[test]
fn an_unusable_model_leaves_the_program_running_and_logs_one_line() {
    let whole = std::fs::read(model("whole", &[("briefly", 2)])).unwrap();
    let folder = &built().folder;
    let line = |name: &str, bytes: Option<&[u8]>| {
        let path = folder.join(name);
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).unwrap();
        }
        let output = run("classes", &[("MODEL", &path)]);
        assert_eq!(output.status.code(), Some(0));
        assert!(output.stdout.starts_with(b"{\"heap.live_bytes\""));
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        text.trim().replace(&path.display().to_string(), "FILE")
    };
    let damaged: Vec<u8> = whole.iter().enumerate().map(|(i, byte)| byte ^ u8::from(i == 3000)).collect();
    assert_eq!(line("none", None), "mayfly-heap: model FILE cannot be read; learning online");
    assert_eq!(
        line("cut", Some(&whole[..3000])),
        "mayfly-heap: model FILE: it is not as long as it says: cut short?; learning online"
    );
    assert_eq!(
        line("damaged", Some(&damaged)),
        "mayfly-heap: model FILE: its checksum is wrong: damaged; learning online"
    );
    assert!(line("empty", Some(b"")).starts_with("mayfly-heap: model FILE"));
    let output = run("classes", &[("LIFETIMES", Path::new("model"))]);
    let wanted =
        "mayfly-heap: MAYFLY_HEAP_LIFETIMES=model needs a file in MAYFLY_HEAP_MODEL; learning online\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), wanted);
}

#[test]
fn the_next_run_knows_the_lifetimes_of_the_last() {
    let path = model("kept", &[("briefly", 0), ("fill_short", 4), ("fill_long", 5)]);
    let table = built().folder.join("kept.table");
    let mode = (MODEL_ONLY.0, Path::new(MODEL_ONLY.1));
    let run = |what: &str, path: &Path| statistics(what, &[("MODEL", path), mode, ("TABLE", &table)]);
    let first = run("classes", &path);
    assert!(first["heap.predictions.model_runs"] > first["heap.predictions.checks"] + 2, "{first:?}");
    assert_eq!(first["heap.predictions.recalled"], 0);
    let second = run("classes", &path);
    // The program's addresses differ now. Of the calls before and behind it, the first run has seen all but
    // its own last.
    let asked =
        |run: &HashMap<String, u64>| run["heap.predictions.model_runs"] - run["heap.predictions.checks"];
    assert!(asked(&second) <= 1, "{second:?}");
    assert!(second["heap.predictions.recalled"] >= 3, "{second:?}");
    assert!(second["heap.predictions.checks"] <= first["heap.predictions.checks"], "it agreed before");
    assert!(second["heap.huge_pages.class.100s"] >= 1 && second["heap.huge_pages.class.1000s"] >= 1);
    // Entries of other programs, or of other parts of this one, stay.
    run("refill", &path);
    assert!(asked(&run("classes", &path)) <= 1);
    // A retrained model is run again.
    let other = run("classes", &model("kept_other", &[("briefly", 1), ("fill_short", 3), ("fill_long", 5)]));
    assert_eq!(asked(&other), asked(&first), "{other:?}");
    assert!(other["heap.huge_pages.class.10s"] >= 1);
}

#[test]
fn lifetimes_learned_online_are_known_in_the_next_run() {
    let table = built().folder.join("online.table");
    let run = || statistics("refill", &[("TABLE", &table)]);
    let (first, second) = (run(), run());
    assert!(first["heap.predictions_changed"] >= 1, "{first:?}");
    assert!(second["heap.predictions_changed"] < first["heap.predictions_changed"], "{second:?}");
    assert!(second["heap.predictions.recalled"] >= 1);
}

#[test]
fn a_damaged_table_is_reported_and_replaced() {
    let table = built().folder.join("damaged.table");
    let line = |bytes: &[u8]| {
        std::fs::write(&table, bytes).unwrap();
        let output = run("classes", &[("TABLE", &table)]);
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stderr).unwrap();
        text.trim().replace(&table.display().to_string(), "FILE")
    };
    assert_eq!(
        line(b"something"),
        "mayfly-heap: table FILE: it does not begin with MAYFLYTB; starting without it"
    );
    let whole = std::fs::read(&table).unwrap();
    assert!(whole.len() > 64, "it was replaced");
    assert_eq!(line(&whole), "");
    for at in [33, whole.len() - 20] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        assert_eq!(
            line(&damaged),
            "mayfly-heap: table FILE: its checksum is wrong: damaged; starting without it"
        );
    }
    assert_eq!(
        line(&whole[..whole.len() - 48]),
        "mayfly-heap: table FILE: it is not as long as it says: cut short?; starting without it"
    );
    let folder = built().folder.join("no_such_folder/table");
    let output = run("classes", &[("TABLE", &folder)]);
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).lines().count()), (Some(0), 1));
}

/// Huge pages that are left after most live objects were freed: the median of three runs, since addresses,
/// which differ from run to run, decide which objects are measured.
fn left(variables: &[(&str, &Path)]) -> u64 {
    let mut runs = [(); 3].map(|()| statistics("torn", variables)["heap.huge_pages.live"]);
    runs.sort_unstable();
    runs[1]
}

#[test]
fn model_and_online_end_no_worse_than_the_better_of_the_two() {
    let (alone, online) = (Path::new("model"), left(&[]));
    for (name, moment, long, ever) in
        [("right", 1, 2, 6), ("all-stay", 6, 6, 6), ("all-brief", 0, 0, 0), ("contrary", 6, 6, 0)]
    {
        let classes = [("for_a_moment", moment), ("for_long", long), ("for_ever", ever)];
        let path = model(&format!("torn-{name}"), &classes);
        let model = left(&[("MODEL", &path), ("LIFETIMES", alone)]);
        let both = left(&[("MODEL", &path)]);
        println!("{name}: online {online}, model {model}, both {both}");
        // A wrong model holds all pages that ever were; online learning may differ by a few pages.
        assert!(both <= model.min(online) + 5, "{name}: {both} pages, of the model {model}, online {online}");
    }
}
