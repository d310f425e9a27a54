//! The mappings of a process. Pages that are its own, written since they were mapped, go into the snapshot's
//! file, packed; each run of them is mapped privately from it. All else is mapped as it was: anonymous memory
//! that was never written, and parts of files that are as on the disk.
//!
//! A run of pages costs a mapping and a system call at each restore, so runs that lie near one another
//! become one, with the pages between them.
//!
//! Emptied (`MADV_DONTNEED`), a mapping of the snapshot's file reads as the file again, and anonymous memory
//! as zeros, which allocators rely on; and `mremap` takes one mapping at a time. So pages are mapped from the
//! file only where the process makes up for both: it has been prepared, and its code makes no such call past
//! the C library. Elsewhere all is mapped as it was, and they are copied there ([`OwnPages`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use libc::c_int;

use crate::address_space::{MappedFile, Mapping, Stat, check};
use crate::plan::{Operation, Plan, Slot, VDSO, Window};
use crate::tracee::Tracee;
use crate::{Error, Limits, PAGES, While};

const PAGE: u64 = 4096;
/// Pages between two runs that are taken along.
const GAP: usize = 8;
/// Mappings of an instance, at most: each run is one.
const MOST_MAPPINGS: usize = 2000;
/// The end of what a process may map.
const END: u64 = 0x7fff_ffff_f000;
/// Below it, nothing is mapped: sysctl vm.mmap_min_addr.
const BEGIN: u64 = 0x1_0000;
/// Bits of an entry of /proc/PID/pagemap.
const PRESENT_OR_SWAPPED: u64 = 3 << 62;
const OF_FILE: u64 = 1 << 61;
/// Entries that are read at once.
const ENTRIES: usize = 1 << 16;
const MAP_DROPPABLE: c_int = 0x08;
/// The kernel's own mappings, which every process has; they are moved.
const MOVED: [&str; 3] = ["[vvar]", "[vvar_vclock]", "[vdso]"];
/// Advice that mappings keep, by the letters of /proc/PID/smaps.
const ADVICE: [(&str, c_int); 8] = [
    ("hg", libc::MADV_HUGEPAGE),
    ("nh", libc::MADV_NOHUGEPAGE),
    ("rr", libc::MADV_RANDOM),
    ("sr", libc::MADV_SEQUENTIAL),
    ("dc", libc::MADV_DONTFORK),
    ("dd", libc::MADV_DONTDUMP),
    ("wf", libc::MADV_WIPEONFORK),
    ("mg", libc::MADV_MERGEABLE),
];
/// What was taken of the memory.
pub struct Memory {
    /// Files of the disk that it uses.
    pub files: Vec<MappedFile>,
    /// Bytes of the pages that were copied.
    pub bytes: u64,
    /// Mappings of a restored process.
    pub mappings: usize,
}

/// How a restored process has the pages that the taken one has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnPages {
    /// As private mappings of the snapshot's file, which all restored processes share until they write.
    Shared,
    /// Each as a copy, in mappings as they were.
    Copied,
}

/// A window that the process leaves free.
///
/// # Errors
/// There is none.
pub fn free_window(all: &[Mapping]) -> Result<Window, Error> {
    let is_free = |window: &Window| {
        all.iter().all(|it| it.range.end <= window.code() || it.range.start >= window.end())
    };
    let mut candidates = (1..64_u64).map(|number| Window(number << 36));
    candidates.find(is_free).ok_or_else(|| Error::Unsupported("a process without free addresses".into()))
}

/// Writes the process's own pages to the file, and appends what maps all.
///
/// # Errors
/// It has memory that cannot be restored.
pub fn plan(
    tracee: &Tracee,
    all: &[Mapping],
    plan: &mut Plan,
    pages: &OwnedFd,
    own_pages: OwnPages,
    limits: Limits<'_>,
) -> Result<Memory, Error> {
    let page_map =
        File::open(format!("/proc/{}/pagemap", tracee.process)).during("its page map cannot be read")?;
    let mut taker = Taker {
        tracee,
        plan,
        pages: pages.try_clone().during("no descriptor is left")?.into(),
        own_pages,
        limits,
        page_map,
        words: Stat::read(tracee.process)?.words(),
        slots: BTreeMap::new(),
    };
    let mut memory = Memory { files: Vec::new(), bytes: 0, mappings: 0 };
    let mut kernels = Vec::new();
    let vdso = all.iter().find(|it| it.name == "[vdso]").map(|it| it.range.start);
    for mapping in all.iter().filter(|mapping| MOVED.contains(&mapping.name.as_str())) {
        let Some(vdso) = vdso else { return Err(Error::Unsupported("a process without vDSO".into())) };
        kernels.push((mapping.range.clone(), mapping.range.start.wrapping_sub(vdso)));
    }
    taker.clear(&kernels)?;
    for mapping in all.iter().filter(|mapping| !MOVED.contains(&mapping.name.as_str())) {
        check(mapping, limits.own_folder)?;
        taker.map(mapping, &mut memory)?;
        if memory.mappings > MOST_MAPPINGS {
            return Err(Error::Unsupported(format!("more than {MOST_MAPPINGS} mappings")));
        }
    }
    for (range, distance) in &kernels {
        taker.plan.push(moved(
            taker.plan.window.scratch() + SCRATCH_MIDDLE.wrapping_add(*distance),
            range,
            range.start,
            None,
        ))?;
    }
    Ok(memory)
}

/// Where the vDSO waits in the scratch: its data lie before it.
const SCRATCH_MIDDLE: u64 = 8 << 20;

/// Moves a mapping whole; the first argument is an address, or a distance from the slot's.
fn moved(from: u64, range: &Range<u64>, to: u64, slot: Option<Slot>) -> Operation {
    let (bytes, flags) = (range.end - range.start, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
    let operation = Operation::call(libc::SYS_mremap, &[from, bytes, bytes, flags as u64, to]);
    match slot {
        Some(slot) => operation.plus(0, slot),
        None => operation,
    }
}

struct Taker<'a> {
    tracee: &'a Tracee,
    plan: &'a mut Plan,
    pages: File,
    own_pages: OwnPages,
    limits: Limits<'a>,
    page_map: File,
    /// Pages of arguments and environment.
    words: Range<u64>,
    /// Files of the disk that the restorer has open.
    slots: BTreeMap<(String, bool), Slot>,
}

impl Taker<'_> {
    /// Unmaps all that the fresh process has, but the restorer; its vDSO waits aside.
    fn clear(&mut self, kernels: &[(Range<u64>, u64)]) -> Result<(), Error> {
        let window = self.plan.window;
        for (range, distance) in kernels {
            let to = window.scratch() + SCRATCH_MIDDLE.wrapping_add(*distance);
            self.plan.push(moved(*distance, range, to, Some(VDSO)))?;
        }
        self.plan.push(Operation::call(libc::SYS_munmap, &[BEGIN, window.code() - BEGIN]))?;
        self.plan.push(Operation::call(libc::SYS_munmap, &[window.end(), END - window.end()]))
    }

    fn map(&mut self, mapping: &Mapping, memory: &mut Memory) -> Result<(), Error> {
        let own = if mapping.shared || mapping.is_wiped() || !mapping.has_pages {
            Vec::new()
        } else {
            self.own_pages(mapping)?
        };
        match self.own_pages {
            OwnPages::Shared => self.map_runs(mapping, own, memory)?,
            OwnPages::Copied => self.copy_runs(mapping, &own, memory)?,
        }
        for (letters, advice) in ADVICE {
            if mapping.has(letters) {
                let bytes = mapping.range.end - mapping.range.start;
                let arguments = [mapping.range.start, bytes, advice as u64];
                // Files do not take every advice.
                self.plan.push(Operation::call(libc::SYS_madvise, &arguments).or_not())?;
            }
        }
        Ok(())
    }

    /// Maps runs of pages from the snapshot's file, and the rest as before.
    fn map_runs(
        &mut self,
        mapping: &Mapping,
        own: Vec<Range<u64>>,
        memory: &mut Memory,
    ) -> Result<(), Error> {
        let mut at = mapping.range.start;
        let grows = mapping.has("gd");
        if grows && own.first().is_some_and(|run| run.start == at) {
            // A mapping of a file does not grow: one more page below it does.
            self.map_as_before(mapping, at - PAGE..at, memory)?;
        }
        for run in own {
            if run.start > at {
                self.map_as_before(mapping, at..run.start, memory)?;
            }
            self.take(mapping, run.clone(), memory)?;
            at = run.end;
        }
        if at < mapping.range.end {
            self.map_as_before(mapping, at..mapping.range.end, memory)?;
        }
        Ok(())
    }

    /// Maps all as before, and reads runs of pages into it.
    fn copy_runs(&mut self, mapping: &Mapping, own: &[Range<u64>], memory: &mut Memory) -> Result<(), Error> {
        let mut open = mapping.clone();
        if !own.is_empty() && mapping.rights & libc::PROT_WRITE == 0 {
            open.rights = libc::PROT_WRITE;
        }
        let Range { start, end } = mapping.range;
        self.map_as_before(&open, start..end, memory)?;
        for run in own {
            let offset = self.save(run, memory)?;
            self.plan.push_read(PAGES as u64, run.clone(), offset)?;
        }
        if open.rights != mapping.rights {
            let arguments = [start, end - start, mapping.rights as u64];
            self.plan.push(Operation::call(libc::SYS_mprotect, &arguments))?;
        }
        Ok(())
    }

    /// Runs of pages that the process has written, in order.
    fn own_pages(&self, mapping: &Mapping) -> Result<Vec<Range<u64>>, Error> {
        let pages = ((mapping.range.end - mapping.range.start) / PAGE) as usize;
        let mut runs: Vec<Range<usize>> = Vec::new();
        let mut bytes = vec![0; ENTRIES * 8];
        let mut page = [0; PAGE as usize];
        for first in (0..pages).step_by(ENTRIES) {
            let count = ENTRIES.min(pages - first);
            let offset = (mapping.range.start / PAGE + first as u64) * 8;
            self.page_map
                .read_exact_at(&mut bytes[..count * 8], offset)
                .during("its page map cannot be read")?;
            for (at, entry) in bytes[..count * 8].chunks_exact(8).enumerate() {
                let entry = u64::from_le_bytes(entry.try_into().expect("8 bytes"));
                if entry & PRESENT_OR_SWAPPED == 0 || entry & OF_FILE != 0 {
                    continue;
                }
                let number = first + at;
                if !mapping.is_file() {
                    // A page of zeros is as one that was never written.
                    self.tracee.read(mapping.range.start + number as u64 * PAGE, &mut page)?;
                    if page.iter().all(|&byte| byte == 0) {
                        continue;
                    }
                }
                match runs.last_mut() {
                    Some(run) if number - run.end <= GAP => run.end = number + 1,
                    _ => runs.push(number..number + 1),
                }
            }
        }
        let address = |number: usize| mapping.range.start + number as u64 * PAGE;
        Ok(runs.into_iter().map(|run| address(run.start)..address(run.end)).collect())
    }

    /// Copies a run into the snapshot's file; returns where it lies there.
    fn save(&mut self, run: &Range<u64>, memory: &mut Memory) -> Result<u64, Error> {
        let length = run.end - run.start;
        let offset = memory.bytes;
        if offset + length > self.limits.bytes {
            return Err(Error::Unsupported(format!("memory of more than {} MiB", self.limits.bytes >> 20)));
        }
        let mut buffer = vec![0; (1 << 20).min(length as usize)];
        let mut done = 0;
        while done < length {
            let part = &mut buffer[..(length - done).min(1 << 20) as usize];
            self.tracee.read(run.start + done, part)?;
            self.pages.write_all_at(part, offset + done).during("the snapshot cannot be written")?;
            done += part.len() as u64;
        }
        memory.bytes += length;
        Ok(offset)
    }

    /// Copies a run into the snapshot's file, and maps it from there.
    fn take(&mut self, mapping: &Mapping, run: Range<u64>, memory: &mut Memory) -> Result<(), Error> {
        let (offset, length) = (self.save(&run, memory)?, run.end - run.start);
        memory.mappings += 1;
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | no_reserve(mapping);
        let arguments = [run.start, length, mapping.rights as u64, flags as u64, PAGES as u64, offset];
        self.plan.push(Operation::call(libc::SYS_mmap, &arguments).at_its_place())?;
        let words = run.start.max(self.words.start)..run.end.min(self.words.end);
        if words.is_empty() {
            return Ok(());
        }
        // The kernel shows a command line and an environment that lie in anonymous memory alone.
        memory.mappings += 2;
        let bytes = words.end - words.start;
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let arguments = [words.start, bytes, mapping.rights as u64, flags as u64, u64::MAX, 0];
        self.plan.push(Operation::call(libc::SYS_mmap, &arguments).at_its_place())?;
        let offset = offset + (words.start - run.start);
        self.plan.push_read(PAGES as u64, words, offset)
    }

    /// Maps a part that has no pages of its own.
    fn map_as_before(
        &mut self,
        mapping: &Mapping,
        part: Range<u64>,
        memory: &mut Memory,
    ) -> Result<(), Error> {
        memory.mappings += 1;
        let length = part.end - part.start;
        let mut flags = libc::MAP_FIXED | no_reserve(mapping);
        if !mapping.is_file() {
            flags |= libc::MAP_ANONYMOUS;
            flags |= if mapping.has("dp") { MAP_DROPPABLE } else { libc::MAP_PRIVATE };
            flags |= if mapping.has("gd") { libc::MAP_GROWSDOWN } else { 0 };
            let arguments = [part.start, length, mapping.rights as u64, flags as u64, u64::MAX, 0];
            return self.plan.push(Operation::call(libc::SYS_mmap, &arguments).at_its_place());
        }
        flags |= if mapping.shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let slot = self.open(mapping, memory)?;
        let offset = mapping.offset + (part.start - mapping.range.start);
        let arguments = [part.start, length, mapping.rights as u64, flags as u64, 0, offset];
        self.plan.push(Operation::call(libc::SYS_mmap, &arguments).at_its_place().plus(4, slot))
    }

    /// The file of a mapping, opened once.
    fn open(&mut self, mapping: &Mapping, memory: &mut Memory) -> Result<Slot, Error> {
        let is_own = self.limits.own_folder.is_some_and(|own| Path::new(&mapping.name).starts_with(own));
        let writes = is_own && mapping.is_written_through();
        let key = (mapping.name.clone(), writes);
        if let Some(slot) = self.slots.get(&key) {
            return Ok(*slot);
        }
        let outside = PathBuf::from(format!("/proc/{}/root{}", self.tracee.process, mapping.name));
        let found = MappedFile::now(outside);
        let mapped = mapping.mapped_file(self.tracee.process);
        let mapped = mapped.map(|it| (it.identity.0, it.identity.1)).or(mapping.file);
        let is_same = |file: &MappedFile| Some((file.identity.0, file.identity.1)) == mapped;
        let Some(file) = found.filter(is_same) else {
            return Err(Error::Unsupported(format!(
                "a mapping of {}, which is another file now,",
                mapping.name
            )));
        };
        // A file of the process's own folder is a copy for each.
        memory.files.extend((!is_own).then(|| MappedFile { path: mapping.name.clone().into(), ..file }));
        let path = self.plan.text(mapping.name.as_bytes())?;
        let flags = libc::O_CLOEXEC | if writes { libc::O_RDWR } else { libc::O_RDONLY };
        let slot = self.plan.push_kept(Operation::call(libc::SYS_open, &[path, flags as u64]))?;
        self.slots.insert(key, slot);
        Ok(slot)
    }
}

fn no_reserve(mapping: &Mapping) -> c_int {
    if mapping.has("nr") { libc::MAP_NORESERVE } else { 0 }
}

/// What `PR_SET_MM_MAP` takes: where code, data, heap, stack, arguments and environment lie.
///
/// # Errors
/// The process has ended.
pub fn layout(tracee: &Tracee, brk: u64, plan: &mut Plan) -> Result<(), Error> {
    let stat = Stat::read(tracee.process)?;
    let field = |number| stat.field(number);
    let auxiliary = std::fs::read(format!("/proc/{}/auxv", tracee.process)).during("it has ended")?;
    let auxiliary_at = plan.data(&auxiliary)?;
    let words = [26, 27, 45, 46, 47].map(field);
    let rest = [brk, field(28), field(48), field(49), field(50), field(51), auxiliary_at];
    let mut bytes: Vec<u8> = words.iter().chain(&rest).flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend((auxiliary.len() as u32).to_le_bytes());
    bytes.extend(u32::MAX.to_le_bytes()); // /proc/PID/exe stays
    let at = plan.data(&bytes)?;
    let arguments = [libc::PR_SET_MM as u64, libc::PR_SET_MM_MAP as u64, at, bytes.len() as u64, 0];
    plan.push(Operation::call(libc::SYS_prctl, &arguments))
}
