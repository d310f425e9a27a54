//! By what devices may write to this process's memory past its page table. Where the kernel does not tell
//! which pages are pinned, this tells whether there may be any: descriptors of devices, files opened for
//! direct I/O, rings of io_uring with buffers, AF_XDP sockets, and the kernel's own count of pinned pages.
//!
//! A process that pins pages has such a descriptor before. So [`find`], called while a range is frozen, sees
//! all that could have pinned pages of it. It allocates nothing and leaves errno alone.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;

/// The family of sockets whose packets a network device writes to memory of the program.
const AF_XDP: i32 = 44;
/// Character devices that never write by themselves: memory and random numbers, terminals.
const HARMLESS_MAJORS: [u32; 10] = [1, 4, 5, 136, 137, 138, 139, 140, 141, 142];
/// Miscellaneous devices, by minor number: the random number generator, tunnels, FUSE, KVM.
const MISCELLANEOUS: u32 = 10;
const HARMLESS_MINORS: [u32; 4] = [183, 200, 229, 232];

/// What may have pinned pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A descriptor, and what it is.
    File(i32, &'static str),
    /// The kernel counts pinned pages (VmPin), and no descriptor explains them.
    Counted,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Holder::File(number, what) => {
                write!(out, "descriptor {number} is {what}")?;
                match std::fs::read_link(format!("/proc/self/fd/{number}")) {
                    Ok(name) if name.is_absolute() => write!(out, ", {}", name.display()),
                    _ => Ok(()),
                }
            }
            Holder::Counted => write!(out, "the kernel counts pinned pages (VmPin in /proc/self/status)"),
        }
    }
}

/// What may have pinned pages of the range, by the process's descriptors.
pub fn find(range: &Range<usize>) -> Option<Holder> {
    visit(range).0
}

/// As [`find`]; pages that the kernel counts as pinned and no descriptor explains count as well.
pub fn find_or_counted(range: &Range<usize>) -> Option<Holder> {
    let (found, explains) = visit(range);
    found.or_else(|| (!explains && any_is_counted()).then_some(Holder::Counted))
}

/// The holder, and whether some ring explains pages that are counted.
fn visit(range: &Range<usize>) -> (Option<Holder>, bool) {
    let unknown = (Some(Holder::File(-1, "unknown, for /proc/self/fd cannot be read")), true);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::open("/proc/self/fd", flags, Mode::empty()) else { return unknown };
    let mut buffer = [MaybeUninit::<u8>::uninit(); 2048];
    let mut entries = RawDir::new(&folder, &mut buffer);
    let mut explains = false;
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { return unknown };
        let Some(number) = number(entry.file_name().to_bytes()) else { continue };
        match classify(number, range) {
            Seen::Harmless => {}
            Seen::Ring => explains = true,
            Seen::Holder(what) => return (Some(Holder::File(number, what)), true),
        }
    }
    (None, explains)
}

enum Seen {
    Harmless,
    /// A ring whose buffers lie elsewhere.
    Ring,
    Holder(&'static str),
}

fn classify(number: i32, range: &Range<usize>) -> Seen {
    // SAFETY: used for calls that fail if another thread has closed it, and not kept.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    let Ok(about) = rustix::fs::fstat(file) else { return Seen::Harmless };
    match about.st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFBLK => match rustix::fs::fcntl_getfl(file) {
            Ok(flags) if flags.contains(OFlags::DIRECT) => Seen::Holder("a file opened with O_DIRECT"),
            _ => Seen::Harmless,
        },
        libc::S_IFCHR => {
            let (major, minor) = (libc::major(about.st_rdev), libc::minor(about.st_rdev));
            let is_harmless = HARMLESS_MAJORS.contains(&major)
                || major == MISCELLANEOUS && HARMLESS_MINORS.contains(&minor);
            if is_harmless { Seen::Harmless } else { Seen::Holder("a device") }
        }
        libc::S_IFSOCK => match rustix::net::sockopt::socket_domain(file) {
            Ok(family) if i32::from(family.as_raw()) == AF_XDP => Seen::Holder("an AF_XDP socket"),
            _ => Seen::Harmless,
        },
        0 => ring(number, range),
        _ => Seen::Harmless,
    }
}

/// An anonymous inode, which may be a ring of io_uring.
fn ring(number: i32, range: &Range<usize>) -> Seen {
    let (mut path, mut target) = ([0u8; 32], [MaybeUninit::<u8>::uninit(); 24]);
    let link = with_number(&mut path, b"/proc/self/fd/", number);
    match rustix::fs::readlinkat_raw(rustix::fs::CWD, link, &mut target[..]) {
        Ok((name, _)) if name == b"anon_inode:[io_uring]" => {}
        Ok((name, _)) if name.starts_with(b"anon_inode:[vfio") => return Seen::Holder("a device of VFIO"),
        _ => return Seen::Harmless,
    }
    let about = with_number(&mut path, b"/proc/self/fdinfo/", number);
    match Buffers::read(about, range) {
        Ok(Buffers { known: true, overlaps: false, files: false, .. }) => Seen::Ring,
        // While a thread registers buffers the kernel does not list them.
        _ => Seen::Holder("a ring of io_uring with buffers or files registered"),
    }
}

/// What a ring's entry in fdinfo says.
#[derive(Default)]
struct Buffers {
    known: bool,
    files: bool,
    overlaps: bool,
    in_list: bool,
}

impl Buffers {
    fn read(path: &std::ffi::CStr, range: &Range<usize>) -> rustix::io::Result<Buffers> {
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut found = Buffers::default();
        let (mut buffer, mut filled) = ([0u8; 2048], 0);
        loop {
            let read = match rustix::io::read(&file, &mut buffer[filled..]) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            if read == 0 {
                return Ok(found);
            }
            filled += read;
            let mut start = 0;
            while let Some(length) = buffer[start..filled].iter().position(|&byte| byte == b'\n') {
                found.line(&buffer[start..start + length], range);
                start += length + 1;
            }
            // No line of interest is longer than the buffer.
            if start == 0 && filled == buffer.len() {
                start = filled;
            }
            buffer.copy_within(start..filled, 0);
            filled -= start;
        }
    }

    fn line(&mut self, line: &[u8], range: &Range<usize>) {
        let count = |rest: &[u8]| std::str::from_utf8(rest).ok().and_then(|n| n.trim().parse::<u64>().ok());
        if let Some(rest) = line.strip_prefix(b"UserFiles:") {
            self.files |= count(rest) != Some(0);
        } else if let Some(rest) = line.strip_prefix(b"UserBufs:") {
            (self.known, self.in_list) = (count(rest).is_some(), true);
        } else if self.in_list && line.first().is_some_and(|&byte| byte == b' ' || byte.is_ascii_digit()) {
            self.overlaps |= overlaps(line, range);
        } else {
            self.in_list = false;
        }
    }
}

/// Whether a buffer, `    0: 0x7f0012340000/65536`, shares a page with the range. A line of another form may.
fn overlaps(line: &[u8], range: &Range<usize>) -> bool {
    let Ok(line) = std::str::from_utf8(line) else { return true };
    let Some((_, place)) = line.split_once(':') else { return true };
    if place.trim() == "<none>" {
        return false;
    }
    let numbers = place.trim().strip_prefix("0x").and_then(|place| place.split_once('/'));
    let numbers = numbers.and_then(|(start, bytes)| {
        Some((usize::from_str_radix(start, 16).ok()?, bytes.split(' ').next()?.parse::<usize>().ok()?))
    });
    numbers.is_none_or(|(start, bytes)| start < range.end && range.start < start.saturating_add(bytes))
}

fn number(name: &[u8]) -> Option<i32> {
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// The path that begins with `folder` and ends with the number.
fn with_number<'a>(path: &'a mut [u8; 32], folder: &[u8], number: i32) -> &'a std::ffi::CStr {
    path[..folder.len()].copy_from_slice(folder);
    let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
    let mut rest = number;
    for place in path[folder.len()..folder.len() + digits].iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    path[folder.len() + digits] = 0;
    std::ffi::CStr::from_bytes_until_nul(path).unwrap_or_default()
}

fn any_is_counted() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status.lines().any(|line| line.strip_prefix("VmPin:").is_some_and(|value| value.trim() != "0 kB"))
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_ring_counts_by_its_buffers() {
        let text =
            b"SqMask:\t0x3\nUserFiles:\t0\nUserBufs:\t2\n    0: 0x10000/8192\n    1: <none>\nPollList:\n";
        let read = |text: &[u8], range| {
            let mut found = Buffers::default();
            text.split(|&byte| byte == b'\n').for_each(|line| found.line(line, &range));
            (found.known, found.files, found.overlaps)
        };
        assert_eq!(read(text, 0x11000..0x12000), (true, false, true));
        assert_eq!(read(text, 0x12000..0x13000), (true, false, false));
        assert_eq!(read(b"UserFiles:\t1\nUserBufs:\t0\n", 0..0x1000), (true, true, false));
        assert_eq!(read(b"UserBufs:\t1\n    0: in another form\n", 0..0x1000), (true, false, true));
        assert_eq!(read(b"SqMask:\t0x3\n", 0..0x1000), (false, false, false));
    }

    #[test]
    fn devices_and_direct_files_count() {
        let open = |path: &str, flags| rustix::fs::open(path, OFlags::RDONLY | flags, Mode::empty());
        let null = open("/dev/null", OFlags::empty()).unwrap();
        assert!(matches!(classify(null.as_raw_fd(), &(0..1)), Seen::Harmless));
        let own = std::env::current_exe().unwrap();
        let plain = open(own.to_str().unwrap(), OFlags::empty()).unwrap();
        assert!(matches!(classify(plain.as_raw_fd(), &(0..1)), Seen::Harmless));
        if let Ok(direct) = open(own.to_str().unwrap(), OFlags::DIRECT) {
            assert!(matches!(classify(direct.as_raw_fd(), &(0..1)), Seen::Holder(_)));
            assert!(find(&(0..1)).is_some());
        }
    }

    #[test]
    fn paths_of_descriptors() {
        for n in [0, 7, 10, 1023, i32::MAX] {
            assert_eq!(
                with_number(&mut [0; 32], b"/proc/self/fd/", n).to_str(),
                Ok(&*format!("/proc/self/fd/{n}"))
            );
        }
    }
}
