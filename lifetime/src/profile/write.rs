//! Writes a profile to a file in the heap's format (docs/lifetime.md), with tables no larger than needed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::profile::contents::{Context, Frame, Module, Profile, id_of};
use crate::profile::file::{
    CONTEXT_BYTES, HEADER_BYTES, LIVE_BYTES, LIVE_COUNT_BYTES, MAGIC, MAX_FRAMES, MODULE_BYTES, NEVER_FREED,
    PAIR_BYTES, VERSION,
};

const PATH_BYTES: usize = 256;
const BUILD_ID_BYTES: usize = 32;

impl Profile {
    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// The file cannot be written; the path is named.
    pub fn write(&self, path: &Path) -> Result<()> {
        let cannot = || format!("cannot write {}", path.display());
        let name = path.file_name().with_context(cannot)?.to_string_lossy();
        let fresh = path.with_file_name(format!(".{name}.new"));
        let written = File::create(&fresh).and_then(|file| self.write_to(file));
        let done = written.and_then(|()| std::fs::rename(&fresh, path));
        if done.is_err() {
            let _ = std::fs::remove_file(&fresh);
        }
        done.with_context(cannot)
    }

    fn write_to(&self, file: File) -> std::io::Result<()> {
        let mut out = BufWriter::new(file);
        let objects: usize = self.contexts.iter().map(|context| context.alive.len()).sum();
        let was_left =
            self.contexts.iter().flat_map(|context| &context.alive).any(|object| !object.never_freed);
        let mut header = MAGIC.to_vec();
        let (freeing, pairs) = self.pairs();
        let contexts = self.contexts.len() + freeing.len();
        let counts = [self.modules.len(), contexts, objects].map(|count| count as u32);
        let sizes = [MODULE_BYTES, CONTEXT_BYTES, LIVE_BYTES].map(|bytes| bytes as u32);
        numbers32(&mut header, &[VERSION, self.pid]);
        counts.iter().zip(sizes).for_each(|(&count, bytes)| numbers32(&mut header, &[count, bytes]));
        let left_ns = if was_left { self.duration_ns.max(1) } else { 0 };
        numbers(&mut header, &[self.mean_bytes, self.start_unix_ns, 0, self.duration_ns, self.lost, 0, 0, 0]);
        numbers(&mut header, &[left_ns]);
        numbers32(&mut header, &[self.processes, pairs.len() as u32, PAIR_BYTES as u32]);
        header.resize(HEADER_BYTES, 0);
        out.write_all(&header)?;
        for module in &self.modules {
            out.write_all(&bytes_of_module(module))?;
        }
        for context in self.contexts.iter().chain(&freeing) {
            out.write_all(&bytes_of_context(context))?;
        }
        for (number, context) in self.contexts.iter().enumerate() {
            for object in &context.alive {
                let mut bytes = Vec::with_capacity(LIVE_BYTES);
                numbers(&mut bytes, &[1, self.duration_ns.saturating_sub(object.age_ns)]);
                let kind = if object.never_freed { NEVER_FREED } else { 0 };
                numbers32(&mut bytes, &[number as u32 + 1, 0, 0, kind]);
                out.write_all(&bytes)?;
            }
        }
        let mut bytes = vec![0; LIVE_COUNT_BYTES];
        for (allocated, freed, objects) in pairs {
            numbers32(&mut bytes, &[allocated as u32 + 1, freed as u32 + 1]);
            numbers(&mut bytes, &[objects]);
        }
        out.write_all(&bytes)?;
        out.flush()
    }

    /// Contexts that freed objects and allocated none, whose numbers follow the others'; and the pairs, by
    /// number.
    fn pairs(&self) -> (Vec<Context>, Vec<(usize, usize, u64)>) {
        let all = self.contexts.iter().enumerate();
        let mut numbers: HashMap<&[Frame], usize> = all.map(|(number, one)| (&*one.frames, number)).collect();
        let (mut freeing, mut pairs) = (Vec::new(), Vec::new());
        for (allocated, context) in self.contexts.iter().enumerate() {
            for frees in &context.frees {
                let next = self.contexts.len() + freeing.len();
                let freed = *numbers.entry(&frees.frames).or_insert_with(|| {
                    let frames = frees.frames.clone();
                    freeing.push(Context { id: id_of(&frames), frames, ..Context::default() });
                    next
                });
                pairs.push((allocated, freed, frees.objects));
            }
        }
        (freeing, pairs)
    }
}

fn numbers32(out: &mut Vec<u8>, values: &[u32]) {
    values.iter().for_each(|value| out.extend(value.to_le_bytes()));
}

fn numbers(out: &mut Vec<u8>, values: &[u64]) {
    values.iter().for_each(|value| out.extend(value.to_le_bytes()));
}

fn bytes_of_module(module: &Module) -> Vec<u8> {
    let mut out = Vec::with_capacity(MODULE_BYTES);
    let (path, id) = (module.path.as_os_str().as_bytes(), &module.build_id[..]);
    let (path, id) = (&path[..path.len().min(PATH_BYTES)], &id[..id.len().min(BUILD_ID_BYTES)]);
    numbers(&mut out, &[module.addresses.start, module.addresses.end, module.load_address]);
    numbers32(&mut out, &[id.len() as u32, path.len() as u32]);
    out.extend(id);
    out.resize(out.len() + BUILD_ID_BYTES - id.len(), 0);
    out.extend(path);
    out.resize(MODULE_BYTES, 0);
    out
}

fn bytes_of_context(context: &Context) -> Vec<u8> {
    let mut out = Vec::with_capacity(CONTEXT_BYTES);
    numbers(&mut out, &[context.id, context.frames.len() as u64]);
    context.frames.iter().for_each(|frame| numbers(&mut out, &[frame.place()]));
    numbers(&mut out, &vec![0; MAX_FRAMES - context.frames.len()]);
    numbers(&mut out, &[context.sampled, context.unwatched]);
    numbers(&mut out, &[context.allocations.to_bits(), context.bytes.to_bits()]);
    numbers(&mut out, &[context.freed, context.same_thread, context.same_cpu]);
    numbers(&mut out, &context.classes);
    for tally in [&context.size, &context.alignment, &context.lifetime_ns] {
        let sums = [tally.sum.to_bits(), tally.sum_of_squares.to_bits()];
        numbers(&mut out, &[tally.min, tally.max, sums[0], sums[1]]);
    }
    out
}
