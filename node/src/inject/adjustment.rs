//! A gift in the words of the runtime's interface (NRI).

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::inject::injection::{Gift, MARK, ROOT};
use crate::nri::messages::{Adjustment, Container, Device, LinuxAdjustment, Mode, Mount, Variable};

/// Whether a container mounts something where gifts lie.
pub fn is_in_the_way(container: &Container) -> bool {
    container.mounts.iter().any(|mount| Path::new(&mount.destination).starts_with(ROOT))
}

/// A container's variable.
pub fn variable_of<'a>(container: &'a Container, name: &str) -> Option<&'a str> {
    let value = |line: &'a String| line.strip_prefix(name)?.strip_prefix('=');
    container.environment.iter().find_map(value)
}

/// What the runtime shall change at a container, which has `preloaded` in `LD_PRELOAD` already.
pub fn adjustment(gift: &Gift, preloaded: Option<&str>) -> Adjustment {
    let options = ["rbind", "ro", "nosuid", "nodev"].map(str::to_owned);
    let mounts = gift.mounts.iter().map(|mount| Mount {
        destination: mount.destination.clone(),
        kind: "bind".into(),
        source: mount.source.to_string_lossy().into_owned(),
        options: options.to_vec(),
    });
    let mut environment = Vec::new();
    let mut set = |name: &str, value: String| environment.push(Variable { name: name.into(), value });
    if let Some(value) = gift.ld_preload(preloaded) {
        // Taken away first: two plugins that set one variable would be an error, and the container not made.
        set("-LD_PRELOAD", String::new());
        set("LD_PRELOAD", value);
    }
    for (name, value) in &gift.variables {
        set(name, value.clone());
    }
    set(MARK, gift.mounts.iter().map(|mount| mount.destination.as_str()).collect::<Vec<_>>().join(","));
    let devices: Vec<Device> = gift.devices.iter().filter_map(|path| device(path)).collect();
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
    fn a_variable_that_another_plugin_sets_is_no_conflict() {
        let mut gift = Gift::default();
        gift.heap(Path::new("/h"), None, None);
        let adjustment = adjustment(&gift, Some("theirs.so"));
        let names: Vec<&str> = adjustment.environment.iter().map(|variable| variable.name.as_str()).collect();
        assert_eq!(names[..2], ["-LD_PRELOAD", "LD_PRELOAD"]);
        assert!(adjustment.environment[1].value.starts_with("theirs.so:/opt/mayfly/heap/$LIB/"));
        assert_eq!(names.last(), Some(&MARK));
    }
}
