//! What is read of a hostile process before it is taken, and the orders for the one that is restored.

#![no_main]

use std::path::Path;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSegment};
use worker_snapshot::fuzzing::{Order, areas, extended, program, sockets, stat, value};

#[derive(Debug, Arbitrary)]
enum Input {
    Areas { text: Vec<u8>, root: bool, own: bool },
    Lines { areas: Vec<(u16, u8, u8, u8, Vec<u8>)> },
    Stat(String),
    Status(String),
    Registers(Vec<u8>, u64),
    Orders { window: u8, orders: Vec<(u64, [u64; 5], u8)>, data: Vec<Vec<u8>>, threads: u8 },
}

/// Names as the kernel has them, and such as a process can choose.
const NAMES: [&str; 10] = [
    "",
    "[heap]",
    "[stack]",
    "[vdso]",
    "[vvar]",
    "[anon:x]",
    "/usr/lib/a.so",
    "/tmp/file",
    "/tmp/gone (deleted)",
    "/memfd:x (deleted)",
];
const FLAGS: [&str; 8] =
    ["rd wr mr mw me", "rd ex", "rd wr sh mw", "rd io", "rd wr wf", "rd wr gd", "", "rd dp nr"];

fn smaps(lines: &[(u16, u8, u8, u8, Vec<u8>)]) -> Vec<u8> {
    let (mut text, mut at) = (Vec::new(), 0x1_0000_u64);
    for (gap, pages, name, flags, more) in lines {
        let start = at + (u64::from(*gap) << 24);
        at = start + 4096 * (1 + u64::from(*pages));
        let name = NAMES[usize::from(*name) % NAMES.len()];
        let shared = if flags & 16 == 0 { 'p' } else { 's' };
        let inode = u64::from(name.starts_with('/'));
        text.extend(format!("{start:x}-{at:x} rw-{shared} 0 08:01 {inode} {name}\nSize: 4 kB\n").bytes());
        text.extend(format!("Rss: {} kB\n", flags >> 6).bytes());
        text.extend(more.iter().filter(|byte| **byte != b'\n'));
        text.extend(format!("\nVmFlags: {} \n", FLAGS[usize::from(*flags) % 8]).bytes());
    }
    text
}

fuzz_target!(|input: Input| match input {
    Input::Areas { text, root, own } => check_areas(&text, root, own),
    Input::Lines { areas } => check_areas(&smaps(&areas), false, true),
    Input::Stat(text) => stat(&text),
    Input::Status(text) => {
        sockets(&text, 7);
        for name in ["Uid", "PPid", "Umask", "Seccomp_filters", ""] {
            if let Some(value) = value(&text, name) {
                assert!(!value.contains('\n') && value == value.trim());
            }
        }
    }
    Input::Registers(mut bytes, used) => {
        if bytes.len() >= 520 {
            bytes[512..520].copy_from_slice(&(used & 0xff).to_le_bytes());
        }
        if let Ok(part) = extended(&bytes) {
            assert!(part.len() <= bytes.len() + 4 && part.len() >= 580);
        }
    }
    Input::Orders { window, orders, data, threads } => {
        let orders: Vec<Order> = orders
            .iter()
            .map(|(number, arguments, how)| Order {
                number: *number as i64,
                arguments: *arguments,
                how: *how,
            })
            .collect();
        let Ok(file) = program(u64::from(window % 63) + 1, &orders, &data, threads) else { return };
        // The kernel maps it as `object` reads it.
        let read = ElfFile64::<Endianness>::parse(&*file).expect("an ELF file");
        let mut end = 0;
        for segment in read.segments() {
            assert!(segment.address() >= end && segment.address() % 4096 == 0, "segments overlap");
            end = segment.address() + segment.size();
            segment.data().expect("it lies in the file");
        }
        assert!(end <= (u64::from(window % 63) + 1 << 36) + (64 << 20), "it leaves its window");
        assert!(read.segments().any(|it| (it.address()..it.address() + it.size()).contains(&read.entry())));
    }
});

fn check_areas(text: &[u8], root: bool, own: bool) {
    let root = if root { "/srv/root" } else { "/" };
    let own = own.then_some(Path::new("/tmp"));
    if let Some((window, ranges)) = areas(text, Path::new(root), own) {
        assert!(ranges.iter().all(|it| it.end <= window.start || it.start >= window.end), "it is not free");
    }
}
