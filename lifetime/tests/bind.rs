//! Models bound to another build: the result is a model that the heap accepts; damaged files are refused in
//! one line.

#[path = "../model/tests/maker/mod.rs"]
mod maker;

use std::io::Write;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use lifetime::code::ranges::{Code, Range};
use lifetime::model::bind::{Coverage, base_name, bind, files_of};
use lifetime::model::sections::{Sections, kind};
use lifetime_model::{Kernel, Model};
use maker::{Aligned, Maker, sign};
use proptest::prelude::*;
use serde_json::{Value, json};

const OLD: [u8; 3] = [1, 2, 3];
const NEW: [u8; 4] = [9, 8, 7, 6];

fn packed(value: &Value) -> Vec<u8> {
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
    packed.write_all(value.to_string().as_bytes()).unwrap();
    packed.finish().unwrap()
}

/// A file with these sections replaced.
fn with(file: &[u8], sections: &[(u32, &[u8])]) -> Vec<u8> {
    let mut parts = Sections::of(file).unwrap();
    for (kind, content) in sections {
        parts.set(*kind, content.len(), content.to_vec());
    }
    parts.file().unwrap()
}

/// A table of three contexts of functions "keep", "drop" and "main" (1, 2, 3) of a program, and "malloc" (4)
/// of a library.
fn table() -> Vec<u8> {
    let mut made = Maker::random(3, 16, 5, 1, 1);
    made.rows.truncate(5);
    made.frames = (0..5).map(|function| vec![vec![function]]).collect();
    made.modules =
        vec![(OLD.to_vec(), vec![(16, 1), (32, 2), (48, 3), (64, 0)]), (vec![5; 20], vec![(0, 4)])];
    made.contexts = Some(vec![(vec![4], 255), (vec![4, 1], 6), (vec![4, 2], 0), (vec![3], 2)]);
    let names = json!(["table", ["", "keep(int)", "drop", "main…", "malloc"], []]);
    let seen = json!({
        "functions": ["keep(int)", "drop", "main…", "malloc"],
        "files": [[0], [0], [0], [1]],
        "contexts": [[600, [3, 0, 2]], [300, [3, 1, 2]], [100, [2]]],
    });
    let metadata = json!({"encoder": "table", "files": ["/opt/v1/server", "/lib/libc.so.6"]}).to_string();
    with(
        &made.file(),
        &[
            (kind::METADATA, metadata.as_bytes()),
            (kind::NAMES, &packed(&names)),
            (kind::SEEN, &packed(&seen)),
        ],
    )
}

fn code(path: &str, build_id: &[u8], names: &[&str]) -> Code {
    let range = |(place, name): (usize, &&str)| {
        let start = 100 + 32 * place as u64;
        Range { start, end: start + 32 - 8 * (place as u64 % 2), names: (*name).into() }
    };
    let ranges = names.iter().enumerate().map(range).collect();
    Code { path: PathBuf::from(path), build_id: build_id.to_vec(), ranges }
}

fn coverage(contexts: usize, bytes: f64, functions: usize, all_functions: usize) -> Coverage {
    Coverage { contexts, all_contexts: 3, bytes, functions, all_functions }
}

#[test]
fn a_bound_model_knows_both_builds() {
    let new = code("/opt/v2/server", &NEW, &["new()", "main….isra.0", "other;keep(int)", "keep(int)"]);
    let (file, found) = bind(&table(), &[new]).unwrap();
    assert_eq!(found, coverage(2, 0.7, 2, 3), "drop is missing");
    let file = Aligned::new(&file);
    let model = Model::parse(file.bytes()).unwrap();
    assert_eq!(files_of(&model), ["/opt/v1/server", "/lib/libc.so.6", "/opt/v2/server"]);
    assert_eq!(Coverage::of(&model), Some(found));
    let (old, new, library) =
        (model.module(&OLD).unwrap(), model.module(&NEW).unwrap(), model.module(&[5; 20]).unwrap());
    let said = |frames: &[u32]| model.classify(Kernel::best(), frames);
    let malloc = model.frame(library, 7);
    assert_eq!(said(&[malloc, model.frame(old, 20)]), Some(6));
    assert_eq!(said(&[malloc, model.frame(old, 40)]), Some(0));
    assert_eq!(said(&[malloc, model.frame(new, 196)]), Some(6), "keep");
    assert_eq!(said(&[model.frame(new, 132)]), Some(2), "main, under its compiler's suffix");
    assert_eq!(said(&[malloc, model.frame(new, 170)]), None, "keep was inlined into an unknown function");
    for unknown in [0, 99, 100, 131, 156, 1000] {
        assert_eq!(model.frame(new, unknown), 0, "{unknown}");
    }
}

#[test]
fn a_file_replaces_those_of_its_name() {
    let covered_by = |code: Code| bind(&table(), &[code]).unwrap().1;
    assert_eq!(covered_by(code("/lib/libc.so.7", &NEW, &["free"])), coverage(1, 0.1, 0, 1));
    assert_eq!(covered_by(code("/lib/libc.so.7", &NEW, &["malloc"])), coverage(3, 1.0, 1, 1));
    assert_eq!(covered_by(code("renamed", &NEW, &["main…"])), coverage(1, 0.1, 1, 3), "the program");
    assert_eq!(covered_by(code("libother.so", &NEW, &[])), coverage(3, 1.0, 0, 0), "it replaces nothing");
    assert_eq!(covered_by(code("/opt/v3/server", &OLD, &[])), coverage(3, 1.0, 0, 0), "it has this build");
    let names = [("/a/libz.so.1.3", "libz.so"), ("b/x.sock", "x.sock"), ("libz.so", "libz.so"), ("", "")];
    for (path, name) in names {
        assert_eq!(base_name(path), name);
    }
}

#[test]
fn binding_twice_equals_binding_to_both_at_once() {
    let (one, two) = (code("a/server", &NEW, &["main…", "drop"]), code("b/server", &[3; 20], &["keep(int)"]));
    let once = bind(&table(), &[one]).unwrap().0;
    let (twice, _) = bind(&once, &[two]).unwrap();
    let twice = Aligned::new(&twice);
    let model = Model::parse(twice.bytes()).unwrap();
    let frame = |id: &[u8], address| model.frame(model.module(id).unwrap(), address);
    let frames: Vec<u32> =
        [&OLD[..], &NEW, &[3; 20]].iter().flat_map(|id| [frame(id, 100), frame(id, 132)]).collect();
    assert_eq!(frames, [0, 0, 3, 2, 1, 0]);
}

fn refusal(file: &[u8]) -> String {
    let error = bind(file, &[code("server", &NEW, &["main…"])]).expect_err("refused");
    let line = format!("{error:#}");
    assert_eq!(line.lines().count(), 1, "{line}");
    line
}

#[test]
fn names_the_fault() {
    let again = "it does not keep the contexts that it was made from, as older models: train it again";
    assert_eq!(refusal(&Maker::random(3, 16, 20, 2, 1).file()), again);
    assert_eq!(refusal(&with(&table(), &[(kind::METADATA, b"{}")])), again);
    assert!(refusal(&with(&table(), &[(kind::NAMES, b"x")])).starts_with("its names are damaged"));
    assert!(refusal(&with(&table(), &[(kind::METADATA, b"x")])).starts_with("its metadata is damaged"));
    for seen in [
        json!({"functions": ["a"], "files": [], "contexts": []}),
        json!({"functions": ["a"], "files": [[2]], "contexts": []}),
        json!({"functions": ["a"], "files": [[0]], "contexts": [[1, [1]]]}),
        json!({"functions": ["a"], "files": [[0]], "contexts": [[-1, [0]]]}),
    ] {
        assert_eq!(refusal(&with(&table(), &[(kind::SEEN, &packed(&seen))])), "its contexts are damaged");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// A file that the heap accepts is bound, to anything, or refused; the result is one that it accepts.
    #[test]
    fn hostile_files_are_refused_or_bound(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        names in proptest::collection::vec("[a-z…;@~.]{0,9}|main…|keep\\(int\\)|drop", 0..9),
        places in proptest::collection::vec((0u64..1 << 33, 0u64..99), 9),
        build_id in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut file = table();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        sign(&mut file);
        let range = |(names, (start, length)): (String, (u64, u64))| Range { start, end: start + length, names: names.into() };
        let ranges = names.into_iter().zip(places).map(range).collect();
        let code = Code { path: "server".into(), build_id: build_id.clone(), ranges };
        let aligned = Aligned::new(&file);
        if Model::parse(aligned.bytes()).is_ok() && let Ok((bound, known)) = bind(&file, &[code]) {
            let bound = Aligned::new(&bound);
            let model = Model::parse(bound.bytes());
            prop_assert!(model.is_ok(), "{:?}", model.err());
            prop_assert!(known.contexts <= known.all_contexts && (0.0..=1.0).contains(&known.bytes));
            prop_assert!(model.unwrap().module(&build_id).is_some());
        }
    }
}
