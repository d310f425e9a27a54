//! The house: `heap/src/lib.rs` declares the layers from the bottom up, each a folder. Imports run down only, and within a layer
//! no modules import one another in a circle. Read off the `use` lines and paths of the sources, tests in them apart.

#![cfg(not(loom))]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module is known by layer and name. A file and the folder of its name (`sites.rs`, `sites/`) are one.
type Module = (String, String);

/// An import, and where it stands.
struct Import {
    from: Module,
    to: Module,
    place: String,
}

/// The layers in order, and the modules of each.
fn layers(library: &str) -> Vec<(String, BTreeSet<String>)> {
    let mut layers: Vec<(String, BTreeSet<String>)> = Vec::new();
    for line in library.lines() {
        if let Some(layer) = line.strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(" {")) {
            layers.push((layer.to_string(), BTreeSet::new()));
        } else if let Some(module) = line.strip_prefix("    pub mod ").and_then(|rest| rest.strip_suffix(';'))
        {
            layers.last_mut().expect("a layer around it").1.insert(module.to_string());
        }
    }
    layers
}

/// What is imported by one `use` tree or path behind `crate::`, as far as layer and module: `a::{b, c::{d, e}}` is a::b and a::c.
fn heads(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim();
    if let Some(group) = tree.strip_prefix('{') {
        let (mut depth, mut start, mut all) = (0, 0, Vec::new());
        for (i, letter) in group.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => {
                    all.extend(heads(&group[start..i]));
                    break;
                }
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    all.extend(heads(&group[start..i]));
                    start = i + 1;
                }
                _ => {}
            }
        }
        return all;
    }
    let end = tree.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(tree.len());
    let (name, rest) = tree.split_at(end);
    if name.is_empty() {
        return Vec::new();
    }
    match rest.strip_prefix("::") {
        Some(rest) if rest.starts_with(|letter: char| letter.is_alphanumeric() || "_{".contains(letter)) => {
            let prefixed = |tail: Vec<String>| [vec![name.to_string()], tail].concat();
            heads(rest).into_iter().map(prefixed).collect()
        }
        _ => vec![vec![name.to_string()]],
    }
}

/// The source without comments and without its tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// All imports of one file.
fn imports(
    from: &Module,
    file: &str,
    text: &str,
    layers: &[(String, BTreeSet<String>)],
) -> Result<Vec<Import>, String> {
    let code = code(text);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let place = format!("{file}:{}", 1 + code[..at].matches('\n').count());
        for path in heads(&code[at + "crate::".len()..]) {
            if path[0] == "sequential" {
                continue; // of the tests that include the file
            }
            let to = layers.iter().find(|(layer, _)| *layer == path[0]);
            match (to, path.get(1)) {
                (Some((layer, modules)), Some(module)) if modules.contains(module) => {
                    found.push(Import {
                        from: from.clone(),
                        to: (layer.clone(), module.clone()),
                        place: place.clone(),
                    });
                }
                _ => return Err(format!("{place}: crate::{} is no module of a layer", path.join("::"))),
            }
        }
    }
    // `super` is for a module's own folder and for tests: between modules it would hide the layer.
    match code.find("super::super") {
        Some(at) => Err(format!("{file}:{}: say crate::", 1 + code[..at].matches('\n').count())),
        None => Ok(found),
    }
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> = entries
        .flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .collect();
    files.sort();
    files
}

/// What is wrong with the house in `folder`.
fn faults(files: &[(String, String)]) -> Vec<String> {
    let library = &files.iter().find(|(name, _)| name == "lib.rs").expect("lib.rs").1;
    let layers = layers(library);
    let height = |module: &Module| layers.iter().position(|(layer, _)| *layer == module.0);
    let (mut all, mut faults) = (Vec::new(), Vec::new());
    for (name, text) in files.iter().filter(|(name, _)| name != "lib.rs") {
        let parts: Vec<&str> = name.trim_end_matches(".rs").split('/').collect();
        let known = layers
            .iter()
            .any(|(layer, modules)| parts.len() > 1 && layer == parts[0] && modules.contains(parts[1]));
        if !known {
            faults.push(format!("{name} is in no layer of lib.rs"));
            continue;
        }
        match imports(&(parts[0].to_string(), parts[1].to_string()), name, text, &layers) {
            Ok(imports) => all.extend(imports),
            Err(fault) => faults.push(fault),
        }
    }
    for import in all.iter().filter(|import| height(&import.from) < height(&import.to)) {
        let (from, to) = (&import.from, &import.to);
        faults.push(format!(
            "{}: {}::{} imports {}::{}, of a layer above",
            import.place, from.0, from.1, to.0, to.1
        ));
    }
    // Takes away modules that import nothing that is left: what remains is in a circle or above one.
    let mut left: BTreeMap<&Module, Vec<&Import>> = BTreeMap::new();
    for import in all.iter().filter(|import| import.from != import.to) {
        left.entry(&import.from).or_default().push(import);
    }
    loop {
        let before = left.len();
        let ends: BTreeSet<Module> = left.keys().map(|module| (*module).clone()).collect();
        left.retain(|_, imports| imports.iter().any(|import| ends.contains(&import.to)));
        if left.len() == before {
            break;
        }
    }
    // And those that nobody imports who is left: what remains is in a circle or between two.
    loop {
        let before = left.len();
        let reached: BTreeSet<Module> = left.values().flatten().map(|import| import.to.clone()).collect();
        left.retain(|module, _| reached.contains(module));
        if left.len() == before {
            break;
        }
    }
    for import in left.values().flatten().filter(|import| left.contains_key(&import.to)) {
        let (from, to) = (&import.from, &import.to);
        faults.push(format!(
            "{}: {}::{} imports {}::{}, in a circle",
            import.place, from.0, from.1, to.0, to.1
        ));
    }
    faults
}

fn house() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&folder).expect("in the folder").to_string_lossy().into_owned();
        (name, fs::read_to_string(&path).expect("a source"))
    };
    rust_files(&folder).into_iter().map(read).collect()
}

#[test]
fn imports_run_one_way() {
    let house = house();
    assert!(house.len() > 50, "the sources are found");
    let faults = faults(&house);
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

/// The house with a line more in front of `file`.
fn with(file: &str, line: &str) -> Vec<String> {
    let mut house = house();
    let text = &mut house.iter_mut().find(|(name, _)| name == file).expect("the file").1;
    *text = format!("{line}\n{text}");
    faults(&house)
}

#[test]
fn an_import_that_is_turned_around_is_named_with_its_line() {
    for (file, line, says) in [
        (
            "pages/region.rs",
            "use crate::thread::{bin::Bin, current};",
            "pages/region.rs:1: pages::region imports thread::current, of a layer above",
        ),
        (
            "system/text.rs",
            "fn f() { crate::observe::trace::flush() }",
            "system/text.rs:1: system::text imports observe::trace, of a layer above",
        ),
        (
            "lifetime/sites/learning.rs",
            "use crate::{\n    units::bits,\n    entry::free as f,\n};",
            "lifetime/sites/learning.rs:1: lifetime::sites imports entry::free, of a layer above",
        ),
        (
            "pages/page_life.rs",
            "use crate::pages::open_page;",
            "pages/page_life.rs:1: pages::page_life imports pages::open_page, in a circle",
        ),
        (
            "units/bits.rs",
            "use crate::elsewhere::x;",
            "units/bits.rs:1: crate::elsewhere::x is no module of a layer",
        ),
    ] {
        let faults = with(file, line);
        assert!(faults.iter().any(|fault| fault == says), "{says}\nis not in\n{}", faults.join("\n"));
    }
    assert!(with("units/bits.rs", "// use crate::entry::free;").is_empty(), "a comment is no import");
}
