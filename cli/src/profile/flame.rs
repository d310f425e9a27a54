//! A profile as a flame graph: one HTML file that needs no other file, and loads nothing from the network.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use lifetime::code::readable::short;
use lifetime::code::symbols::Symbols;
use lifetime::profile::contents::{Context, Profile};
use serde_json::{Value, json};

/// The measures of a bar's width; the page has a button for each.
const MEASURES: [(&str, &str); 4] = [
    ("bytes", "bytes"),
    ("objects", "objects"),
    ("byte-seconds", "byte-seconds"),
    ("live at the end", "bytes"),
];
const PAGE: &str = include_str!("flame.html");
/// The placeholder of the data in the page.
const PLACE: &str = "MAYFLY_DATA";

fn values_of(context: &Context) -> [f64; 4] {
    [context.bytes, context.allocations, context.byte_seconds(), context.live_bytes()]
}

/// A function called from another, which is called from another, and so on.
struct Node {
    name: usize,
    parent: usize,
    /// Allocations of the function itself; in the profile, and in the one that it is compared with.
    values: [[f64; 4]; 2],
}

#[derive(Default)]
struct Tree {
    names: Vec<String>,
    numbers: HashMap<String, usize>,
    nodes: Vec<Node>,
    places: HashMap<(usize, usize), usize>,
}

impl Tree {
    fn name(&mut self, name: &str) -> usize {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), self.names.len() - 1);
        self.names.len() - 1
    }

    fn node(&mut self, parent: usize, name: &str) -> usize {
        let name = self.name(name);
        *self.places.entry((parent, name)).or_insert_with(|| {
            self.nodes.push(Node { name, parent, values: [[0.0; 4]; 2] });
            self.nodes.len() - 1
        })
    }

    fn add(&mut self, profile: &Profile, symbols: &mut Symbols, which: usize) {
        for context in &profile.contexts {
            let mut at = 0;
            for &frame in context.frames.iter().rev() {
                for function in symbols.of(frame).to_vec().iter().rev() {
                    at = self.node(at, &function.name);
                }
            }
            let sums = &mut self.nodes[at].values[which];
            sums.iter_mut().zip(values_of(context)).for_each(|(sum, value)| *sum += value);
        }
    }
}

/// Writes the page to `path`; `before` is the profile to compare with.
///
/// # Errors
/// The file cannot be written.
pub fn write(
    title: &str,
    now: (&Profile, &mut Symbols),
    before: Option<(&Profile, &mut Symbols)>,
    path: &Path,
) -> Result<()> {
    let mut tree = Tree::default();
    tree.node(usize::MAX, "all");
    tree.add(now.0, now.1, 0);
    let compares = before.is_some();
    if let Some((profile, symbols)) = before {
        tree.add(profile, symbols, 1);
    }
    let data = data_of(title, &tree, compares);
    std::fs::write(path, page(&data)).with_context(|| format!("cannot write {}", path.display()))
}

fn data_of(title: &str, tree: &Tree, compares: bool) -> Value {
    let nodes: Vec<Value> = tree
        .nodes
        .iter()
        .map(|node| {
            let parent = if node.parent == usize::MAX { -1 } else { node.parent as i64 };
            let values = node.values.iter().take(1 + usize::from(compares)).flatten();
            let mut row = vec![json!(node.name), json!(parent)];
            row.extend(values.map(|value| json!((value * 1000.0).round() / 1000.0)));
            Value::Array(row)
        })
        .collect();
    let shorts: Vec<String> = tree.names.iter().map(|name| short(name)).collect();
    let measures: Vec<Value> = MEASURES.iter().map(|(name, unit)| json!([name, unit])).collect();
    json!({"title": title, "names": tree.names, "shorts": shorts, "measures": measures, "compares": compares, "nodes": nodes})
}

/// The data lies in a script element, which a `<` could end.
fn page(data: &Value) -> String {
    PAGE.replace(PLACE, &data.to_string().replace('<', "\\u003c"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lifetime::profile::contents::{Frame, Module};

    fn profile(contexts: &[(&[u64], f64)]) -> Profile {
        let context = |&(places, bytes): &(&[u64], f64)| Context {
            frames: places.iter().map(|&offset| Frame { module: Some(0), offset }).collect(),
            bytes,
            allocations: 2.0,
            ..Context::default()
        };
        let server = Module { path: "server".into(), build_id: Vec::new(), addresses: 0..9, load_address: 0 };
        Profile {
            modules: vec![server],
            contexts: contexts.iter().map(context).collect(),
            ..Profile::default()
        }
    }

    #[test]
    fn contexts_that_end_alike_share_their_callers() {
        let (now, before) =
            (profile(&[(&[1, 9], 10.0), (&[2, 9], 20.0)]), profile(&[(&[2, 9], 5.0), (&[3], 1.0)]));
        let mut tree = Tree::default();
        tree.node(usize::MAX, "all");
        tree.add(&now, &mut Symbols::new(&now), 0);
        tree.add(&before, &mut Symbols::new(&before), 1);
        let found: Vec<_> = tree
            .nodes
            .iter()
            .map(|node| (tree.names[node.name].as_str(), node.parent, node.values[0][0], node.values[1][0]))
            .collect();
        let wanted = [
            ("all", usize::MAX, 0.0, 0.0),
            ("server+0x9", 0, 0.0, 0.0),
            ("server+0x1", 1, 10.0, 0.0),
            ("server+0x2", 1, 20.0, 5.0),
            ("server+0x3", 0, 0.0, 1.0),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_name_does_not_end_the_script_that_it_lies_in() {
        let mut tree = Tree::default();
        tree.node(usize::MAX, "</script><script>alert(1)</script>");
        let page = page(&data_of("<b>", &tree, false));
        assert_eq!(page.matches("</script>").count(), PAGE.matches("</script>").count());
        assert!(!page.contains(PLACE) && !page.contains("http"), "it loads nothing from the network");
    }
}
