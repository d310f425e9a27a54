//! Reads a profile's file, which the heap writes (docs/lifetime.md). The process may have been killed at any
//! moment, or may still be writing, and the file may be untrusted: every number is checked before it is used.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::profile::contents::{Alive, Context, Frame, Frees, Module, OFFSET_BITS, Profile, Tally};
use crate::profile::holes::{data_of, touched};

pub(crate) const MAGIC: &[u8; 8] = b"MAYFLYPF";
pub(crate) const VERSION: u32 = 1;
pub(crate) const HEADER_BYTES: usize = 256;
pub(crate) const MODULE_BYTES: usize = 320;
pub(crate) const CONTEXT_BYTES: usize = 736;
pub(crate) const LIVE_BYTES: usize = 32;
/// The number of live objects follows them; then come the pairs.
pub(crate) const LIVE_COUNT_BYTES: usize = 8;
pub(crate) const PAIR_BYTES: usize = 16;
pub(crate) const MAX_FRAMES: usize = 64;
/// Kind of a live object: its process ended, though that of others in the file did not.
pub(crate) const NEVER_FREED: u32 = 1;

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn u32(&mut self) -> u32 {
        let (now, rest) = self.0.split_at(4);
        self.0 = rest;
        u32::from_le_bytes(now.try_into().unwrap_or_default())
    }

    fn u64(&mut self) -> u64 {
        let (now, rest) = self.0.split_at(8);
        self.0 = rest;
        u64::from_le_bytes(now.try_into().unwrap_or_default())
    }

    fn f64(&mut self) -> f64 {
        Some(f64::from_bits(self.u64())).filter(|number| number.is_finite()).unwrap_or_default()
    }

    fn tally(&mut self) -> Tally {
        Tally { min: self.u64(), max: self.u64(), sum: self.f64(), sum_of_squares: self.f64() }
    }
}

impl Profile {
    /// Reads a file. If its program still writes, the live objects have only their age as a lower bound.
    ///
    /// # Errors
    /// The file cannot be read, or is no profile; the path is named.
    pub fn read(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot read {}", path.display());
        let file = File::open(path).with_context(cannot)?;
        ensure!(file.metadata().with_context(cannot)?.is_file(), "{} is not a file", path.display());
        let until = is_written(&file).then(now_ns);
        Self::of(&file, until).with_context(|| format!("{} is no profile that can be read", path.display()))
    }

    /// Reads an open file; `until` is the time of reading (monotonic ns), if its program runs on. Holes are
    /// not read: a file of the heap is mostly holes.
    ///
    /// # Errors
    /// The fault of the file.
    pub fn of(file: &File, until: Option<u64>) -> Result<Self> {
        let length = file.metadata()?.len();
        ensure!(length <= MOST_BYTES, "it has {length} bytes, {MOST_BYTES} are the most");
        let mut bytes = vec![0; length as usize];
        let data = data_of(file, length as usize);
        for range in &data {
            file.read_exact_at(&mut bytes[range.clone()], range.start as u64)?;
        }
        Self::parse_data(&bytes, &data, until)
    }

    /// Reads a profile from memory.
    ///
    /// # Errors
    /// The fault of the file.
    pub fn parse(file: &[u8]) -> Result<Self> {
        Self::parse_data(file, std::slice::from_ref(&(0..file.len())), None)
    }

    /// Outside `data`, which is ascending, there are only zeros.
    fn parse_data(file: &[u8], data: &[Range<usize>], until: Option<u64>) -> Result<Self> {
        ensure!(file.len() >= HEADER_BYTES, "it ends within its header");
        ensure!(&file[..8] == MAGIC, "it does not begin with MAYFLYPF");
        let mut header = Bytes(&file[8..HEADER_BYTES]);
        let (version, pid) = (header.u32(), header.u32());
        ensure!(version == VERSION, "its version is {version}, this program reads {VERSION}");
        let mut sections: [Range<usize>; 3] = Default::default();
        let mut at = HEADER_BYTES;
        for (section, (expected, name)) in sections.iter_mut().zip([
            (MODULE_BYTES, "module"),
            (CONTEXT_BYTES, "context"),
            (LIVE_BYTES, "object"),
        ]) {
            let (count, bytes) = (header.u32() as usize, header.u32() as usize);
            ensure!(bytes == expected, "a {name} takes {bytes} bytes in it, not {expected}");
            *section = at..at.saturating_add(count.saturating_mul(bytes));
            at = section.end;
        }
        ensure!(at <= file.len(), "it ends within its tables");
        let [modules, table, objects] = sections;
        let (mean_bytes, start_unix_ns, start_ns) = (header.u64(), header.u64(), header.u64());
        let last_ns = header.u64();
        let lost = header.u64().saturating_add(header.u64());
        let (_phase, _seen_ns, left_ns) = (header.u64(), header.u64(), header.u64());
        let processes = header.u32().max(1);
        let (pairs, pair_bytes) = (header.u32() as usize, header.u32() as usize);
        ensure!(
            pairs == 0 || pair_bytes == PAIR_BYTES,
            "a pair takes {pair_bytes} bytes in it, not {PAIR_BYTES}"
        );
        let pairs_at = objects.end.saturating_add(LIVE_COUNT_BYTES);
        let pairs = pairs_at..pairs_at.saturating_add(pairs.saturating_mul(PAIR_BYTES));
        ensure!(pairs.is_empty() || pairs.end <= file.len(), "it ends within its pairs");
        let until = until.or((left_ns != 0).then_some(left_ns));
        let end_ns = until.unwrap_or(0).max(last_ns);

        let modules: Vec<Module> = file[modules].chunks(MODULE_BYTES).map_while(module).collect();
        let mut contexts = Vec::new();
        let mut places = vec![None; table.len() / CONTEXT_BYTES];
        // Contexts that freed objects and allocated none.
        let mut freeing: HashMap<usize, Vec<Frame>> = HashMap::new();
        for number in touched(&table, CONTEXT_BYTES, data) {
            let bytes = &file[table.start + number * CONTEXT_BYTES..][..CONTEXT_BYTES];
            match context(bytes, modules.len())? {
                Some(context) if context.sampled > 0 => {
                    places[number] = Some(contexts.len());
                    contexts.push(context);
                }
                Some(context) => _ = freeing.insert(number, context.frames),
                None => {}
            }
        }
        for number in touched(&pairs, PAIR_BYTES, data) {
            let mut pair = Bytes(&file[pairs.start + number * PAIR_BYTES..][..PAIR_BYTES]);
            let (allocated, freed, objects) = (pair.u32() as usize, pair.u32() as usize, pair.u64());
            if objects == 0 {
                continue;
            }
            let place = |context: usize| {
                let number = context.checked_sub(1).filter(|&number| number < places.len());
                number.context("a pair names a context that is not there")
            };
            let (allocated, freed) = (place(allocated)?, place(freed)?);
            let frames = match places[freed] {
                Some(at) => Some(contexts[at].frames.clone()),
                None => freeing.get(&freed).cloned(),
            };
            // A context that was cut short has no frames.
            if let Some((at, frames)) = places[allocated].zip(frames) {
                contexts[at].frees.push(Frees { frames, objects });
            }
        }
        for number in touched(&objects, LIVE_BYTES, data) {
            let mut object = Bytes(&file[objects.start + number * LIVE_BYTES..][..LIVE_BYTES]);
            let (address, birth_ns, context) = (object.u64(), object.u64(), object.u32() as usize);
            let (_thread, _cpu, kind) = (object.u32(), object.u32(), object.u32());
            if address == 0 {
                continue;
            }
            let place = context.checked_sub(1).and_then(|number| places.get(number));
            let place = place.context("a live object names a context that is not there")?;
            if let Some(context) = place.map(|place| &mut contexts[place]) {
                let never_freed = until.is_none() || kind == NEVER_FREED;
                context.live += 1;
                context.alive.push(Alive { age_ns: end_ns.saturating_sub(birth_ns), never_freed });
            }
        }
        let duration_ns = end_ns.saturating_sub(start_ns);
        Ok(Self { pid, processes, start_unix_ns, duration_ns, mean_bytes, lost, modules, contexts })
    }
}

/// More than any heap writes, and more than a merged profile of a million contexts.
const MOST_BYTES: u64 = 4 << 30;

/// Whether a process has the file open for writing, or mapped: then the kernel gives no lease for reading.
pub fn is_written(file: &File) -> bool {
    // SAFETY: takes plain numbers; a lease that was granted is released at once.
    unsafe {
        let given = libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) == 0;
        let held = !given && *libc::__errno_location() == libc::EAGAIN;
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK);
        held
    }
}

/// The clock of the births that heaps record.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid; the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

fn module(bytes: &[u8]) -> Option<Module> {
    let mut fields = Bytes(bytes);
    let addresses = fields.u64()..fields.u64();
    let load_address = fields.u64();
    let (id_bytes, path_bytes) = (fields.u32() as usize, fields.u32() as usize);
    let (id, path) = fields.0.split_at(32);
    (addresses.end != 0).then(|| Module {
        path: std::ffi::OsStr::from_bytes(&path[..path_bytes.min(path.len())]).into(),
        build_id: id[..id_bytes.min(id.len())].to_vec(),
        addresses,
        load_address,
    })
}

/// `None` for an entry of the table that was never used. A context without samples freed objects, or its
/// first sample was cut short.
fn context(bytes: &[u8], modules: usize) -> Result<Option<Context>> {
    let mut fields = Bytes(bytes);
    let (id, depth) = (fields.u64(), fields.u64() as usize);
    ensure!(depth <= MAX_FRAMES, "a context has {depth} frames");
    let mut frames = Vec::with_capacity(depth);
    for i in 0..MAX_FRAMES {
        let place = fields.u64();
        if i >= depth {
            continue;
        }
        let module = ((place >> OFFSET_BITS) as usize).checked_sub(1);
        ensure!(module.is_none_or(|number| number < modules), "a frame names a module that is not there");
        let offset = if module.is_some() { place & ((1 << OFFSET_BITS) - 1) } else { place };
        frames.push(Frame { module, offset });
    }
    let mut context = Context {
        id,
        frames,
        sampled: fields.u64(),
        unwatched: fields.u64(),
        allocations: fields.f64(),
        bytes: fields.f64(),
        freed: fields.u64(),
        same_thread: fields.u64(),
        same_cpu: fields.u64(),
        ..Context::default()
    };
    context.classes.iter_mut().for_each(|count| *count = fields.u64());
    context.size = fields.tally();
    context.alignment = fields.tally();
    context.lifetime_ns = fields.tally();
    Ok(Some(context).filter(|context| context.id != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A profile of two modules' worth of room, one context and one live object.
    fn file() -> Vec<u8> {
        let mut file = MAGIC.to_vec();
        for number in [VERSION, 7, 1, MODULE_BYTES as u32, 1, CONTEXT_BYTES as u32, 1, LIVE_BYTES as u32] {
            file.extend(number.to_le_bytes());
        }
        for number in [1000u64, 5, 10, 30, 1, 2] {
            file.extend(number.to_le_bytes());
        }
        file.resize(HEADER_BYTES, 0);
        for number in [0x1000u64, 0x2000, 0x1000, 4 | 3 << 32] {
            file.extend(number.to_le_bytes());
        }
        file.extend(b"\x01\x02\x03\x04");
        file.resize(HEADER_BYTES + 64, 0);
        file.extend(b"/ab");
        file.resize(HEADER_BYTES + MODULE_BYTES, 0);
        for number in [99u64, 1, 1 << OFFSET_BITS | 0x42] {
            file.extend(number.to_le_bytes());
        }
        file.resize(HEADER_BYTES + MODULE_BYTES + 16 + 8 * MAX_FRAMES, 0);
        file.extend(3u64.to_le_bytes());
        file.resize(HEADER_BYTES + MODULE_BYTES + CONTEXT_BYTES, 0);
        for number in [0x7000u64, 20, 1, 0] {
            file.extend(number.to_le_bytes());
        }
        file
    }

    #[test]
    fn reads_all_parts() {
        let profile = Profile::parse(&file()).unwrap();
        assert_eq!((profile.pid, profile.duration_ns, profile.mean_bytes, profile.lost), (7, 20, 1000, 3));
        assert_eq!(profile.modules[0].path, Path::new("/ab"));
        assert_eq!(profile.modules[0].build_id, [1, 2, 3, 4]);
        let context = &profile.contexts[0];
        assert_eq!(context.frames, [Frame { module: Some(0), offset: 0x42 }]);
        assert_eq!((context.sampled, context.live), (3, 1));
    }

    #[test]
    fn names_the_fault() {
        let whole = file();
        let error = |file: &[u8]| Profile::parse(file).unwrap_err().to_string();
        assert_eq!(error(b"MAYFLYPF"), "it ends within its header");
        assert_eq!(error(&whole[..whole.len() - 1]), "it ends within its tables");
        let broken = |at: usize, byte: u8| {
            let mut file = whole.clone();
            file[at] = byte;
            error(&file)
        };
        assert_eq!(broken(0, b'm'), "it does not begin with MAYFLYPF");
        assert_eq!(broken(8, 2), "its version is 2, this program reads 1");
        let table = HEADER_BYTES + MODULE_BYTES;
        assert_eq!(broken(table + 8, 65), "a context has 65 frames");
        assert_eq!(broken(table + 22, 2), "a frame names a module that is not there");
        assert_eq!(broken(table + CONTEXT_BYTES + 16, 9), "a live object names a context that is not there");
    }

    #[test]
    fn reads_a_written_profile_again() {
        let mut profile = Profile::parse(&file()).unwrap();
        assert!(profile.contexts[0].alive.iter().all(|object| object.never_freed && object.age_ns == 10));
        profile.processes = 3;
        profile.contexts[0].alive.push(Alive { age_ns: 7, never_freed: false });
        profile.contexts[0].live = 2;
        let own = Frees { frames: profile.contexts[0].frames.clone(), objects: 4 };
        let other = Frees { frames: vec![Frame { module: Some(0), offset: 0x99 }], objects: 5 };
        profile.contexts[0].frees = vec![own, other];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.profile");
        profile.write(&path).unwrap();
        let again = Profile::read(&path).unwrap();
        assert_eq!(format!("{again:?}"), format!("{profile:?}"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn names_a_pair_of_missing_contexts() {
        let mut file = file();
        let header = 8 + 8 * 4 + 9 * 8 + 4;
        file[header..header + 4].copy_from_slice(&1u32.to_le_bytes());
        let error = |file: &[u8]| Profile::parse(file).unwrap_err().to_string();
        assert_eq!(error(&file), "a pair takes 0 bytes in it, not 16");
        file[header + 4] = PAIR_BYTES as u8;
        assert_eq!(error(&file), "it ends within its pairs");
        file.extend([0; LIVE_COUNT_BYTES]);
        for number in [1u64 | 7 << 32, 1] {
            file.extend(number.to_le_bytes());
        }
        assert_eq!(error(&file), "a pair names a context that is not there");
    }

    #[test]
    fn a_file_still_being_written_gives_ages_and_its_holes_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.profile");
        // Room for many contexts, between holes, as in a file of the heap.
        let (mut bytes, contexts) = (file(), 4000);
        bytes[24..28].copy_from_slice(&(contexts as u32).to_le_bytes());
        let out = File::create(&path).unwrap();
        let (table, objects) = (HEADER_BYTES + MODULE_BYTES, bytes.len() - LIVE_BYTES);
        bytes[objects + 16] = 3;
        out.write_all_at(&bytes[..table], 0).unwrap();
        out.write_all_at(&bytes[table..objects], (table + 2 * CONTEXT_BYTES) as u64).unwrap();
        out.write_all_at(&bytes[objects..], (table + contexts * CONTEXT_BYTES) as u64).unwrap();
        let alive = |profile: Profile| profile.contexts[0].alive[0];
        let running = alive(Profile::read(&path).unwrap());
        assert!(!running.never_freed && running.age_ns > 1000, "{running:?}");
        drop(out);
        assert_eq!(alive(Profile::read(&path).unwrap()), Alive { age_ns: 10, never_freed: true });
    }

    proptest! {
        #[test]
        fn hostile_files_are_refused_not_followed(changes in proptest::collection::vec((0usize..1500, any::<u8>()), 0..20), keep in 0usize..1500) {
            let mut file = file();
            for (at, byte) in changes {
                if let Some(place) = file.get_mut(at) {
                    *place = byte;
                }
            }
            file.truncate(keep.max(8));
            if let Ok(profile) = Profile::parse(&file) {
                prop_assert!(profile.contexts.iter().all(|context| context.frames.len() <= MAX_FRAMES));
            }
        }
    }
}
