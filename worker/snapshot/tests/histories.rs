//! Random histories: processes change their memory, are taken, restored, saved and killed, in any order.
//! After each step the memory of the process that it concerned is as the model's, page by page, with its
//! rights.
//!
//! `MAYFLY_HISTORIES=10000 cargo test --release -p worker-snapshot --test histories` runs as many of them.

mod copies;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::Index;
use worker_snapshot::{Error, Limits, RUNS, Request, Snapshot, WAITS, Waiting, saved, take, wait_at};

const ASKED: &[u8] = b"GET /next HTTP/1.1\r\n\r\n";
/// Pages of the file that processes map, and the value of its first; each further one has the next.
const FILE_PAGES: usize = 32;
const OF_FILE: usize = 0x80;
const MOST_PAGES: usize = 24;
const MOST_REGIONS: usize = 6;
const MOST_PROCESSES: usize = 5;

/// Maps, writes, empties, resizes and protects regions as the test asks, and answers with their contents.
const SCRIPT: &str = r#"
import ctypes, os, socket, sys
libc, word = ctypes.CDLL(None, use_errno=True), ctypes.c_size_t
regions = {}
def call(name, *arguments):
    function = getattr(libc, name)
    function.restype = word
    result = function(*map(word, arguments))
    if result == (1 << 64) - 1:
        raise OSError(ctypes.get_errno(), name)
    return result
def new(pages, of_file):
    file = os.open(sys.argv[2], os.O_RDONLY) if of_file else (1 << 64) - 1
    at = call("mmap", 0, pages << 12, 3, 2 if of_file else 0x22, file, 0)
    if of_file:
        os.close(file)
    return at
def map_region(number, pages, of_file):
    regions[number] = [new(pages, of_file), pages, of_file]
def unmap(number):
    at, pages, _ = regions.pop(number)
    call("munmap", at, pages << 12)
def write(number, page, value):
    ctypes.memset(regions[number][0] + (page << 12), value, 4096)
def empty(number, page, pages):
    call("madvise", regions[number][0] + (page << 12), pages << 12, 4)
def protect(number, page, pages, rights):
    call("mprotect", regions[number][0] + (page << 12), pages << 12, rights)
def resize(number, pages, rights):
    at, before, of_file = regions[number]
    try:
        to = call("mremap", at, before << 12, pages << 12, 1)
    except OSError:  # it is several mappings: as realloc does
        to = new(pages, of_file)
        ctypes.memmove(to, at, min(before, pages) << 12)
        call("munmap", at, before << 12)
        call("mprotect", to, pages << 12, rights)
    regions[number][:2] = to, pages
def told():
    with open("/proc/self/maps") as maps:
        areas = [line.split()[:2] for line in maps]
    areas = [(*(int(end, 16) for end in area.split("-")), rights[:2]) for area, rights in areas]
    text = []
    for number, (at, pages, _) in sorted(regions.items()):
        for page in range(at, at + (pages << 12), 4096):
            values = set(ctypes.string_at(page, 4096))
            rights = [rights for start, end, rights in areas if start <= page < end]
            text.append(f"{values.pop():02x}{rights[0]}" if len(values) == 1 else "mixed")
        text.append(f"/{number}")
    return " ".join(text)
def fork(expected):
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        return
    good = told() == expected
    for number, (at, pages, _) in regions.items():
        ctypes.memset(new(pages, False), 0xee, pages << 12)
        empty(number, 0, pages)
    os._exit(0 if good else 1)
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while True:
    connection.sendall(b"GET /next HTTP/1.1\r\n\r\n")
    question = connection.recv(1 << 16)
    if not question:
        break
    exec(question)
    connection.sendall(told().encode() + b"\n")
"#;

#[derive(Clone, Debug)]
enum Step {
    Map(usize, bool),
    Unmap(Index),
    Write(Index, Index, u8),
    Empty(Index, Index, usize),
    Resize(Index, usize),
    Protect(Index, Index, usize, bool),
    Fork,
    Take,
    Restore(Index),
    KillWhileRestoring(Index),
    Save(Index),
    Forget(Index),
    Kill,
    Start,
}

/// A step, and the process that it concerns.
fn step() -> impl Strategy<Value = (Index, Step)> {
    let index = any::<Index>;
    let step = prop_oneof![
        3 => (1..=MOST_PAGES, any::<bool>()).prop_map(|(pages, of_file)| Step::Map(pages, of_file)),
        1 => index().prop_map(Step::Unmap),
        8 => (index(), index(), 0..0x80_u8).prop_map(|(at, page, value)| Step::Write(at, page, value)),
        4 => (index(), index(), 1..9_usize).prop_map(|(at, page, pages)| Step::Empty(at, page, pages)),
        3 => (index(), 1..=MOST_PAGES).prop_map(|(at, pages)| Step::Resize(at, pages)),
        2 => (index(), index(), 1..9_usize, any::<bool>())
            .prop_map(|(at, page, pages, writable)| Step::Protect(at, page, pages, writable)),
        1 => Just(Step::Fork),
        2 => Just(Step::Take),
        3 => index().prop_map(Step::Restore),
        1 => index().prop_map(Step::KillWhileRestoring),
        1 => index().prop_map(Step::Save),
        1 => index().prop_map(Step::Forget),
        1 => Just(Step::Kill),
        1 => Just(Step::Start),
    ];
    (index(), step)
}

/// A page: its value, and whether it may be written.
#[derive(Clone, Copy)]
struct Page(usize, bool);

#[derive(Clone)]
struct Region {
    of_file: bool,
    pages: Vec<Page>,
}

impl Region {
    fn fresh(&self, page: usize) -> usize {
        if self.of_file { OF_FILE + page } else { 0 }
    }
}

/// What a process should have.
#[derive(Clone, Default)]
struct Memory(BTreeMap<usize, Region>);

impl Memory {
    fn told(&self) -> String {
        let mut text = String::new();
        for (number, region) in &self.0 {
            for Page(value, writable) in &region.pages {
                write!(text, "{value:02x}{} ", if *writable { "rw" } else { "r-" }).unwrap();
            }
            write!(text, "/{number} ").unwrap();
        }
        text.trim_end().into()
    }

    /// The question that has a process do a step; None if there is nothing to do.
    fn change(&mut self, step: &Step) -> Option<String> {
        let numbers: Vec<usize> = self.0.keys().copied().collect();
        let chosen = |at: &Index| (!numbers.is_empty()).then(|| numbers[at.index(numbers.len())]);
        Some(match step {
            Step::Map(pages, of_file) => {
                let number = (0..MOST_REGIONS).find(|number| !self.0.contains_key(number))?;
                let mut region = Region { of_file: *of_file, pages: Vec::new() };
                region.pages = (0..*pages).map(|page| Page(region.fresh(page), true)).collect();
                self.0.insert(number, region);
                format!("map_region({number}, {pages}, {})", i32::from(*of_file))
            }
            Step::Unmap(at) => {
                let number = chosen(at)?;
                self.0.remove(&number);
                format!("unmap({number})")
            }
            Step::Write(at, page, value) => {
                let number = chosen(at)?;
                let pages = &mut self.0.get_mut(&number)?.pages;
                let page = page.index(pages.len());
                if !pages[page].1 {
                    return None;
                }
                pages[page].0 = usize::from(*value);
                format!("write({number}, {page}, {value})")
            }
            Step::Empty(at, page, most) => {
                let number = chosen(at)?;
                let region = self.0.get_mut(&number)?;
                let first = page.index(region.pages.len());
                let count = (*most).min(region.pages.len() - first);
                for page in first..first + count {
                    region.pages[page].0 = region.fresh(page);
                }
                format!("empty({number}, {first}, {count})")
            }
            Step::Resize(at, pages) => {
                let number = chosen(at)?;
                let region = self.0.get_mut(&number)?;
                let Page(_, writable) = region.pages[0];
                if region.pages.iter().any(|page| page.1 != writable) {
                    return None;
                }
                let before = region.pages.len();
                region.pages.truncate(*pages);
                for page in before..*pages {
                    region.pages.push(Page(region.fresh(page), writable));
                }
                format!("resize({number}, {pages}, {})", if writable { 3 } else { 1 })
            }
            Step::Protect(at, page, most, writable) => {
                let number = chosen(at)?;
                let pages = &mut self.0.get_mut(&number)?.pages;
                let first = page.index(pages.len());
                let count = (*most).min(pages.len() - first);
                pages[first..first + count].iter_mut().for_each(|page| page.1 = *writable);
                format!("protect({number}, {first}, {count}, {})", if *writable { 3 } else { 1 })
            }
            Step::Fork => format!("fork('{}')", self.told()),
            _ => return None,
        })
    }
}

struct Process {
    child: Child,
    connection: TcpStream,
    from: SocketAddr,
    memory: Memory,
    is_restored: bool,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Taken {
    snapshot: Snapshot,
    memory: Memory,
}

struct History {
    server: TcpListener,
    folder: tempfile::TempDir,
    processes: Vec<Process>,
    taken: Vec<Taken>,
}

impl History {
    fn new() -> History {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let pages: Vec<u8> = (0..FILE_PAGES).flat_map(|page| [(OF_FILE + page) as u8; 4096]).collect();
        std::fs::write(folder.path().join("file"), pages).unwrap();
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut history = History { server, folder, processes: Vec::new(), taken: Vec::new() };
        history.start();
        history
    }

    fn start(&mut self) {
        let (_, theirs) = UnixStream::pair().unwrap();
        let theirs = OwnedFd::from(theirs);
        let mut command = Command::new("python3");
        command.args(["-c", SCRIPT, &self.server.local_addr().unwrap().port().to_string()]);
        command.arg(self.folder.path().join("file"));
        // SAFETY: system calls only, between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::syscall(libc::SYS_close_range, WAITS, -1, libc::CLOSE_RANGE_CLOEXEC);
                wait_at(theirs.as_fd())
            });
        }
        let child = command.spawn().unwrap();
        self.add(child, Memory::default(), false);
    }

    fn add(&mut self, child: Child, memory: Memory, is_restored: bool) {
        let (mut connection, from) = self.server.accept().unwrap();
        asks(&mut connection);
        self.processes.push(Process { child, connection, from, memory, is_restored });
    }

    fn take(&mut self, at: usize) {
        let process = &self.processes[at];
        let SocketAddr::V4(server) = self.server.local_addr().unwrap() else {
            unreachable!("it was bound so")
        };
        let waiting = Waiting::ForAnswer(Request { server, from: process.from.port(), bytes: ASKED }, None);
        let folder = std::fs::File::open(self.folder.path()).unwrap();
        let limits = Limits { bytes: 256 << 20, own_folder: None, disk: Some(folder.as_fd()) };
        let end = Instant::now() + Duration::from_secs(60);
        let snapshot = loop {
            match take(process.child.id() as i32, waiting, limits) {
                Err(Error::Unsupported(why)) if why.contains("does not wait") && Instant::now() < end => {}
                taken => break taken.unwrap(),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        self.taken.push(Taken { snapshot, memory: process.memory.clone() });
    }

    fn restore(&mut self, at: usize) {
        let (child, mut line) = copies::restored(&self.taken[at].snapshot);
        let mut told = Vec::new();
        line.read_to_end(&mut told).unwrap();
        assert_eq!(told, [RUNS]);
        self.add(child, self.taken[at].memory.clone(), true);
    }

    fn kill_while_restoring(&mut self, at: usize) {
        let (mut child, line) = copies::restored(&self.taken[at].snapshot);
        drop(line);
        child.kill().unwrap();
        child.wait().unwrap();
        // Its connection, if it had come so far.
        self.server.set_nonblocking(true).unwrap();
        while let Ok(connection) = self.server.accept() {
            drop(connection);
        }
        self.server.set_nonblocking(false).unwrap();
    }

    /// The snapshot is saved and loaded, as by the next worker.
    fn save(&mut self, at: usize) {
        let folder = std::fs::File::open(self.folder.path()).unwrap();
        let snapshot = &mut self.taken[at].snapshot;
        saved::save(snapshot, folder.as_fd(), "saved", "these tests", |_| None).unwrap();
        *snapshot = saved::load(folder.as_fd(), "saved", "these tests", |_| None).unwrap().unwrap();
    }

    fn go(&mut self, chosen: &Index, step: &Step) {
        if self.processes.is_empty() {
            self.start();
        }
        let at = chosen.index(self.processes.len());
        let of = |index: &Index, taken: &[Taken]| (!taken.is_empty()).then(|| index.index(taken.len()));
        match step {
            // A snapshot is taken of a process that was started.
            Step::Take if self.processes[at].is_restored || self.taken.len() == MOST_PROCESSES => {}
            Step::Take => self.take(at),
            Step::Restore(index) if self.processes.len() < MOST_PROCESSES => {
                if let Some(one) = of(index, &self.taken) {
                    self.restore(one);
                    let last = self.processes.len() - 1;
                    self.processes[last].ask("pass");
                }
            }
            Step::KillWhileRestoring(index) => {
                of(index, &self.taken).into_iter().for_each(|one| self.kill_while_restoring(one));
            }
            Step::Save(index) => of(index, &self.taken).into_iter().for_each(|one| self.save(one)),
            Step::Forget(index) => {
                of(index, &self.taken).into_iter().for_each(|one| drop(self.taken.swap_remove(one)));
            }
            Step::Kill => drop(self.processes.swap_remove(at)),
            Step::Start if self.processes.len() < MOST_PROCESSES => self.start(),
            step => {
                let process = &mut self.processes[at];
                if let Some(question) = process.memory.change(step) {
                    process.ask(&question);
                }
            }
        }
    }
}

/// Reads the request by which a process asks what to do.
fn asks(connection: &mut TcpStream) {
    connection.set_read_timeout(Some(copies::PATIENCE)).unwrap();
    let mut request = [0; ASKED.len()];
    connection.read_exact(&mut request).unwrap();
    assert_eq!(request, ASKED);
}

impl Process {
    /// Has it do something; its memory is as the model's then.
    fn ask(&mut self, question: &str) {
        self.connection.write_all(question.as_bytes()).unwrap();
        let (mut told, mut byte) = (Vec::new(), [0]);
        while told.last() != Some(&b'\n') {
            match self.connection.read(&mut byte) {
                Ok(1) => told.push(byte[0]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => panic!("no answer to {question} ({other:?}): {:?}", self.child.try_wait()),
            }
        }
        assert_eq!(String::from_utf8(told).unwrap().trim_end(), self.memory.told(), "after {question}");
        asks(&mut self.connection);
    }
}

fn histories() -> u32 {
    std::env::var("MAYFLY_HISTORIES").map_or(8, |number| number.parse().expect("a number of histories"))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: histories(), max_shrink_iters: 50, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn memory_is_as_the_models(steps in prop::collection::vec(step(), 1..60)) {
        let mut history = History::new();
        for (chosen, step) in &steps {
            history.go(chosen, step);
        }
        // What was done to others has changed none.
        for process in &mut history.processes {
            process.ask("pass");
        }
        for at in 0..history.taken.len() {
            history.restore(at);
            history.processes.last_mut().expect("it was just restored").ask("pass");
        }
    }
}
