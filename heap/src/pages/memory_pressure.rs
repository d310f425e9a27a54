//! Detects memory pressure: the memory cgroup of the program or of its container is nearly full.
//!
//! Beyond such a limit the kernel kills processes before malloc could fail. So under pressure the heap takes
//! any free cell and block before a new page, at the price of packing by lifetime.
//! [`crate::entry::maintenance`] checks now and then, once the heap is large enough to matter. (RLIMIT_AS and
//! the like need no check: there the kernel refuses the mapping, and malloc tries
//! [`crate::thread::out_of_memory`].)

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::system::text::Text;
use crate::system::{events, files, os};
use crate::units::geometry::HUGE_PAGE_BYTES;

static HIGH: AtomicBool = AtomicBool::new(false);
static NEXT_LOOK_MS: AtomicU64 = AtomicU64::new(0);
/// Between two checks, ms; with a limit also as soon as the heap has grown by one part in this many.
const LOOK_MS: u64 = 500;
const ONE_PART_IN: usize = 16;
static NEXT_LOOK_PAGES: AtomicUsize = AtomicUsize::new(LEAST_PAGES);
/// A heap of fewer huge pages does not check.
const LEAST_PAGES: usize = 16;

/// Whether memory pressure is high.
#[inline]
pub fn is_high() -> bool {
    HIGH.load(Relaxed)
}

/// Checks if it is time to.
pub fn tick(now_ms: u64) {
    let pages = events::pages();
    let is_time = now_ms >= NEXT_LOOK_MS.load(Relaxed) || pages >= NEXT_LOOK_PAGES.load(Relaxed);
    if pages < LEAST_PAGES || !is_time || files::are_forbidden() {
        return;
    }
    NEXT_LOOK_MS.store(now_ms + LOOK_MS, Relaxed);
    let mut folder = Text::<PATH_BYTES>::default();
    let found = cgroup(&mut folder);
    // Without a limit a heap that shrinks and grows again need not check each time.
    let more = if found.is_some() { pages.div_ceil(ONE_PART_IN) } else { usize::MAX - pages };
    NEXT_LOOK_PAGES.store(pages + more, Relaxed);
    HIGH.store(found.is_some_and(|(limit, used)| is_near(limit, used)), Relaxed);
}

/// Whether memory that cannot be dropped, the anonymous memory of all the cgroup's processes, fills three
/// quarters of the limit.
fn is_near(limit: u64, used: u64) -> bool {
    let own = (events::pages() * HUGE_PAGE_BYTES) as u64;
    used.max(own.min(limit)) >= limit / 4 * 3
}

const PATH_BYTES: usize = 512;

/// The limit of the process's memory cgroup, and its anonymous memory, in bytes; `None` without a limit. In a
/// container the path that the kernel reports may not exist: the container sees its own cgroup at the root.
fn cgroup(path: &mut Text<PATH_BYTES>) -> Option<(u64, u64)> {
    let (at, bytes) = files::read_small_file(b"/proc/self/cgroup\0")?;
    // SAFETY: a mapping of that many bytes, until it is unmapped below.
    let lines = unsafe { core::slice::from_raw_parts(at as *const u8, bytes) };
    let found = lines.split(|&byte| byte == b'\n').find_map(|line| {
        let mut fields = line.splitn(3, |&byte| byte == b':');
        let (_, controllers, own) = (fields.next()?, fields.next()?, fields.next()?);
        let own = core::str::from_utf8(own).ok()?;
        if controllers.is_empty() {
            below(path, "/sys/fs/cgroup", own, "memory.max", "anon")
        } else if controllers.split(|&byte| byte == b',').any(|name| name == b"memory") {
            below(path, "/sys/fs/cgroup/memory", own, "memory.limit_in_bytes", "total_rss")
        } else {
            None
        }
    });
    os::unmap(at, files::SMALL_FILE_BYTES);
    found
}

/// As [`cgroup`], of the hierarchy that is mounted at `root`.
fn below(
    path: &mut Text<PATH_BYTES>,
    root: &str,
    own: &str,
    limit: &str,
    anonymous: &str,
) -> Option<(u64, u64)> {
    use core::fmt::Write;
    [own.trim_end_matches('/'), ""].into_iter().find_map(|folder| {
        let mut number_in = |file: &str, key: &str| {
            path.clear();
            write!(path, "{root}{folder}/{file}\0").ok()?;
            number(path.bytes(), key)
        };
        // Without a limit the file contains `max`, or a number larger than any memory.
        let limit = number_in(limit, "").filter(|&limit| limit < 1 << 50)?;
        Some((limit, number_in("memory.stat", anonymous)?))
    })
}

/// The number behind `key` in a file of lines `key number`; for an empty key the first number.
fn number(path_with_nul: &[u8], key: &str) -> Option<u64> {
    let (at, bytes) = files::read_small_file(path_with_nul)?;
    // SAFETY: a mapping of that many bytes, until it is unmapped below.
    let text = unsafe { core::slice::from_raw_parts(at as *const u8, bytes) };
    let found = core::str::from_utf8(text)
        .ok()
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok()));
    os::unmap(at, files::SMALL_FILE_BYTES);
    found
}
