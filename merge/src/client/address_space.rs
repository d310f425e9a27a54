//! This process's address space: mappings and their protection. The kernel reports it (PROCMAP_QUERY of Linux
//! 6.11, else /proc/self/maps).

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use mappings::{Area, parse};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{self, Updater};
use rustix::mm::ProtFlags;

use crate::base::error::{Error, While};

/// A mapping of this process; its name is borrowed from the buffer that was read.
pub type View<'a> = Area<&'a [u8]>;

/// The protection as mmap takes it.
pub fn protection(area: &Area) -> ProtFlags {
    let mut flags = ProtFlags::empty();
    flags.set(ProtFlags::READ, area.readable);
    flags.set(ProtFlags::WRITE, area.writable);
    flags.set(ProtFlags::EXEC, area.executable);
    flags
}

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device_major: u32,
    device_minor: u32,
    name_bytes: u32,
    build_id_bytes: u32,
    name: u64,
    build_id: u64,
}

const QUERY: ioctl::Opcode = 0xC068_6611;
const _: () = assert!(size_of::<Query>() == 0x68);

/// The mapping that holds `address`, or else the next one above. Its name is written to `name`.
fn query<'a>(
    maps: BorrowedFd<'_>,
    address: usize,
    name: &'a mut [u8; 256],
) -> rustix::io::Result<Option<View<'a>>> {
    let mut about = Query {
        size: size_of::<Query>() as u64,
        flags: 0x10, // covering or next
        address: address as u64,
        name: name.as_mut_ptr() as u64,
        name_bytes: name.len() as u32,
        ..Query::default()
    };
    match ask(maps, &mut about) {
        Err(Errno::NOENT) => return Ok(None),
        // A name too long for the buffer is that of a file.
        Err(Errno::NAMETOOLONG) => {
            (about.name, about.name_bytes) = (0, 0);
            ask(maps, &mut about)?;
            return Ok(Some(view(&about, b"/")));
        }
        other => other?,
    }
    let bytes = (about.name_bytes as usize).saturating_sub(1).min(name.len());
    Ok(Some(view(&about, &name[..bytes])))
}

fn ask(maps: BorrowedFd<'_>, about: &mut Query) -> rustix::io::Result<()> {
    // By rustix, which leaves errno alone.
    // SAFETY: the kernel fills `about`, and the name that it points to, within the sizes given.
    unsafe { ioctl::ioctl(maps, Updater::<QUERY, Query>::new(about)) }
}

fn view<'a>(about: &Query, name: &'a [u8]) -> View<'a> {
    View {
        range: about.start as usize..about.end as usize,
        readable: about.rights & 1 != 0,
        writable: about.rights & 2 != 0,
        executable: about.rights & 4 != 0,
        shared: about.rights & 8 != 0,
        file: (about.inode != 0)
            .then(|| (libc::makedev(about.device_major, about.device_minor), about.inode)),
        offset: about.offset,
        name,
    }
}

/// Visits every mapping of a range, in order and whole, without allocating and without the C library.
///
/// # Errors
/// /proc is not mounted, or the process has no free descriptor.
pub fn each(range: &Range<usize>, mut act: impl FnMut(View<'_>)) -> rustix::io::Result<()> {
    let maps = rustix::fs::open("/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut address = range.start;
    while address < range.end {
        let mut name = [0; 256];
        match query(maps.as_fd(), address, &mut name) {
            Ok(Some(view)) if view.range.start < range.end => {
                address = view.range.end;
                act(view);
            }
            Ok(_) => return Ok(()),
            // An older kernel.
            Err(_) => return each_line(maps.as_fd(), address..range.end, act),
        }
    }
    Ok(())
}

fn each_line(
    maps: BorrowedFd<'_>,
    range: Range<usize>,
    mut act: impl FnMut(View<'_>),
) -> rustix::io::Result<()> {
    let mut buffer = [0; 4096];
    let mut filled = 0;
    // The rest of a line longer than the buffer belongs to the name of a file.
    let mut skips = false;
    loop {
        let read = match rustix::io::read(maps, &mut buffer[filled..]) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        if read == 0 {
            return Ok(());
        }
        filled += read;
        let mut start = 0;
        while let Some(length) = buffer[start..filled].iter().position(|&byte| byte == b'\n') {
            let line = &buffer[start..start + length];
            start += length + 1;
            if std::mem::take(&mut skips) {
                continue;
            }
            match parse(line) {
                Some(view) if view.range.start >= range.end => return Ok(()),
                Some(view) if view.range.end > range.start => act(view),
                _ => {}
            }
        }
        if start == 0 && filled == buffer.len() {
            if !skips
                && let Some(view) = parse(&buffer)
                && view.range.end > range.start
                && view.range.start < range.end
            {
                act(view);
            }
            (skips, filled) = (true, 0);
        } else {
            buffer.copy_within(start..filled, 0);
            filled -= start;
        }
    }
}

/// All mappings.
pub fn all() -> Result<Vec<Area>, Error> {
    let text = std::fs::read("/proc/self/maps").map_err(|error| {
        Error::new(error.raw_os_error().unwrap_or(libc::EIO), format!("/proc/self/maps: {error}"))
    })?;
    Ok(mappings::each(&text).map(Area::from).collect())
}

/// The mappings of a range, cut to it.
///
/// # Errors
/// `ENOMEM` if some of it is not mapped.
pub fn areas(range: &Range<usize>) -> Result<Vec<Area>, Error> {
    let mut found = Vec::new();
    each(range, |view| found.push(Area::from(view))).while_doing("/proc/self/maps, which merging needs")?;
    covering(found, range)
}

fn covering(found: Vec<Area>, range: &Range<usize>) -> Result<Vec<Area>, Error> {
    let mut cut = Vec::new();
    let mut mapped_to = range.start;
    for mut area in found {
        if area.range.end <= range.start || area.range.start >= range.end {
            continue;
        }
        if area.range.start > mapped_to {
            break;
        }
        mapped_to = area.range.end;
        if area.range.start < range.start {
            area.offset += (range.start - area.range.start) as u64;
            area.range.start = range.start;
        }
        area.range.end = area.range.end.min(range.end);
        cut.push(area);
    }
    if mapped_to < range.end {
        return Err(Error::new(
            libc::ENOMEM,
            format!("{:#x}-{:#x}: nothing is mapped at {mapped_to:#x}", range.start, range.end),
        ));
    }
    Ok(cut)
}

/// Whether any memory of this process is locked.
pub fn any_is_locked() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status.lines().any(|line| line.strip_prefix("VmLck:").is_some_and(|value| value.trim() != "0 kB"))
    })
}

/// How many threads this process has.
pub fn threads() -> usize {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            status.lines().find_map(|line| line.strip_prefix("Threads:")).and_then(|n| n.trim().parse().ok())
        })
        .unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::base::mapping::Mapping;
    use crate::base::page::PAGE_BYTES;

    #[test]
    fn query_and_text_agree() {
        let open = || rustix::fs::open("/proc/self/maps", OFlags::RDONLY, Mode::empty()).unwrap();
        // Of this test only: other tests map and unmap memory meanwhile.
        let memory = Mapping::anonymous(64 * PAGE_BYTES).unwrap();
        let start = memory.start() as usize;
        for part in 0..8 {
            let (at, rights) = (start + part * 8 * PAGE_BYTES, rustix::mm::MprotectFlags::READ);
            // SAFETY: ours.
            unsafe { rustix::mm::mprotect(at as *mut _, 4 * PAGE_BYTES, rights).unwrap() };
        }
        let range = start..start + 64 * PAGE_BYTES;
        if let Err(Errno::NOTTY) = query(open().as_fd(), start, &mut [0; 256]) {
            // Not by eprintln, which the test program captures: a skipped test must be visible.
            let line =
                "\nskipped: address_space::query_and_text_agree: a kernel without PROCMAP_QUERY (Linux 6.11)";
            writeln!(std::io::stderr(), "{line}").unwrap();
            return;
        }
        let mut by_text: Vec<Area> = Vec::new();
        each_line(open().as_fd(), range.clone(), |view| by_text.push(view.into())).unwrap();
        let mut by_query: Vec<Area> = Vec::new();
        each(&range, |view| by_query.push(view.into())).unwrap();
        assert!(by_text.len() >= 16);
        assert_eq!(by_text, by_query);
        let mut everything = 0;
        each_line(open().as_fd(), 0..usize::MAX, |_| everything += 1).unwrap();
        assert!(everything >= by_text.len() + 10, "longer than the buffer");
    }

    #[test]
    fn areas_refuses_holes() {
        let area = |range| Area {
            range,
            readable: true,
            writable: true,
            executable: false,
            shared: false,
            file: None,
            offset: 0,
            name: String::new(),
        };
        let whole = covering(vec![area(0..10), area(10..30)], &(5..20)).unwrap();
        assert_eq!(whole.iter().map(|a| a.range.clone()).collect::<Vec<_>>(), [5..10, 10..20]);
        assert!(covering(vec![area(0..10), area(11..30)], &(5..20)).is_err());
        assert!(covering(vec![area(0..10)], &(5..20)).is_err());
        assert!(covering(vec![area(6..10)], &(5..9)).is_err());
    }
}
