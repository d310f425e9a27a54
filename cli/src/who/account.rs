//! Who has a process's anonymous memory: malloc, a runtime or an allocator past it, stacks, data of files.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, Result};
use lifetime::code::root::Root;
use serde_json::{Map, Value, json};

use super::mapping::{self, Mapping};
use super::mayfly::Heap;
use super::memory::Memory;
use super::owner::{self, CPYTHON, Image, MAYFLY, Owner};
use crate::live::printable;
use crate::process;
use crate::quantity::bytes;

/// A stack lies right above its guard, which is no larger than this.
const MOST_GUARD: u64 = 64 << 10;
/// Where Go's runtime asks for its heap.
const GO_HEAP: Range<u64> = 0xc0_0000_0000..0xc0_0000_0000 + (1 << 40);
const SPECIAL: [&str; 4] = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]"];

/// What has a part of the memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// malloc, of this allocator.
    Malloc(String),
    /// Others that take memory from the kernel, past malloc: one of them.
    Past(Vec<String>),
    /// Threads' stacks, and the program's.
    Stacks,
    /// Written data of programs and libraries.
    Data,
}

/// A process's anonymous memory at a moment, by who has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Bytes of each part.
    pub parts: BTreeMap<Part, u64>,
}

/// Reads accounts; knows the files that it has read.
#[derive(Default)]
pub struct Accountant {
    images: HashMap<PathBuf, Option<Image>>,
}

impl Accountant {
    /// How many files it has read.
    pub fn files(&self) -> usize {
        self.images.len()
    }

    /// The account of a process now.
    ///
    /// # Errors
    /// There is no such process, or it is another user's.
    pub fn account(&mut self, pid: u32) -> Result<Account> {
        let name = process::name(pid).with_context(|| format!("there is no process {pid}"))?;
        let cannot = || format!("process {pid} cannot be looked at: as root, or as its user, it can");
        let mappings = mapping::of_process(pid).with_context(cannot)?;
        let root = Root::of_process(pid).with_context(cannot)?;
        for path in mappings.iter().filter_map(Mapping::path) {
            if !self.images.contains_key(path) {
                self.images.insert(path.to_owned(), owner::image(&root, path));
            }
        }
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let parts = Process::new(&mappings, &self.images, &program, Memory::of_process(pid)).parts();
        Ok(Account { pid, name: printable(&name), parts })
    }
}

/// A process while its account is made.
struct Process<'a> {
    mappings: &'a [Mapping],
    images: Vec<(&'a PathBuf, &'a Image)>,
    bases: HashMap<&'a str, u64>,
    allocator: String,
    heap: Option<Heap>,
    memory: Option<Memory>,
    past: BTreeSet<String>,
}

impl<'a> Process<'a> {
    fn new(
        mappings: &'a [Mapping],
        images: &'a HashMap<PathBuf, Option<Image>>,
        program: &std::path::Path,
        memory: Option<Memory>,
    ) -> Process<'a> {
        let mapped: BTreeSet<_> = mappings.iter().filter_map(Mapping::path).collect();
        let mut images: Vec<_> = images
            .iter()
            .filter(|(path, _)| mapped.contains(path.as_path()))
            .filter_map(|(path, image)| Some((path, image.as_ref()?)))
            .collect();
        images.sort_by_key(|&(path, _)| path);
        let file = |path: &PathBuf| {
            printable(&path.file_name().unwrap_or_default().to_string_lossy()).replace(" (deleted)", "")
        };
        let mayfly = images.iter().find(|(_, image)| image.allocators.contains(&MAYFLY) && image.has_malloc);
        // The first malloc that the loader finds: a preloaded heap's, the program's, a library's, the C
        // library's.
        let own = images.iter().find(|(path, image)| image.has_malloc && path.as_path() == program);
        let other = images.iter().find(|(_, image)| image.has_malloc && !image.is_libc);
        let libc = images.iter().find(|(_, image)| image.is_libc);
        let allocator = match (mayfly, own.or(other), libc) {
            (Some(_), ..) => MAYFLY.to_owned(),
            (None, Some((path, image)), _) => {
                format!("{} in {}", image.allocators.join(" or "), file(path)).trim().to_owned()
            }
            (None, None, Some((path, _))) if file(path).starts_with("ld-musl") => "musl's".to_owned(),
            (None, None, Some(_)) => "glibc's".to_owned(),
            (None, None, None) if images.iter().any(|(_, image)| image.may_have_malloc) => {
                "linked into the program".to_owned()
            }
            (None, None, None) => String::new(), // a program of another language's own runtime
        };
        let mut past = BTreeSet::new();
        for (path, image) in &images {
            let in_file = |name| in_words(&Owner { name, file: file(path) });
            past.extend(image.runtime.map(in_file));
            // One that exports malloc serves malloc, or, behind another malloc, is not called.
            past.extend(image.allocators.iter().copied().filter(|_| !image.has_malloc).map(in_file));
        }
        let mut bases = HashMap::new();
        for mapping in mappings.iter().filter(|mapping| mapping.is_file && mapping.offset == 0) {
            bases.insert(mapping.name.as_str(), mapping.range.start);
        }
        let heap = mayfly.map(|(path, image)| {
            let base = path.to_str().and_then(|path| bases.get(path));
            let table = base.zip(image.objects).map(|(base, offset)| base + offset);
            Heap::new(mappings, table, memory.as_ref())
        });
        Process { mappings, images, bases, allocator, heap, memory, past }
    }

    fn parts(&self) -> BTreeMap<Part, u64> {
        let mut parts = BTreeMap::new();
        let mut add = |part: Part, bytes: u64| {
            if bytes > 0 {
                *parts.entry(part).or_insert(0) += bytes;
            }
        };
        let (mut image_end, mut guard_end) = (0, 0);
        for mapping in self.mappings {
            let bytes = mapping.anonymous_bytes;
            if mapping.is_file {
                image_end = image_end.max(self.end_of_image(mapping));
                add(Part::Data, bytes);
            } else if mapping.name == "[stack]" || self.is_stack(mapping, guard_end) {
                add(Part::Stacks, bytes);
            } else if mapping.range.start < image_end {
                add(Part::Data, bytes);
            } else if bytes > 0 && !SPECIAL.contains(&mapping.name.as_str()) {
                for (part, bytes) in self.of_anonymous(mapping) {
                    add(part, bytes);
                }
            }
            if !mapping.is_file && mapping.permissions == "---p" && mapping.bytes() <= MOST_GUARD {
                guard_end = mapping.range.end;
            }
        }
        parts
    }

    fn end_of_image(&self, mapping: &Mapping) -> u64 {
        let image = self.images.iter().find(|(path, _)| Some(path.as_path()) == mapping.path());
        let base = self.bases.get(mapping.name.as_str());
        image.zip(base).map_or(0, |((_, image), base)| base + image.bytes)
    }

    /// Since Linux 6.7 a stack has no huge pages.
    fn is_stack(&self, mapping: &Mapping, guard_end: u64) -> bool {
        mapping.range.start == guard_end && (mapping.has("nh") || !self.kernel_marks_stacks())
    }

    fn kernel_marks_stacks(&self) -> bool {
        self.mappings.iter().any(|mapping| mapping.has("nh"))
    }

    fn of_anonymous(&self, mapping: &Mapping) -> Vec<(Part, u64)> {
        let bytes = mapping.anonymous_bytes;
        let malloc = || Part::Malloc(self.allocator.clone());
        let past = |name: &str| Part::Past(vec![name.to_owned()]);
        if let Some(name) = mapping.given_name() {
            let is_malloc =
                name.starts_with("glibc: malloc") || (!name.is_empty() && self.allocator.starts_with(name));
            return vec![(if is_malloc { malloc() } else { past(&printable(name)) }, bytes)];
        }
        // The program break is malloc's everywhere; a heap in its place leaves it to the C library.
        if mapping.name == "[heap]" {
            return vec![(malloc(), bytes)];
        }
        let mayflys = self.heap.as_ref().map_or(0, |heap| heap.bytes_of(mapping, self.memory.as_ref()));
        let bytes = bytes - mayflys;
        if let Some(go) = self.past.iter().find(|name| name.starts_with("Go "))
            && GO_HEAP.contains(&mapping.range.start)
        {
            return vec![(malloc(), mayflys), (past(go), bytes)];
        }
        let is_glibcs = self.images.iter().any(|(_, image)| image.is_libc) && self.allocator == "glibc's";
        let glibcs = match &self.memory {
            Some(memory) if is_glibcs => memory.of_malloc(mapping).min(bytes),
            _ => 0,
        };
        let python = self.past.iter().find(|name| name.starts_with(CPYTHON));
        let pools = match (python, &self.memory) {
            (Some(_), Some(memory)) => memory.of_cpython(mapping).min(bytes - glibcs),
            _ => 0,
        };
        vec![
            (malloc(), mayflys + glibcs),
            (past(python.map_or("", String::as_str)), pools),
            (self.rest(is_glibcs), bytes - glibcs - pools),
        ]
    }

    /// Who may have memory that nothing tells apart.
    fn rest(&self, is_glibcs: bool) -> Part {
        let mut owners: Vec<String> = self.past.iter().cloned().collect();
        if self.memory.is_some() {
            owners.retain(|name| !name.starts_with(CPYTHON)); // its pools have headers
        }
        if is_glibcs && self.memory.is_none() {
            owners.push("malloc, glibc's (as root, mayfly tells them apart)".to_owned());
        } else if !is_glibcs && self.heap.is_none() && !self.allocator.is_empty() {
            // Another malloc's memory looks like anyone's.
            if owners.is_empty() {
                return Part::Malloc(self.allocator.clone());
            }
            owners.push(format!("malloc, {}", self.allocator));
        }
        Part::Past(owners)
    }
}

fn in_words(owner: &Owner) -> String {
    format!("{} in {}", owner.name, owner.file)
}

impl Account {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.parts.values().sum()
    }

    /// What malloc has.
    pub fn of_malloc(&self) -> u64 {
        self.parts.iter().filter(|(part, _)| matches!(part, Part::Malloc(_))).map(|(_, bytes)| bytes).sum()
    }

    /// A line for each part, most first, below one for the process.
    pub fn described(&self) -> String {
        let total = self.total();
        let percent = |part: u64| if total > 0 { 100.0 * part as f64 / total as f64 } else { 0.0 };
        let mut parts: Vec<_> = self.parts.iter().map(|(part, &bytes)| (part, bytes)).collect();
        parts.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
        let mut text =
            format!("process {} ({}): {} of anonymous memory\n", self.pid, self.name, bytes(total as f64));
        for (part, size) in parts {
            text += &format!("{:>12} {:>4.0}%  {}\n", bytes(size as f64), percent(size), part.in_words());
        }
        text
    }

    /// Flat keys: `who.malloc_bytes`, and a list of the others.
    pub fn as_json(&self) -> Map<String, Value> {
        let part = |(part, &size): (&Part, &u64)| json!({"who": part.in_words(), "kind": part.kind(), "bytes": size});
        let mut found = Map::new();
        found.insert("who.pid".into(), json!(self.pid));
        found.insert("who.name".into(), json!(self.name));
        found.insert("who.anonymous_bytes".into(), json!(self.total()));
        found.insert("who.malloc_bytes".into(), json!(self.of_malloc()));
        found.insert("who.parts".into(), Value::Array(self.parts.iter().map(part).collect()));
        found
    }
}

impl Part {
    fn in_words(&self) -> String {
        match self {
            Part::Malloc(allocator) => format!("malloc, {allocator}"),
            Part::Past(owners) if owners.is_empty() => {
                "past malloc: mapped by the program or a library itself".to_owned()
            }
            Part::Past(owners) => format!("past malloc: {}", owners.join(", or ")),
            Part::Stacks => "stacks".to_owned(),
            Part::Data => "data of the program and its libraries".to_owned(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Part::Malloc(_) => "malloc",
            Part::Past(_) => "past_malloc",
            Part::Stacks => "stacks",
            Part::Data => "data",
        }
    }
}
