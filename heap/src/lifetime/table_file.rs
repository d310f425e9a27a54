//! The table of what sites learned, kept for the program's next run (LLAMA §10: "memorize our hash tables
//! across runs").
//!
//! The file holds each site's class, the model's class for it and how its watched objects died. The heap
//! reads it at the start, so it knows sites before they call and runs the model only for new ones. A site's
//! key is the build-id of the calling module, the offset of the return address in it, stack height and size:
//! the same in each run of one build, wherever its modules are loaded. A call from a module without a
//! build-id, or from code made at run time, is not kept.
//!
//! The heap replaces the file by renaming, at the end and now and then, so a reader finds a complete one. It
//! keeps entries of sites that this process has not used for up to [`KEPT_S`] after their last use. So one
//! file serves all programs that share a model, even at the same time; of two that end together, one may lose
//! what it learned. A table belongs to one model.

use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use xxhash_rust::xxh3::xxh3_64;

use crate::lifetime::table_entry::{TABLE_ENTRY_BYTES, TableEntry};
use crate::lifetime::{caller_id, model, sites};
use crate::system::files;
use crate::system::lock::Lock;
use crate::system::observers::{self, Observer};
use crate::system::os;
use crate::system::paths::PATH_BYTES;
use crate::system::text::{Text, warn};

const MAGIC: &[u8; 8] = b"MAYFLYTB";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
/// The checksum covers the file from here on.
const CHECKED_FROM: usize = 32;
/// A site that no process has used for 30 days is forgotten.
const KEPT_S: u32 = 30 * 24 * 3600;
/// When a running program first writes the file, and the interval after that.
const FIRST_SAVE_MS: u64 = 10_000;
const SAVE_MS: u64 = 60_000;

struct Path(UnsafeCell<[u8; PATH_BYTES]>);
// SAFETY: written once, while the configuration is read, before ON is set.
unsafe impl Sync for Path {}
static PATH: Path = Path(UnsafeCell::new([0; PATH_BYTES]));
static LENGTH: AtomicUsize = AtomicUsize::new(0);
static ON: AtomicBool = AtomicBool::new(false);
static SAVING: Lock = Lock::new();
static NEXT_SAVE_MS: AtomicU64 = AtomicU64::new(FIRST_SAVE_MS);
/// The state of learning when the file was read, and when it was last written.
static AT_START: AtomicU64 = AtomicU64::new(0);
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// Sets the file's path; once, before [`read`].
pub fn set_path(path: &[u8]) {
    if path.len() + TEMPORARY_BYTES >= PATH_BYTES {
        return warn(format_args!("the path of MAYFLY_HEAP_TABLE is too long; nothing is kept"));
    }
    // SAFETY: see `Path`.
    let name = unsafe { &mut *PATH.0.get() };
    name[..path.len()].copy_from_slice(path);
    LENGTH.store(path.len(), Relaxed);
}

/// Reads the table and keeps it from now on, if a path was set; once, after the model was loaded.
pub fn read() {
    if path().is_empty() {
        return;
    }
    with_file(|file| match check(file) {
        Ok(kept) => kept.filter(|kept| kept.is_sound()).for_each(|kept| {
            sites::recall(&kept);
        }),
        Err(Some(what)) => {
            let shown = core::str::from_utf8(path()).unwrap_or("(not UTF-8)");
            warn(format_args!("table {shown}: {what}; starting without it"));
        }
        Err(None) => {}
    });
    AT_START.store(learned(), Relaxed);
    caller_id::keep();
    ON.store(true, Release);
    observers::register(&OBSERVER);
}

fn path() -> &'static [u8] {
    // SAFETY: see `Path`; not written again.
    unsafe { &(&*PATH.0.get())[..LENGTH.load(Relaxed)] }
}

fn with_file<T>(read: impl FnOnce(&[u8]) -> T) -> Option<T> {
    // SAFETY: as above; the rest of the array is zeros, so the path ends in NUL.
    let name = unsafe { &(&*PATH.0.get())[..=LENGTH.load(Relaxed)] };
    let (at, bytes) = files::map_file(name)?;
    // SAFETY: a fresh private mapping of that many bytes, of a file that is replaced and never written to.
    let result = read(unsafe { core::slice::from_raw_parts(at as *const u8, bytes) });
    os::unmap(at, bytes);
    Some(result)
}

fn number(file: &[u8], at: usize) -> u64 {
    let bytes = file.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

/// The entries of a file; an error names its fault, or is `None` if the table belongs to another model.
fn check(file: &[u8]) -> Result<impl Iterator<Item = TableEntry>, Option<&'static str>> {
    if file.len() < HEADER_BYTES || &file[..8] != MAGIC {
        return Err(Some("it does not begin with MAYFLYTB"));
    }
    if number(file, 8) != u64::from(VERSION) | (TABLE_ENTRY_BYTES as u64) << 32 {
        return Err(Some("its version is another one"));
    }
    let entries = &file[HEADER_BYTES..];
    if number(file, 16).checked_mul(TABLE_ENTRY_BYTES as u64) != Some(entries.len() as u64) {
        return Err(Some("it is not as long as it says: cut short?"));
    }
    if number(file, 24) != xxh3_64(&file[CHECKED_FROM..]) {
        return Err(Some("its checksum is wrong: damaged"));
    }
    if number(file, 32) != model::id() {
        return Err(None);
    }
    // SAFETY: each chunk has the bytes of a `TableEntry`, which is plain numbers.
    Ok(entries
        .chunks_exact(TABLE_ENTRY_BYTES)
        .map(|entry| unsafe { entry.as_ptr().cast::<TableEntry>().read_unaligned() }))
}

/// Has the sites learn what a file says, as [`read`] does, for `fuzz/`; returns how many entries it can use.
///
/// # Errors
/// See [`check`].
#[cfg(fuzzing)]
pub fn learn(file: &[u8]) -> Result<usize, Option<&'static str>> {
    let sound = || check(file).map(|kept| kept.filter(|kept| kept.is_sound()));
    sound()?.take(64).for_each(|kept| sites::recall(&kept));
    Ok(sound()?.count())
}

/// A number that changes whenever a site learns.
fn learned() -> u64 {
    u64::from(sites::count()) << 32 | u64::from(sites::epoch())
}

static OBSERVER: Observer = Observer { tick: |_, now_ms| save_in_time(now_ms), ..Observer::IDLE };

/// Writes the file when it is time; called once a tick.
fn save_in_time(now_ms: u64) {
    if ON.load(Relaxed) && now_ms >= NEXT_SAVE_MS.load(Relaxed) {
        NEXT_SAVE_MS.store(now_ms + SAVE_MS, Relaxed);
        save(false);
    }
}

/// Writes the file if a site has learned since. At the program's end, live objects count as never freed.
pub fn save(at_end: bool) {
    if !ON.load(Acquire) {
        return;
    }
    let Some(_guard) = SAVING.try_lock() else { return };
    let known = learned();
    let nothing_new = known == AT_START.load(Relaxed) || known == WRITTEN.swap(known, Relaxed) && !at_end;
    if nothing_new {
        return;
    }
    let before = with_file(|file| check(file).map_or(0, Iterator::count)).unwrap_or(0);
    let room = HEADER_BYTES + (before + sites::count() as usize) * TABLE_ENTRY_BYTES;
    let Some(at) = os::map_anywhere(room) else { return };
    // SAFETY: fresh writable memory of that size, not shared until it is unmapped below.
    let out = unsafe { core::slice::from_raw_parts_mut(at as *mut u8, room) };
    let length = fill(out, at_end);
    if !write(&out[..length]) {
        ON.store(false, Relaxed);
        let shown = core::str::from_utf8(path()).unwrap_or("(not UTF-8)");
        warn(format_args!("table {shown} cannot be written; nothing is kept"));
    }
    os::unmap(at, room);
}

/// Writes the file's contents into `out`, which is all zeros; returns their length.
fn fill(out: &mut [u8], at_end: bool) -> usize {
    let now_s = (os::unix_ns() / 1_000_000_000) as u32;
    let mut length = HEADER_BYTES;
    let mut put = |out: &mut [u8], kept: &TableEntry| {
        if let Some(place) = out.get_mut(length..length + TABLE_ENTRY_BYTES) {
            // SAFETY: as many bytes as a `TableEntry` has, which is plain numbers without padding.
            unsafe { place.as_mut_ptr().cast::<TableEntry>().write_unaligned(*kept) };
            length += TABLE_ENTRY_BYTES;
        }
    };
    for site in sites::used() {
        let mut kept = site.kept(at_end);
        kept.used_s = now_s;
        put(out, &kept);
    }
    with_file(|file| {
        for kept in check(file).into_iter().flatten() {
            let is_new = now_s.saturating_sub(kept.used_s) < KEPT_S;
            if kept.is_sound() && is_new && !sites::is_used(kept.key) {
                put(out, &kept);
            }
        }
    });
    out[..8].copy_from_slice(MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&(TABLE_ENTRY_BYTES as u32).to_le_bytes());
    out[16..24].copy_from_slice(&(((length - HEADER_BYTES) / TABLE_ENTRY_BYTES) as u64).to_le_bytes());
    out[32..40].copy_from_slice(&model::id().to_le_bytes());
    let sum = xxh3_64(&out[CHECKED_FROM..length]);
    out[24..32].copy_from_slice(&sum.to_le_bytes());
    length
}

/// The longest suffix of a temporary file's name.
const TEMPORARY_BYTES: usize = 16;

/// Writes a temporary file beside the table, then renames it.
fn write(bytes: &[u8]) -> bool {
    let path = path();
    let mut temporary = [0; PATH_BYTES];
    temporary[..path.len()].copy_from_slice(path);
    let end = Text::<TEMPORARY_BYTES>::of(format_args!(".{}\0", os::process_id()));
    temporary[path.len()..path.len() + end.bytes().len()].copy_from_slice(end.bytes());
    let temporary = &temporary[..path.len() + end.bytes().len()];
    let Some(fd) = files::create(temporary) else { return false };
    let whole = files::write(fd, bytes);
    files::close(fd);
    // SAFETY: the array ends in zeros, see `Path`.
    let name = unsafe { &(&*PATH.0.get())[..=path.len()] };
    files::rename_or_remove(temporary, name, whole)
}
