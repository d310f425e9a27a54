//! Synthetic traces, and the built programs.
#![allow(dead_code)] // each test program uses its part

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use mayfly_cli::trace::file::{Header, Operation, Record};
use mayfly_cli::trace::writer::Writer;

/// `mayfly`, without the caller's settings.
pub fn mayfly() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mayfly"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MAYFLY_") {
            command.env_remove(name);
        }
    }
    command
}

/// The heap that `cargo build --release -p mayfly_heap` makes.
pub fn heap_library() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), |target| root.join(target));
    let library = target.join("release/libmayfly_heap.so");
    assert!(
        library.is_file(),
        "{} is missing: `cargo build --release -p mayfly_heap` makes it",
        library.display()
    );
    library
}

/// Standard error of a command that must have failed with `code`, without anything on standard output.
pub fn refusal(output: &Output, code: i32) -> String {
    let line = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert_eq!(line.lines().count(), 1, "one line, not: {line}");
    assert!(output.stdout.is_empty());
    line.trim_end().to_string()
}

/// Writes records one after another; the caller chooses times and addresses.
pub struct TraceMaker {
    writer: Writer<BufWriter<File>>,
    sequence: u32,
}

impl TraceMaker {
    pub fn new(path: &Path) -> TraceMaker {
        let header = Header { pid: 1, start_unix_ns: 0, ..Header::default() };
        let file = BufWriter::new(File::create(path).unwrap());
        TraceMaker { writer: Writer::new(file, header).unwrap(), sequence: 0 }
    }

    pub fn alloc(&mut self, time_ns: u64, address: u64, size_bytes: u64) {
        self.write(time_ns, address, size_bytes, Operation::Allocation);
        self.sequence += 1;
    }

    pub fn free(&mut self, time_ns: u64, address: u64) {
        self.write(time_ns, address, 0, Operation::Free);
    }

    fn write(&mut self, time_ns: u64, address: u64, size_bytes: u64, operation: Operation) {
        let sequence = if operation == Operation::Allocation { self.sequence } else { 0 };
        let (caller, thread, stack_height) = (0x40_0000, 0, 0);
        let record =
            Record { time_ns, address, size_bytes, caller, thread, sequence, operation, stack_height };
        self.writer.write(&record).unwrap();
    }

    pub fn finish(self) {
        self.writer.finish().unwrap();
    }
}

/// A heap that swings (LLAMA §9.6): `swings` times, `objects` objects of 64 B are allocated one after another
/// and freed, all but every `long_lived`-th. A second each way. The addresses are fresh for every swing.
pub fn swinging_heap(path: &Path, swings: u64, objects: u64, long_lived: u64) {
    let mut trace = TraceMaker::new(path);
    let second = 1_000_000_000;
    let address = |swing: u64, index: u64| 0x7000_0000_0000 + (swing * objects + index) * 64;
    for swing in 0..swings {
        let start = 2 * swing * second;
        for index in 0..objects {
            trace.alloc(start + index * second / objects, address(swing, index), 64);
        }
        for index in (0..objects).filter(|index| index % long_lived != 0) {
            trace.free(start + second + index * second / objects, address(swing, index));
        }
    }
    trace.finish();
}
