//! How the model of a container's program stands there: what share of its calling contexts the model knows, and whether the heap
//! believes it. The heap counts that in one exported variable (heap/src/lifetime/model_validation.rs), which is read in the program's memory:
//! a program that is idle, or has a network of its own, is seen as any other.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use mappings::Area;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSymbol};

use crate::base::cgroup;
use crate::inject::artifacts::Offer;
use crate::observe::containers::Known;

const VARIABLE: &str = "mayfly_heap_model";

/// A model in one program, or in all of a container's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Calling contexts that it was asked about.
    pub contexts: u64,
    /// Those that lie wholly in modules that it has.
    pub known: u64,
    /// Whether it is believed no more.
    pub is_doubted: bool,
}

impl Standing {
    /// In hundredths.
    pub fn known_percent(&self) -> u64 {
        self.known * 100 / self.contexts.max(1)
    }
}

/// In the programs of a container; `None` if none has loaded a model.
pub fn of_container(known: &Known, offer: &Offer) -> Option<Standing> {
    let processes = known.cgroup.iter().flat_map(|path| cgroup::processes_below(path));
    processes.filter_map(|process| of_process(process, offer)).reduce(|sum, one| Standing {
        contexts: sum.contexts + one.contexts,
        known: sum.known + one.known,
        is_doubted: sum.is_doubted || one.is_doubted,
    })
}

fn of_process(process: u32, offer: &Offer) -> Option<Standing> {
    let maps = fs::read(format!("/proc/{process}/maps")).ok()?;
    let (start, inode) = library_in(&maps)?;
    // The agent's own file says where the variable lies: the program's word counts for its own numbers, and for nothing else.
    let address = address_of_variable(&offer.heap_library(inode)?)?;
    let mut words = [0; 16];
    File::open(format!("/proc/{process}/mem")).ok()?.read_exact_at(&mut words, start + address).ok()?;
    let word = |at: usize| u32::from_le_bytes(words[4 * at..][..4].try_into().expect("four bytes"));
    (word(0) == 1).then(|| Standing {
        contexts: word(1).into(),
        known: word(2).min(word(1)).into(),
        is_doubted: word(3) != 0,
    })
}

/// Where the heap's library begins in a process, and its file's number.
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
    fn a_library_is_found_by_its_first_mapping() {
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
    fn no_contexts_are_no_share() {
        assert_eq!(Standing::default().known_percent(), 0);
        assert_eq!(Standing { contexts: 64, known: 16, is_doubted: true }.known_percent(), 25);
    }
}
