//! Binds a model to another build than the one it was made from: the functions of the new programs and
//! libraries get the numbers that the model has for their names (LLAMA §5.2, Fig. 10), without a profile. The
//! model's own files stay in it.

use std::collections::{HashMap, HashSet};
use std::io::Write;

use anyhow::{Context as _, Result, ensure};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use lifetime_model::Model;
use lifetime_model::file::{STEP_END, UNKNOWN_FRAME};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::code::ranges::Code;
use crate::model::names::{Names, functions_of, unpacked, without_arguments};
use crate::model::sections::{Sections, kind};

/// Addresses in a model have 32 bits; code further in a file is unknown to it.
const ADDRESSES: u64 = 1 << 32;
const MODULE_BYTES: usize = 64;
const BUILD_ID_BYTES: usize = 32;
const AGAIN: &str = "it does not keep the contexts that it was made from, as older models: train it again";

/// The contexts that a model was made from, by the names of their functions.
#[derive(Deserialize, Serialize)]
struct Origin {
    functions: Vec<String>,
    /// The model's files that each function is in.
    files: Vec<Vec<usize>>,
    /// The bytes and functions, innermost first, of each context.
    contexts: Vec<(f64, Vec<usize>)>,
}

/// How much of a model's contexts another build has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coverage {
    /// Contexts of which each function is present.
    pub contexts: usize,
    /// All contexts of the model.
    pub all_contexts: usize,
    /// The share of all bytes that the former allocated, 0 to 1.
    pub bytes: f64,
    /// Functions of these contexts in replaced files that are present.
    pub functions: usize,
    /// All functions of these contexts in replaced files.
    pub all_functions: usize,
}

impl Coverage {
    const KEY: &str = "bound";

    /// Flat keys for JSON.
    pub fn as_json(&self) -> Map<String, Value> {
        let percent = (10_000.0 * self.bytes).round() / 100.0;
        let found = json!({
            "bytes_percent": percent,
            "contexts": self.contexts,
            "all_contexts": self.all_contexts,
            "functions": self.functions,
            "all_functions": self.all_functions,
        });
        found.as_object().cloned().unwrap_or_default()
    }

    /// The coverage in a bound model's metadata; `None` of a model that is not bound.
    pub fn of(model: &Model) -> Option<Coverage> {
        let metadata: Value = serde_json::from_slice(model.metadata).ok()?;
        let of = metadata.get(Self::KEY)?;
        let count = |name: &str| of.get(name).and_then(Value::as_u64).map(|count| count as usize);
        Some(Coverage {
            contexts: count("contexts")?,
            all_contexts: count("all_contexts")?,
            bytes: of.get("bytes_percent")?.as_f64()? / 100.0,
            functions: count("functions")?,
            all_functions: count("all_functions")?,
        })
    }
}

/// The paths of a model's files where they were profiled, in the order of its modules; none for a model whose
/// metadata lack them.
pub fn files_of(model: &Model) -> Vec<String> {
    let metadata: Option<Value> = serde_json::from_slice(model.metadata).ok();
    let files = metadata.and_then(|metadata| metadata.get("files").cloned());
    files.and_then(|files| serde_json::from_value(files).ok()).unwrap_or_default()
}

/// A file's name without its folder, a library's without its version: `libz.so` of `/lib/libz.so.1.3`.
pub fn base_name(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.find(".so") {
        Some(end) if name[end + 3..].is_empty() || name[end + 3..].starts_with('.') => &name[..end + 3],
        _ => name,
    }
}

fn is_library(path: &str) -> bool {
    base_name(path).ends_with(".so")
}

/// Adds the functions of these files to a model; returns its new file, and how much of the model they cover.
///
/// # Errors
/// The file is damaged, or does not keep the contexts that it was made from.
pub fn bind(file: &[u8], codes: &[Code]) -> Result<(Vec<u8>, Coverage)> {
    let mut sections = Sections::of(file)?;
    let names = Names::read(sections.get(kind::NAMES).context(AGAIN)?, sections.rows())?;
    let mut origin: Origin = unpacked(sections.get(kind::SEEN).context(AGAIN)?)?;
    let mut metadata: Map<String, Value> =
        serde_json::from_slice(sections.get(kind::METADATA).unwrap_or_default())
            .context("its metadata is damaged")?;
    let files: Vec<String> =
        metadata.get("files").and_then(|files| serde_json::from_value(files.clone()).ok()).context(AGAIN)?;
    origin.check(files.len())?;
    let modules = sections.get(kind::MODULES).unwrap_or_default().to_vec();
    let has = |build_id: &[u8]| modules.chunks(MODULE_BYTES).any(|module| same_id(module, build_id));
    let codes: Vec<&Code> = codes.iter().filter(|code| !has(&code.build_id)).collect();
    let coverage = origin.coverage(&files, &codes);

    let mut linked = Linked::of(&sections, modules);
    codes.iter().try_for_each(|code| linked.add(code, &names))?;
    linked.store(&mut sections);
    origin.add(&codes, files.len());
    let origin = packed(&origin)?;
    sections.set(kind::SEEN, origin.len(), origin);
    let added = codes.iter().map(|code| code.path.display().to_string());
    metadata.insert("files".to_owned(), files.into_iter().chain(added).collect());
    metadata.insert(Coverage::KEY.to_owned(), coverage.as_json().into());
    let metadata = serde_json::to_vec(&metadata)?;
    sections.set(kind::METADATA, metadata.len(), metadata);
    Ok((sections.file()?, coverage))
}

fn same_id(module: &[u8], build_id: &[u8]) -> bool {
    let length =
        u32::from_le_bytes(module[BUILD_ID_BYTES..BUILD_ID_BYTES + 4].try_into().unwrap_or_default());
    module.get(..length as usize) == Some(build_id)
}

fn packed(origin: &Origin) -> Result<Vec<u8>> {
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&serde_json::to_vec(origin)?)?;
    Ok(packed.finish()?)
}

impl Origin {
    /// Checks that every number is in range.
    fn check(&self, files: usize) -> Result<()> {
        let right = self.functions.len() == self.files.len()
            && self.files.iter().flatten().all(|&file| file < files)
            && self
                .contexts
                .iter()
                .flat_map(|(_, functions)| functions)
                .all(|&one| one < self.functions.len())
            && self.contexts.iter().all(|(bytes, _)| bytes.is_finite() && *bytes >= 0.0);
        ensure!(right, "its contexts are damaged");
        Ok(())
    }

    /// A file replaces those of its name; a program without a namesake replaces the programs. A function is
    /// present if it is in one of the new files, or in one that was not replaced.
    fn coverage(&self, files: &[String], codes: &[&Code]) -> Coverage {
        let new: Vec<String> = codes.iter().map(|code| code.path.display().to_string()).collect();
        let namesake = |name: &str| files.iter().any(|file| base_name(file) == base_name(name));
        let replaces = |name: &str, file: &str| {
            base_name(name) == base_name(file) || !is_library(name) && !is_library(file) && !namesake(name)
        };
        let replaced: Vec<bool> =
            files.iter().map(|file| new.iter().any(|name| replaces(name, file))).collect();
        let there = names_in(codes);
        let bare: HashSet<&str> = there.iter().map(|name| without_arguments(name)).collect();
        let changed: Vec<bool> =
            self.files.iter().map(|homes| homes.iter().all(|&file| replaced[file])).collect();
        let known: Vec<bool> = self
            .functions
            .iter()
            .zip(&changed)
            .map(|(name, &changed)| {
                !changed || there.contains(name.as_str()) || bare.contains(without_arguments(name))
            })
            .collect();
        let mut found = Coverage {
            contexts: 0,
            all_contexts: self.contexts.len(),
            bytes: 0.0,
            functions: 0,
            all_functions: 0,
        };
        let mut all_bytes = 0.0;
        for (bytes, functions) in &self.contexts {
            all_bytes += bytes;
            if functions.iter().all(|&function| known[function]) {
                found.contexts += 1;
                found.bytes += bytes;
            }
        }
        found.bytes = if all_bytes > 0.0 { found.bytes / all_bytes } else { 0.0 };
        for (known, _) in known.iter().zip(&changed).filter(|(_, changed)| **changed) {
            found.all_functions += 1;
            found.functions += usize::from(*known);
        }
        found
    }

    /// Records which functions the new files have.
    fn add(&mut self, codes: &[&Code], first: usize) {
        for (number, code) in codes.iter().enumerate() {
            let there = names_in(&[code]);
            for (name, files) in self.functions.iter().zip(&mut self.files) {
                if there.contains(name.as_str()) {
                    files.push(first + number);
                }
            }
        }
    }
}

/// All functions of these files, inlined ones too.
fn names_in(codes: &[&Code]) -> HashSet<String> {
    let ranges = codes.iter().flat_map(|code| &code.ranges);
    let distinct: HashSet<&str> = ranges.map(|range| &*range.names).collect();
    distinct.into_iter().flat_map(functions_of).map(|name| name.into_owned()).collect()
}

/// The sections of a file that map an address to steps.
struct Linked {
    modules: Vec<u8>,
    starts: Vec<u32>,
    range_frames: Vec<u32>,
    frames: Vec<u32>,
    steps: Vec<u16>,
    numbers: HashMap<Vec<u16>, u32>,
}

fn u32s(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap_or_default())).collect()
}

impl Linked {
    fn of(sections: &Sections, modules: Vec<u8>) -> Self {
        let get = |kind| u32s(sections.get(kind).unwrap_or_default());
        let steps = sections.get(kind::STEPS).unwrap_or_default();
        let steps: Vec<u16> =
            steps.chunks_exact(2).map(|two| u16::from_le_bytes(two.try_into().unwrap_or_default())).collect();
        let frames = get(kind::FRAMES);
        let mut numbers = HashMap::new();
        for (number, pair) in frames.windows(2).enumerate() {
            numbers.entry(steps[pair[0] as usize..pair[1] as usize].to_vec()).or_insert(number as u32);
        }
        let (starts, range_frames) = (get(kind::STARTS), get(kind::RANGE_FRAMES));
        Self { modules, starts, range_frames, frames, steps, numbers }
    }

    fn frame(&mut self, entries: Vec<u16>) -> u32 {
        let next = self.numbers.len().max(self.frames.len() - 1) as u32;
        let Self { numbers, steps, frames, .. } = self;
        *numbers.entry(entries).or_insert_with_key(|entries| {
            debug_assert!(entries.last().is_some_and(|last| last & STEP_END != 0));
            steps.extend(entries);
            frames.push(steps.len() as u32);
            next
        })
    }

    /// Adds a file's functions, as `train/model/link.py` does.
    fn add(&mut self, code: &Code, names: &Names) -> Result<()> {
        ensure!(
            (1..=BUILD_ID_BYTES).contains(&code.build_id.len()),
            "{}: its build-id has not from 1 to 32 bytes",
            code.path.display()
        );
        let first = self.starts.len();
        let mut by_name: HashMap<&str, u32> = HashMap::new();
        let (mut reached, mut before) = (0, None);
        let known = |frame: Option<u32>| frame.is_some_and(|frame| frame != UNKNOWN_FRAME);
        for range in &code.ranges {
            if range.start < reached || range.start >= range.end || range.end > ADDRESSES {
                continue;
            }
            let frame = match by_name.get(&*range.names) {
                Some(&frame) => frame,
                None => {
                    let frame = self.frame(names.entries(&range.names));
                    by_name.insert(&range.names, frame);
                    frame
                }
            };
            if range.start > reached && known(before) {
                self.range(reached, UNKNOWN_FRAME);
                before = Some(UNKNOWN_FRAME);
            }
            if before != Some(frame) {
                self.range(range.start, frame);
            }
            (reached, before) = (range.end, Some(frame));
        }
        if known(before) && reached < ADDRESSES {
            self.range(reached, UNKNOWN_FRAME);
        }
        let mut module = code.build_id.clone();
        module.resize(BUILD_ID_BYTES, 0);
        for number in [code.build_id.len(), first, self.starts.len() - first] {
            module.extend((number as u32).to_le_bytes());
        }
        module.resize(MODULE_BYTES, 0);
        self.modules.extend(module);
        Ok(())
    }

    fn range(&mut self, start: u64, frame: u32) {
        self.starts.push(start as u32);
        self.range_frames.push(frame);
    }

    fn store(self, sections: &mut Sections) {
        let bytes =
            |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
        sections.set(kind::MODULES, self.modules.len() / MODULE_BYTES, self.modules);
        sections.set(kind::STARTS, self.starts.len(), bytes(&self.starts));
        sections.set(kind::RANGE_FRAMES, self.range_frames.len(), bytes(&self.range_frames));
        sections.set(kind::FRAMES, self.frames.len(), bytes(&self.frames));
        let steps: Vec<u8> = self.steps.iter().flat_map(|step| step.to_le_bytes()).collect();
        sections.set(kind::STEPS, self.steps.len(), steps);
    }
}
