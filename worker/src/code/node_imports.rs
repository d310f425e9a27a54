//! Which packages of AWS' SDK a function in Node.js names that its own packages lack.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use regex::bytes::{Captures, Regex};

/// Names in quotes, as `import` and `require` have them. A bundle may hold a package.json, whose
/// dependencies are keys: `{ "NAME": "^3.0.0"`.
static NAMED: LazyLock<Regex> = LazyLock::new(|| {
    let name = r#"["'`](@(?:aws-sdk|smithy)/[a-z0-9-]+)(?:["'`](\s*:)?|/)"#;
    Regex::new(&format!(r"([{{,]\s*)?{name}")).expect("it is one")
});
const MODULES: &str = "node_modules";
const SOURCES: [&str; 3] = ["js", "mjs", "cjs"];
/// Larger files are data.
const LARGEST: u64 = 16 << 20;
const DEPTH: usize = 32;

/// The names, sorted.
pub fn absent(code: &Path) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    read(code, DEPTH, &mut named);
    named.retain(|name| !code.join(MODULES).join(name).exists());
    named
}

/// A folder or file that cannot be read names nothing.
fn read(folder: &Path, depth: usize, named: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, Ok(metadata)) = (entry.path(), entry.metadata()) else { continue };
        if metadata.is_dir() && depth > 0 && entry.file_name() != MODULES {
            read(&path, depth - 1, named);
        }
        let is_source = path.extension().is_some_and(|kind| SOURCES.iter().any(|source| kind == *source));
        if metadata.is_file() && is_source && metadata.len() <= LARGEST {
            let text = fs::read(&path).unwrap_or_default();
            let is_key = |found: &Captures| found.get(1).is_some() && found.get(3).is_some();
            let found = NAMED.captures_iter(&text).filter(|found| !is_key(found));
            named.extend(found.map(|found| String::from_utf8_lossy(&found[2]).into_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_the_functions_own_are_not_absent() {
        let code = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = code.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/index.mjs", "import { A } from '@aws-sdk/client-s3';\nimport b from \"@smithy/own/b\"");
        write("b.cjs", "require(`@aws-sdk/client-sqs`) // @aws-sdk/client-not");
        let bundled = "{ \"@aws-sdk/types\": \"^3.4.1\",\n  '@smithy/not' : \"^2.0.4\" }";
        write("bundle.mjs", &format!("var package_default = {bundled};\nimport '@aws-sdk/client-sns'"));
        write("c.txt", "'@aws-sdk/client-not'");
        write("node_modules/x/index.js", "require('@aws-sdk/client-not')");
        write("node_modules/@smithy/own/package.json", "{}");
        let names: Vec<String> = absent(code.path()).into_iter().collect();
        assert_eq!(names, ["@aws-sdk/client-s3", "@aws-sdk/client-sns", "@aws-sdk/client-sqs"]);
    }
}
