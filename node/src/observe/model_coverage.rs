//! A model's coverage in a container: which share of the programs' calling contexts it knows, and whether the
//! heap believes it. The heap counts both in one exported variable (heap/src/lifetime/model_validation.rs).
//! The agent reads it in the program's memory, so the program may be idle or have a network of its own.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use mappings::Area;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSymbol};

use crate::base::cgroup;
use crate::inject::artifacts::Artifacts;
use crate::observe::containers::InjectedContainer;

const VARIABLE: &str = "mayfly_heap_model";

/// A model's coverage in one program, or in all programs of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelCoverage {
    /// Calling contexts that the heap looked up in it.
    pub contexts: u64,
    /// Those whose modules are all in the model.
    pub known: u64,
    /// Whether the heap has stopped believing it.
    pub is_doubted: bool,
}

impl ModelCoverage {
    /// The share of known contexts in percent.
    pub fn known_percent(&self) -> u64 {
        self.known * 100 / self.contexts.max(1)
    }
}

/// The coverage in a container's programs; `None` if none has loaded a model.
pub fn of_container(container: &InjectedContainer, artifacts: &Artifacts) -> Option<ModelCoverage> {
    let processes = container.cgroup.iter().flat_map(|path| cgroup::processes_below(path));
    processes.filter_map(|process| of_process(process, artifacts)).reduce(|sum, one| ModelCoverage {
        contexts: sum.contexts + one.contexts,
        known: sum.known + one.known,
        is_doubted: sum.is_doubted || one.is_doubted,
    })
}

fn of_process(process: i32, artifacts: &Artifacts) -> Option<ModelCoverage> {
    let maps = fs::read(format!("/proc/{process}/maps")).ok()?;
    let (start, inode) = library_in(&maps)?;
    // The agent takes the variable's address from its own file; from the untrusted program it reads only the
    // numbers.
    let address = address_of_variable(&artifacts.heap_library(inode)?)?;
    let mut words = [0; 16];
    File::open(format!("/proc/{process}/mem")).ok()?.read_exact_at(&mut words, start + address).ok()?;
    let word = |at: usize| u32::from_le_bytes(words[4 * at..][..4].try_into().expect("four bytes"));
    (word(0) == 1).then(|| ModelCoverage {
        contexts: word(1).into(),
        known: word(2).min(word(1)).into(),
        is_doubted: word(3) != 0,
    })
}

/// The start of the heap's library in a process, and its file's inode.
fn library_in(maps: &[u8]) -> Option<(u64, u64)> {
    let is_library = |area: &Area<&[u8]>| {
        area.name.strip_suffix(b" (deleted)").unwrap_or(area.name).ends_with(b"/libmayfly_heap.so")
    };
    let area = mappings::each(maps).find(is_library)?;
    let (_, inode) = area.file?;
    (area.offset == 0).then_some((area.range.start as u64, inode))
}

fn address_of_variable(library: &Path) -> Option<u64> {
    let bytes = fs::read(library).ok()?;
    let file: ElfFile64 = ElfFile64::parse(&*bytes).ok()?;
    let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(VARIABLE))?;
    Some(symbol.address())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_library_by_its_first_mapping() {
        let maps = "7f00-7f10 r--p 00000000 fe:00 9 /opt/x.so\n\
                    7f20000-7f30000 r--p 00000000 fe:00 1234 /opt/mayfly/heap/lib/libmayfly_heap.so\n\
                    7f30000-7f40000 r-xp 00010000 fe:00 1234 /opt/mayfly/heap/lib/libmayfly_heap.so\n";
        assert_eq!(library_in(maps.as_bytes()), Some((0x7f2_0000, 1234)));
        assert_eq!(
            library_in(maps.replace("heap.so", "heap.so (deleted)").as_bytes()),
            Some((0x7f2_0000, 1234))
        );
        assert_eq!(library_in(b"7f00-7f10 r--p 00001000 fe:00 1 /a/libmayfly_heap.so\n"), None);
        assert_eq!(library_in(b""), None);
    }

    #[test]
    fn share_of_no_contexts_is_zero() {
        assert_eq!(ModelCoverage::default().known_percent(), 0);
        assert_eq!(ModelCoverage { contexts: 64, known: 16, is_doubted: true }.known_percent(), 25);
    }
}
