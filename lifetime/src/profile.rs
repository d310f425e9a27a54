//! Reading a profile as the heap left it (docs/lifetime.md). The process may have been killed at any moment, and the file
//! may be anybody's: every number is checked before it is used.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

/// Lifetime classes.
pub const CLASSES: usize = 7;
const MAGIC: &[u8; 8] = b"MAYFLYPF";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 256;
const MODULE_BYTES: usize = 320;
const CONTEXT_BYTES: usize = 736;
const LIVE_BYTES: usize = 32;
const MAX_FRAMES: usize = 64;
const OFFSET_BITS: u32 = 48;

/// A whole profile.
#[derive(Debug)]
pub struct Profile {
    /// The process.
    pub pid: u32,
    /// When it started, ns since 1970.
    pub start_unix_ns: u64,
    /// From the start to the last event.
    pub duration_ns: u64,
    /// Bytes between two samples, on average.
    pub mean_bytes: u64,
    /// Samples that found no room in a table.
    pub lost: u64,
    /// Programs and libraries.
    pub modules: Vec<Module>,
    /// Calling contexts that were sampled.
    pub contexts: Vec<Context>,
}

/// A program or library.
#[derive(Debug)]
pub struct Module {
    /// Where it was loaded from.
    pub path: PathBuf,
    /// Its build-id; empty if it has none.
    pub build_id: Vec<u8>,
    /// The addresses that it was mapped at.
    pub addresses: std::ops::Range<u64>,
    /// What was added to the addresses in its file.
    pub load_address: u64,
}

/// A return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Index into [`Profile::modules`]; none for code made at run time.
    pub module: Option<usize>,
    /// Its address in the module's file; the address itself without a module.
    pub offset: u64,
}

impl Frame {
    /// The frame as one number: its module's number plus one above 48 bits of offset.
    pub fn place(&self) -> u64 {
        self.module.map_or(self.offset, |number| (number as u64 + 1) << OFFSET_BITS | self.offset)
    }
}

/// A running tally; the mean and variance follow from it and the count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// The least.
    pub min: u64,
    /// The greatest.
    pub max: u64,
    /// Their sum.
    pub sum: f64,
    /// The sum of their squares.
    pub sum_of_squares: f64,
}

/// A calling context and what is known of its objects.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The same for the same frames, whatever addresses the modules were mapped at.
    pub id: u64,
    /// Innermost first.
    pub frames: Vec<Frame>,
    /// Sampled allocations.
    pub sampled: u64,
    /// Of those, whose lifetimes could not be watched.
    pub unwatched: u64,
    /// How many allocations the samples stand for.
    pub allocations: f64,
    /// How many bytes they stand for.
    pub bytes: f64,
    /// Watched objects that were freed.
    pub freed: u64,
    /// Of those, on the thread that allocated them.
    pub same_thread: u64,
    /// Of those, on the CPU that allocated them.
    pub same_cpu: u64,
    /// Of those, by lifetime class.
    pub classes: [u64; CLASSES],
    /// Watched objects that lived at the end.
    pub live: u64,
    /// Bytes asked for.
    pub size: Tally,
    /// Alignment, bytes.
    pub alignment: Tally,
    /// Of those that were freed.
    pub lifetime_ns: Tally,
}

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
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is no profile; the path is named.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&bytes).with_context(|| format!("{} is no profile that can be read", path.display()))
    }

    /// Reads a profile from memory.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(file: &[u8]) -> Result<Self> {
        ensure!(file.len() >= HEADER_BYTES, "it ends within its header");
        ensure!(&file[..8] == MAGIC, "it does not begin with MAYFLYPF");
        let mut header = Bytes(&file[8..HEADER_BYTES]);
        let (version, pid) = (header.u32(), header.u32());
        ensure!(version == VERSION, "its version is {version}, this program reads {VERSION}");
        let mut sizes = [0; 3];
        for (count, (expected, what)) in sizes.iter_mut().zip([
            (MODULE_BYTES, "module"),
            (CONTEXT_BYTES, "context"),
            (LIVE_BYTES, "object"),
        ]) {
            *count = header.u32() as usize;
            let bytes = header.u32() as usize;
            ensure!(bytes == expected, "a {what} takes {bytes} bytes in it, not {expected}");
        }
        let (mean_bytes, start_unix_ns, start_ns) = (header.u64(), header.u64(), header.u64());
        let last_ns = header.u64();
        let lost = header.u64().saturating_add(header.u64());
        let mut rest = &file[HEADER_BYTES..];
        let mut section = |count: usize, bytes: usize| -> Result<&[u8]> {
            let length = count.saturating_mul(bytes);
            ensure!(length <= rest.len(), "it ends within its tables");
            let (section, behind) = rest.split_at(length);
            rest = behind;
            Ok(section)
        };
        let modules =
            section(sizes[0], MODULE_BYTES)?.chunks(MODULE_BYTES).map_while(module).collect::<Vec<_>>();
        let table = section(sizes[1], CONTEXT_BYTES)?;
        let mut live = vec![0; sizes[1]];
        for object in section(sizes[2], LIVE_BYTES)?.chunks(LIVE_BYTES) {
            let mut object = Bytes(object);
            let (address, _birth, context) = (object.u64(), object.u64(), object.u32() as usize);
            if address != 0 {
                let Some(count) = context.checked_sub(1).and_then(|number| live.get_mut(number)) else {
                    bail!("a live object names a context that is not there");
                };
                *count += 1;
            }
        }
        let mut contexts = Vec::new();
        for (bytes, live) in table.chunks(CONTEXT_BYTES).zip(live) {
            if let Some(mut context) = context(bytes, modules.len())? {
                context.live = live;
                contexts.push(context);
            }
        }
        let duration_ns = last_ns.saturating_sub(start_ns);
        Ok(Self { pid, start_unix_ns, duration_ns, mean_bytes, lost, modules, contexts })
    }
}

fn module(bytes: &[u8]) -> Option<Module> {
    let mut fields = Bytes(bytes);
    let addresses = fields.u64()..fields.u64();
    let load_address = fields.u64();
    let (id_bytes, path_bytes) = (fields.u32() as usize, fields.u32() as usize);
    let (id, path) = fields.0.split_at(32);
    use std::os::unix::ffi::OsStrExt;
    (addresses.end != 0).then(|| Module {
        path: std::ffi::OsStr::from_bytes(&path[..path_bytes.min(path.len())]).into(),
        build_id: id[..id_bytes.min(id.len())].to_vec(),
        addresses,
        load_address,
    })
}

/// `None` for a place of the table that was never used, or whose first sample was cut short.
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
    Ok(Some(context).filter(|context| context.id != 0 && context.sampled > 0))
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
    fn reads_what_is_there() {
        let profile = Profile::parse(&file()).unwrap();
        assert_eq!((profile.pid, profile.duration_ns, profile.mean_bytes, profile.lost), (7, 20, 1000, 3));
        assert_eq!(profile.modules[0].path, Path::new("/ab"));
        assert_eq!(profile.modules[0].build_id, [1, 2, 3, 4]);
        let context = &profile.contexts[0];
        assert_eq!(context.frames, [Frame { module: Some(0), offset: 0x42 }]);
        assert_eq!((context.sampled, context.live), (3, 1));
    }

    #[test]
    fn names_what_is_wrong() {
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
