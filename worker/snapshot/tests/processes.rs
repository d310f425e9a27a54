//! Real processes are taken and restored: Python with state of all kinds, threads, and libraries.

mod copies;

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use worker_snapshot::{Error, Limits, Snapshot, WAITS, Waiting, take, wait_at};

const LIMITS: Limits<'_> = Limits { bytes: 512 << 20, own_folder: None, disk: None };

/// A process with a line to it.
struct Process {
    child: Child,
    line: UnixStream,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What each script begins with: `told()` waits to be taken, and `serve()` evaluates what it is asked.
const BEGIN: &str = r#"
import os, sys
def told():
    os.write(9, b"ready\n")
    return os.read(9, 2)
def serve():
    answers = {}
    while line := os.read(9, 65536).decode():
        try:
            answer = eval(line, globals())
        except Exception as error:
            answer = repr(error)
        os.write(9, (str(answer) + "\n").encode())
"#;

/// Starts a Python script; returns when it waits.
fn start(script: &str) -> Process {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new("python3");
    command.arg("-c").arg(format!("{BEGIN}\n{script}\ntold()\nserve()\n"));
    let theirs = OwnedFd::from(theirs);
    // SAFETY: system calls only, between fork and exec.
    unsafe {
        command.pre_exec(move || {
            // What this test itself has inherited.
            libc::syscall(libc::SYS_close_range, WAITS, -1, libc::CLOSE_RANGE_CLOEXEC);
            wait_at(theirs.as_fd())
        });
    }
    let mut process = Process { child: command.spawn().unwrap(), line: ours };
    drop(command);
    process.line.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    assert_eq!(process.answer(), "ready");
    process
}

/// A copy, which goes on.
fn restored(snapshot: &Snapshot) -> Process {
    let (child, line) = copies::restored(snapshot);
    let mut process = Process { child, line };
    process.line.write_all(b"go").unwrap();
    process
}

impl Process {
    fn answer(&mut self) -> String {
        let mut text = Vec::new();
        let mut byte = [0];
        loop {
            match self.line.read(&mut byte) {
                Ok(1) if byte[0] != b'\n' => text.push(byte[0]),
                Ok(1) => return String::from_utf8(text).unwrap(),
                other => panic!("no answer ({other:?}); it ended: {:?}", self.child.try_wait()),
            }
        }
    }

    fn ask(&mut self, question: &str) -> String {
        self.line.write_all(question.as_bytes()).unwrap();
        self.answer()
    }

    fn take(&self) -> Result<Snapshot, Error> {
        self.take_within(LIMITS)
    }

    /// Once it waits: its answer is written shortly before.
    fn take_within(&self, limits: Limits<'_>) -> Result<Snapshot, Error> {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            match take(self.child.id() as i32, Waiting::AtLine, limits) {
                Err(Error::Unsupported(why)) if why.contains("does not wait") && Instant::now() < end => {}
                taken => return taken,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn refusal(script: &str) -> String {
    let mut process = start(script);
    let refused = process.take().map(|_| ()).unwrap_err().to_string();
    // It goes on unharmed.
    process.line.write_all(b"go").unwrap();
    assert_eq!(process.ask("6 * 7"), "42", "after: {refused}");
    refused
}

#[test]
fn state_is_as_it_was_in_each_copy() {
    let mut process = start(
        r#"
import collections, json, re, signal
numbers = list(range(100_000))
text = "".join(map(chr, range(32, 0x2000)))
big = bytearray(b"\x5a" * (30 << 20))
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append("USR1"))
source = open(json.__file__)
source.read(10)
os.chdir("/usr/lib")
"#,
    );
    let snapshot = process.take().unwrap();
    assert!(snapshot.bytes() > 30 << 20, "{} bytes", snapshot.bytes());
    process.line.write_all(b"go").unwrap();
    let mut copies: Vec<_> = (0..4).map(|_| restored(&snapshot)).collect();
    copies.push(process); // the one that was taken goes on, too
    for (number, copy) in copies.iter_mut().enumerate() {
        assert_eq!(
            copy.ask("sum(numbers), len(text), ord(text[-1]), big.count(0x5a)"),
            format!("(4999950000, {}, 8191, 31457280)", 0x2000 - 32)
        );
        assert_eq!(
            copy.ask("os.getcwd(), source.tell() >= 10, len(source.read()) > 1000"),
            "('/usr/lib', True, True)"
        );
        assert_eq!(copy.ask("os.kill(os.getpid(), signal.SIGUSR1) or seen"), "['USR1']");
        assert_eq!(copy.ask("open('/proc/self/cmdline').read().split(chr(0))[1]"), "-c");
        assert_eq!(copy.ask("open('/proc/self/comm').read().strip()"), "python3");
        // Each has memory of its own.
        assert_eq!(
            copy.ask(&format!("big.__setitem__(0, {number}) or numbers.append({number}) or big[0]")),
            number.to_string()
        );
        assert_eq!(copy.ask("json.loads(json.dumps({'a': [1, 2.5, None]}))"), "{'a': [1, 2.5, None]}");
    }
    for (number, copy) in copies.iter_mut().enumerate() {
        assert_eq!(copy.ask("big[0], numbers[-1], len(numbers)"), format!("({number}, {number}, 100001)"));
    }
}

#[test]
fn memory_grows_and_shrinks_and_children_run() {
    let process = start("import subprocess\nblock = bytearray(50 << 20)\nblock[:] = b'x' * len(block)");
    let snapshot = process.take().unwrap();
    let mut copy = restored(&snapshot);
    assert_eq!(copy.ask("sum(len([bytes(1 << n)] * 3) for n in range(24))"), "72");
    assert_eq!(copy.ask("(lambda f: f(f, 900))(lambda f, n: n and 1 + f(f, n - 1))"), "900");
    assert_eq!(copy.ask("subprocess.run(['echo', 'child'], capture_output=True).stdout"), "b'child\\n'");
    assert_eq!(
        copy.ask("os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) if (p := os.fork()) else os._exit(7)"),
        "7"
    );
    assert_eq!(copy.ask("block.count(b'x')"), (50 << 20).to_string());
}

#[test]
fn threads_come_back() {
    let process = start(
        r#"
import threading, queue, time
asked, answered = queue.Queue(), queue.Queue()
def work():
    while True:
        answered.put((asked.get() * 2, threading.current_thread().name))
threads = [threading.Thread(target=work, name=f"worker {n}", daemon=True) for n in range(3)]
sleeper = threading.Thread(target=lambda: [time.sleep(0.05) for _ in iter(int, 1)], daemon=True)
for thread in threads + [sleeper]:
    thread.start()
time.sleep(0.02)
"#,
    );
    let snapshot = process.take().unwrap();
    for _ in 0..3 {
        let mut copy = restored(&snapshot);
        assert_eq!(
            copy.ask(
                "[asked.put(n) for n in range(30)] and sorted(answered.get(timeout=20)[0] for _ in range(30))"
            ),
            format!("{:?}", (0..30).map(|n| 2 * n).collect::<Vec<_>>())
        );
        assert_eq!(copy.ask("all(t.is_alive() for t in threads), sleeper.is_alive()"), "(True, True)");
        // Threads that stood for missing ids end at once, but not before this one runs.
        let end = Instant::now() + Duration::from_secs(10);
        while copy.ask("len(os.listdir('/proc/self/task'))") != "5" {
            assert!(Instant::now() < end, "it has more threads");
        }
        let fresh = "(t := threading.Thread(target=seen.append, args=(1,))).start() or t.join() or seen";
        assert_eq!(copy.ask(&fresh.replace("seen", "threads")).matches("worker").count(), 3);
    }
}

#[test]
fn event_loops_come_back() {
    // As libuv has them: an epoll that watches an eventfd, whose count is kept, and the end of a pipe; one
    // thread waits in it, and the event loop of Python has a pair of its own.
    let process = start(
        r#"
import select, threading
counter = os.eventfd(5, os.EFD_NONBLOCK)
reading, writing = os.pipe2(os.O_NONBLOCK)
blocking = os.pipe()
poll = select.epoll()
poll.register(reading, select.EPOLLIN)
poll.register(blocking[0], select.EPOLLIN)
counting = select.epoll()
counting.register(counter, select.EPOLLIN | select.EPOLLET)
heard, read = [], []
def hear():
    while True:
        for descriptor, _ in poll.poll():
            heard.append((descriptor == reading, os.read(descriptor, 100)))
def wait():
    while True:
        read.append(os.read(other[0], 100))
other = os.pipe()
locked = os.pipe()
os.write(locked[1], b"a lock")
for work in (hear, wait):
    threading.Thread(target=work, daemon=True).start()
def until(what):
    import time
    end = time.monotonic() + 20
    while not what() and time.monotonic() < end:
        time.sleep(0.001)
    return what()
"#,
    );
    let snapshot = process.take().unwrap();
    for _ in 0..2 {
        let mut copy = restored(&snapshot);
        assert_eq!(copy.ask("counting.poll(0) == [(counter, 1)], os.eventfd_read(counter)"), "(True, 5)");
        assert_eq!(copy.ask("os.write(writing, b'one') and until(lambda: heard)"), "[(True, b'one')]");
        assert_eq!(
            copy.ask("heard.clear() or os.write(blocking[1], b'two') and until(lambda: heard)"),
            "[(False, b'two')]"
        );
        assert_eq!(copy.ask("os.write(other[1], b'three') and until(lambda: read)"), "[b'three']");
        assert_eq!(copy.ask("os.read(locked[0], 100)"), "b'a lock'");
        let flags = "[os.get_blocking(end) for end in (reading, writing, *blocking, counter)]";
        assert_eq!(copy.ask(flags), "[False, False, True, True, False]");
        let inherited = "[os.get_inheritable(end) for end in (reading, writing, *blocking, counter)]";
        assert_eq!(copy.ask(inherited), "[True, True, False, False, True]");
    }
}

#[test]
fn copies_share_their_memory() {
    let process = start("block = bytes(range(256)) * (40 << 12)");
    let snapshot = process.take().unwrap();
    let mut copies: Vec<_> = (0..4).map(|_| restored(&snapshot)).collect();
    for copy in &mut copies {
        assert_eq!(copy.ask("len(block)"), (40 << 20).to_string());
        let rollup = copy.ask("open('/proc/self/smaps_rollup').read().replace(chr(10), ';')");
        let kib = |name: &str| -> u64 {
            let line = rollup.split(';').find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        assert!(kib("Private_Dirty:") < 8 << 10, "{rollup}");
    }
}

/// How many bytes of a snapshot's pages are in memory.
fn resident_bytes(snapshot: &Snapshot) -> usize {
    let (mut present, length) = (vec![0_u8; (snapshot.size() / 4096) as usize], snapshot.size() as usize);
    let (file, nowhere) = (snapshot.pages().as_raw_fd(), std::ptr::null_mut());
    // SAFETY: a new mapping, of which no byte is accessed; mincore writes a byte for each of its pages.
    unsafe {
        let at = libc::mmap(nowhere, length, libc::PROT_READ, libc::MAP_SHARED, file, 0);
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::mincore(at, length, present.as_mut_ptr()), 0);
        libc::munmap(at, length);
    }
    4096 * present.iter().filter(|byte| **byte & 1 == 1).count()
}

#[test]
fn pages_on_the_disk_are_in_memory_as_far_as_they_are_touched() {
    let folder = std::fs::File::open(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let process = start("block = bytearray(range(256)) * (160 << 10)");
    let snapshot = process.take_within(Limits { disk: Some(folder.as_fd()), ..LIMITS }).unwrap();
    if !snapshot.is_on_disk() {
        eprintln!("skipped: the folder for tests is no disk's");
        return;
    }
    let left = |name: &str| {
        std::fs::read_dir(env!("CARGO_TARGET_TMPDIR"))
            .unwrap()
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().starts_with(name))
    };
    assert!(snapshot.bytes() > 40 << 20 && !left("mayfly-snapshot"));
    let resident = resident_bytes(&snapshot);
    assert!(resident < 4 << 20, "{resident} bytes are in memory");
    let mut copy = restored(&snapshot);
    let started = resident_bytes(&snapshot);
    assert!(started < 20 << 20, "{started} bytes are in memory");
    assert_eq!(copy.ask("block == bytearray(range(256)) * (160 << 10)"), "True");
    let mut pages = std::fs::File::from(snapshot.pages().try_clone_to_owned().unwrap());
    assert!(pages.write(b"x").is_err(), "it is open for reading alone");
    copy.ask("block.__setitem__(slice(0, 4096), bytes(4096))");
    assert_eq!(restored(&snapshot).ask("block[:3].hex()"), "000102", "a copy's writes are its own");
}

#[test]
fn odd_names_change_nothing() {
    let process = start(
        r#"
import ctypes
assert ctypes.CDLL(None).prctl(15, b") R 1 2 (", 0, 0, 0) == 0
"#,
    );
    let mut copy = restored(&process.take().unwrap());
    assert_eq!(copy.ask("open('/proc/self/comm').read().strip()"), ") R 1 2 (");
    assert_eq!(copy.ask("open('/proc/self/cmdline').read().split(chr(0))[1]"), "-c");
}

#[test]
fn unsupported_state_is_named() {
    for (script, named) in [
        ("import socket\ns = socket.socket()", "the open file"),
        ("import select, socket\ne = select.epoll()\ne.register(socket.socket().detach())", "the open file"),
        ("r, w = os.pipe()\nos.write(w, b'x' * 5000)", "which holds 5000 bytes"),
        ("r, w = os.pipe()\nos.close(r)", "which leads out of the process"),
        ("r, w = os.pipe()\nx = os.dup(w)", "open twice"),
        ("f = open('/tmp/mayfly-snapshot-test', 'w')\nos.unlink(f.name)", "open for writing or deleted"),
        ("import mmap\nm = mmap.mmap(-1, 8192)\nm[0] = 1", "shared memory"),
        ("import signal\nsignal.setitimer(signal.ITIMER_REAL, 1000)", "a timer"),
        ("import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))", "limits"),
        ("import subprocess\np = subprocess.Popen(['sleep', '60'])", "a child process"),
        ("big = b'x' * (600 << 20)", "memory of more than 512 MiB"),
        (
            "import threading\nt = threading.Thread(target=lambda: [0 for _ in iter(int, 1)], daemon=True)\nt.start()",
            "does not wait",
        ),
    ] {
        if named == "does not wait" {
            let process = start(script);
            assert!(
                take(process.child.id() as i32, Waiting::AtLine, LIMITS)
                    .unwrap_err()
                    .to_string()
                    .contains(named)
            );
            continue;
        }
        let refused = refusal(script);
        assert!(refused.contains(named) && refused.ends_with("cannot be restored"), "{script}: {refused}");
    }
}

#[test]
fn ended_process_is_an_error() {
    let mut process = start("");
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    assert!(matches!(take(process.child.id() as i32, Waiting::AtLine, LIMITS), Err(Error::System(..))));
}
