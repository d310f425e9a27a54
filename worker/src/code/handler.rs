//! Whether the file that a `Handler` names lies in the code, and Node.js' packages beside it: in code that is
//! still to be built they do not.

use std::path::{Component, Path};

use serde_json::Value;

use crate::code::runtime::Runtime;

/// Packages that the worker has for all functions in Node.js.
const SDK: [&str; 2] = ["@aws-sdk/", "@smithy/"];

/// What the code in a folder lacks, so that it must be built; layers may have it, too.
pub fn missing(runtime: &Runtime, handler: &str, folder: &Path) -> Option<String> {
    missing_file(runtime, handler, folder).or_else(|| missing_package(runtime, folder))
}

/// A package that package.json names and that is not there, for functions in Node.js.
fn missing_package(runtime: &Runtime, folder: &Path) -> Option<String> {
    let Runtime::Node(..) = runtime else { return None };
    let manifest = std::fs::read(folder.join("package.json")).ok()?;
    let manifest: Value = serde_json::from_slice(&manifest).ok()?;
    let mut packages = manifest.get("dependencies")?.as_object()?.keys();
    let is_missing = |name: &&String| {
        !SDK.iter().any(|own| name.starts_with(own)) && !folder.join("node_modules").join(name).exists()
    };
    let package = packages.find(is_missing)?;
    Some(format!("package.json: the code has no node_modules/{package}"))
}

/// The file that a Handler in the code's folder lacks, if its place is known.
fn missing_file(runtime: &Runtime, handler: &str, folder: &Path) -> Option<String> {
    let is_there = |name: &str| folder.join(name).exists();
    let wanted = match runtime {
        Runtime::Python(..) => {
            let module = handler.rsplit_once('.')?.0.replace('.', "/");
            let packages = [format!("{module}.py"), format!("{module}/__init__.py"), format!("{module}.pyc")];
            let compiled = || is_compiled(folder, &module);
            (!packages.iter().any(|name| is_there(name)) && !compiled()).then(|| format!("{module}.py"))
        }
        Runtime::Node(..) => {
            // As Lambda has it: the function's name begins at the first dot of the last part.
            let (place, last) = handler.rsplit_once('/').map_or(("", handler), |(place, last)| (place, last));
            let file = Path::new(place).join(last.split('.').next()?);
            let file = file.to_str()?;
            let files = ["", ".js", ".mjs", ".cjs"].map(|kind| format!("{file}{kind}"));
            let is_file = |name: &String| folder.join(name).is_file();
            (!files.iter().any(is_file)).then(|| format!("{file}.js"))
        }
        Runtime::Java(..) => {
            let class = format!("{}.class", handler.split("::").next()?.replace('.', "/"));
            // Any of the packages in lib may have the class, and what is packed is built.
            (!is_there(&class) && !is_there("lib")).then_some(class)
        }
        Runtime::Ruby(..) => {
            let file = handler.split('.').next()?;
            (!is_there(&format!("{file}.rb"))).then(|| format!("{file}.rb"))
        }
        Runtime::Provided(_) => (!is_there("bootstrap")).then(|| "bootstrap".into()),
        _ => None,
    }?;
    // Absolute ones are a layer's.
    let is_inside = Path::new(&wanted).components().all(|part| !matches!(part, Component::RootDir));
    is_inside.then(|| format!("Handler {handler}: the code has no {wanted}"))
}

/// Whether a module is native code: its name has the interpreter's version in it.
fn is_compiled(folder: &Path, module: &str) -> bool {
    let path = folder.join(module);
    let (Some(place), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return false;
    };
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).any(|file| {
        let rest = file.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with('.') && rest.ends_with(".so"))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_of_handlers_are_looked_for_as_runtimes_do() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::create_dir_all(folder.join("a/b")).unwrap();
        for file in ["app.py", "a/__init__.py", "a/b/native.cpython-311.so", "index.mjs", "a/main.ts"] {
            fs::write(folder.join(file), "").unwrap();
        }
        let python = Runtime::Python("/usr/bin/python3".into(), "python3.11".into());
        let node = Runtime::Node("/usr/bin/node".into(), "nodejs22.x".into());
        let java = Runtime::Java("/usr/bin/java".into(), "java21".into());
        fs::create_dir_all(folder.join("com/us")).unwrap();
        fs::write(folder.join("com/us/App.class"), "").unwrap();
        let ruby = Runtime::Ruby("/usr/bin/ruby3.3".into(), "ruby3.3".into());
        fs::write(folder.join("a/calls.rb"), "").unwrap();
        let provided = Runtime::Provided("provided.al2023".into());
        for (runtime, handler, lacks) in [
            (&python, "app.handler", None),
            (&python, "a.handler", None),
            (&python, "a/b/native.handler", None),
            (&python, "a.b.native.handler", None),
            (&python, "a.other.handler", Some("a/other.py")),
            (&python, "handler", None),
            (&node, "index.handler", None),
            (&node, "./index.handler", None),
            (&node, "a/main.handler", Some("a/main.js")),
            (&node, "/opt/layer.handler", None),
            (&java, "com.us.App::handle", None),
            (&java, "com.us.App", None),
            (&java, "com.us.Other::handle", Some("com/us/Other.class")),
            (&ruby, "a/calls.Our::Class.handle", None),
            (&ruby, "calls.handle", Some("calls.rb")),
            (&provided, "bootstrap", Some("bootstrap")),
            (&Runtime::Image, "", None),
        ] {
            let found = missing(runtime, handler, folder);
            let wanted = lacks.map(|name| format!("Handler {handler}: the code has no {name}"));
            assert_eq!(found, wanted, "{handler}");
        }
        let package = r#"{"dependencies": {"@aws-sdk/client-s3": "3", "fastify": "5"}}"#;
        fs::write(folder.join("package.json"), package).unwrap();
        let lacks = "package.json: the code has no node_modules/fastify";
        assert_eq!(missing(&node, "index.handler", folder).as_deref(), Some(lacks));
        assert_eq!(missing(&python, "app.handler", folder), None);
        fs::create_dir_all(folder.join("node_modules/fastify")).unwrap();
        assert_eq!(missing(&node, "index.handler", folder), None);
    }
}
