//! CDI: the specifications that engines read, for devices of any names. They are valid JSON, and name no file
//! outside of the agent's folder.

#![no_main]

use std::path::Path;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use node::Name;
use node::inject::cdi::specification;
use node::inject::injection::Injection;

#[derive(Debug, Arbitrary)]
struct Input {
    devices: Vec<(String, bool, bool, bool)>,
    existing: Option<String>,
}

fuzz_target!(|input: Input| {
    let mut devices = Vec::new();
    for (name, heap, share, model) in &input.devices {
        let Ok(name) = name.parse::<Name>() else { continue };
        let mut injection = Injection::default();
        injection.stub_root(Path::new("/a/root"));
        let folder = format!("/a/{name}");
        if *heap {
            injection.heap(Path::new("/a/heap"), model.then_some(Path::new(&folder)), None);
        }
        if *share {
            injection.share(Path::new("/a/share"), Path::new(&folder));
        }
        let preloaded = injection.ld_preload(input.existing.as_deref()).expect("the stub is preloaded");
        assert_eq!(
            preloaded.matches("libmayfly_heap.so").count()
                - input.existing.as_deref().unwrap_or("").matches("libmayfly_heap.so").count(),
            1
        );
        devices.push((name.to_string(), injection));
    }
    let text = specification("heap", &devices).to_string();
    let read: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let listed = read["devices"].as_array().expect("a list");
    assert_eq!(listed.len(), devices.len());
    for (one, (name, injection)) in listed.iter().zip(&devices) {
        // The grammar of CDI's device names.
        let is_end = |c: char| c.is_ascii_alphanumeric();
        assert!(name.chars().all(|c| is_end(c) || "_-.:".contains(c)));
        assert!(one["name"] == **name && name.starts_with(is_end) && name.ends_with(is_end));
        let mounts = one["containerEdits"]["mounts"].as_array().expect("a list");
        assert_eq!(mounts.len(), injection.mounts.len());
        for mount in mounts {
            let [host, inside] =
                ["hostPath", "containerPath"].map(|key| mount[key].as_str().expect("a path"));
            let stays = host.split('/').all(|part| part != "..");
            assert!(host.starts_with("/a/") && stays && inside.starts_with("/opt/mayfly"));
        }
    }
});
