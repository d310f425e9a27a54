//! An injection as the adjustment that NRI's `CreateContainer` returns.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::inject::injection::{Injection, MARK};
use crate::nri::messages::{Adjustment, Container, Device, LinuxAdjustment, Mode, Mount, Variable};

/// Whether a container itself mounts something at or below `folder`.
pub fn mounts_over(container: &Container, folder: &str) -> bool {
    container.mounts.iter().any(|mount| Path::new(&mount.destination).starts_with(folder))
}

/// The value of a variable of the container.
pub fn variable_of<'a>(container: &'a Container, name: &str) -> Option<&'a str> {
    let value = |line: &'a String| line.strip_prefix(name)?.strip_prefix('=');
    container.environment.iter().find_map(value)
}

/// The injected libraries that a container's `LD_PRELOAD` names.
pub fn preloaded_libraries(container: &Container) -> Vec<&'static str> {
    let preloaded = variable_of(container, "LD_PRELOAD").unwrap_or_default();
    // The loader divides the list at both.
    let has = |library: &&str| preloaded.split([':', ' ']).any(|path| path.ends_with(library));
    ["libmayfly_heap.so", "libmayfly_merge_auto.so"].into_iter().filter(has).collect()
}

/// The changes that the runtime makes to a container, which has `preloaded` in `LD_PRELOAD` already.
pub fn adjustment(injection: &Injection, preloaded: Option<&str>) -> Adjustment {
    let options = ["rbind", "ro", "nosuid", "nodev"].map(str::to_owned);
    let mounts = injection.mounts.iter().map(|mount| Mount {
        destination: mount.destination.clone(),
        kind: "bind".into(),
        source: mount.source.to_string_lossy().into_owned(),
        options: options.to_vec(),
    });
    let mut environment = Vec::new();
    let mut set = |name: &str, value: String| environment.push(Variable { name: name.into(), value });
    if let Some(value) = injection.ld_preload(preloaded) {
        // Removed first: if two plugins set one variable the runtime reports a conflict and does not create
        // the container.
        set("-LD_PRELOAD", String::new());
        set("LD_PRELOAD", value);
    }
    for (name, value) in &injection.variables {
        set(name, value.clone());
    }
    set(MARK, injection.mounts.iter().map(|mount| mount.destination.as_str()).collect::<Vec<_>>().join(","));
    let devices: Vec<Device> = injection.devices.iter().filter_map(|path| device(path)).collect();
    let linux = (!devices.is_empty()).then_some(LinuxAdjustment { devices });
    Adjustment { mounts: mounts.collect(), environment, linux }
}

fn device(path: &str) -> Option<Device> {
    let number = std::fs::metadata(path).ok()?.rdev();
    Some(Device {
        path: path.into(),
        kind: "c".into(),
        major: i64::from(libc::major(number)),
        minor: i64::from(libc::minor(number)),
        mode: Some(Mode { value: 0o666 }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_libraries_that_a_container_starts_with() {
        let found = |environment: &[&str]| {
            let environment = environment.iter().map(|line| line.to_string()).collect();
            preloaded_libraries(&Container { environment, ..Container::default() })
        };
        let both = "LD_PRELOAD=/a.so /opt/x/libmayfly_merge_auto.so:/opt/x/libmayfly_heap.so";
        assert_eq!(found(&["A=libmayfly_heap.so", both]), ["libmayfly_heap.so", "libmayfly_merge_auto.so"]);
        assert!(found(&["LD_PRELOAD=/libmayfly_heap.so.old:/b.so"]).is_empty() && found(&[]).is_empty());
    }

    #[test]
    fn variable_of_another_plugin_is_no_conflict() {
        let mut injection = Injection::default();
        injection.heap(Path::new("/h"), None, None);
        let adjustment = adjustment(&injection, Some("theirs.so"));
        let names: Vec<&str> = adjustment.environment.iter().map(|variable| variable.name.as_str()).collect();
        assert_eq!(names[..2], ["-LD_PRELOAD", "LD_PRELOAD"]);
        assert!(adjustment.environment[1].value.starts_with("theirs.so:/opt/mayfly/heap/$LIB/"));
        assert_eq!(names.last(), Some(&MARK));
    }
}
