//! Real processes that wait for a server's answer are taken, and send their request again once restored.

mod copies;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use worker_snapshot::{Error, Function, Limits, RUNS, Request, Snapshot, WAITS, Waiting, take, wait_at};

const LIMITS: Limits<'_> = Limits { bytes: 256 << 20, own_folder: None, disk: None };
const ASKED: &[u8] = b"GET /next HTTP/1.1\r\n\r\n";
/// One socket that blocks, and threads that wait meanwhile.
const BLOCKS: &str = r#"
import os, socket, sys, threading
waits = threading.Event()
threading.Thread(target=waits.wait, daemon=True).start()
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
nowhere, end = socket.socketpair()
end.close()
connection.sendall(b"GET /next HTTP/1.1\r\n\r\n")
answer = connection.recv(100)
waits.set()
assert nowhere.recv(1) == b""
connection.sendall(b"%d %s\n" % (42, answer))
connection.recv(1)
"#;
/// The same in an event loop, by IPv6, with a pair of sockets by which threads wake it.
const LOOPS: &str = r#"
import select, socket, sys, threading
connection = socket.create_connection(("::ffff:127.0.0.1", int(sys.argv[1])))
connection.sendall(b"GET /next HTTP/1.1\r\n\r\n")
wakes, woken = socket.socketpair()
for one in connection, wakes, woken:
    one.setblocking(False)
loop = select.epoll()
loop.register(connection, select.EPOLLIN | select.EPOLLET)
loop.register(woken, select.EPOLLIN)
assert loop.poll() == [(connection.fileno(), select.EPOLLIN)]
answer = connection.recv(100)
threading.Thread(target=wakes.send, args=(b"now",)).start()
assert loop.poll() == [(woken.fileno(), select.EPOLLIN)] and woken.recv(10) == b"now"
connection.sendall(b"%d %s\n" % (42, answer))
loop.poll()
"#;
/// Memory that the C library knows nothing of: some is emptied after the answer, and grows; some is not
/// writable.
const EMPTIES: &str = r#"
import ctypes, socket, sys
libc, word = ctypes.CDLL(None, use_errno=True), ctypes.c_size_t
def call(name, *arguments):
    function = getattr(libc, name)
    function.restype = word
    return function(*map(word, arguments))
def new(pages):
    return call("mmap", 0, pages << 12, 3, 0x22, (1 << 64) - 1, 0)
def pages(at, count):
    return [set(ctypes.string_at(at + (n << 12), 4096)) for n in range(count)]
large, fixed = new(64), new(2)
ctypes.memset(large, 7, 64 << 12)
ctypes.memset(large + (30 << 12), 0, 20 << 12)
ctypes.memset(fixed, 5, 8192)
assert call("mprotect", fixed, 8192, 1) == 0
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(b"GET /next HTTP/1.1\r\n\r\n")
answer = connection.recv(100)
assert pages(large, 64) == [{7}] * 30 + [{0}] * 20 + [{7}] * 14
assert call("madvise", large + (4 << 12), 8 << 12, 4) == 0
assert pages(large, 13) == [{7}] * 4 + [{0}] * 8 + [{7}], pages(large, 13)
ctypes.memset(large, 9, 4096)
moved = call("mremap", large, 64 << 12, 96 << 12, 1)
assert moved != (1 << 64) - 1, ctypes.get_errno()
assert pages(moved, 96) == [{9}] + [{7}] * 3 + [{0}] * 8 + [{7}] * 18 + [{0}] * 20 + [{7}] * 14 + [{0}] * 32
assert pages(fixed, 2) == [{5}] * 2
with open("/proc/self/maps") as maps:
    rights = [line.split()[1] for line in maps if line.startswith("%x-" % fixed)]
assert rights == ["r--p"], rights
connection.sendall(b"%d %s\n" % (42, answer))
connection.recv(1)
"#;

/// A library whose function counts its calls, and uses memory and registers meanwhile.
const LIBRARY: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int calls;
int prepares(void) {
    calls++;
    char *block = malloc(1 << 20);
    memset(block, 1, 1 << 20);
    free(block);
    for (int n = 0; n < 16; n++)
        usleep(100);
    __asm__ volatile("pcmpeqb %%xmm0, %%xmm0; pcmpeqb %%xmm15, %%xmm15; std" ::: "xmm0", "xmm15");
    __asm__ volatile("cld");
    return 0;
}
int cannot(void) { calls++; return 95; }
int faults(void) { calls++; return *(volatile int *)8; }
int waits(void) { for (;;) pause(); }
#ifdef RAW
long empties(void *at, long bytes) {
    long result;
    __asm__ volatile("movl $28, %%eax; syscall" : "=a"(result) : "D"(at), "S"(bytes), "d"(4L) : "rcx", "r11", "memory");
    return result;
}
#endif
"#;
/// It loads the library before or after it is taken, and tells how often that was called, and whether memory
/// of its own is a mapping of the snapshot.
const TELLS: &str = r#"
import ctypes, socket, sys
port, library, when = sys.argv[1:]
if when == "before":
    ctypes.CDLL(library)
held = bytes(range(1, 256)) * 16448
connection = socket.create_connection(("127.0.0.1", int(port)))
connection.sendall(b"GET /next HTTP/1.1\r\n\r\n")
answer = connection.recv(100)
shares = False
with open("/proc/self/maps") as maps:
    for line in maps:
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        shares |= begin <= id(held) + 4096 < end and "mayfly-snapshot" in line
assert held == bytes(range(1, 256)) * 16448
calls = ctypes.c_int.in_dll(ctypes.CDLL(library), "calls").value
connection.sendall(b"%d%d %s\n" % (calls, shares, answer))
connection.recv(1)
"#;

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a Python script, which asks this server. Its line is open as long as it runs.
fn start(script: &str, server: &TcpListener) -> (Process, TcpStream, SocketAddr) {
    start_with(script, &[], server)
}

/// The same, with more arguments.
fn start_with(script: &str, arguments: &[&str], server: &TcpListener) -> (Process, TcpStream, SocketAddr) {
    let (_, theirs) = UnixStream::pair().unwrap();
    let theirs = OwnedFd::from(theirs);
    let mut command = Command::new("python3");
    command.args(["-c", script, &server.local_addr().unwrap().port().to_string()]);
    command.args(arguments);
    // SAFETY: system calls only, between fork and exec.
    unsafe {
        command.pre_exec(move || {
            // What this test itself has inherited.
            libc::syscall(libc::SYS_close_range, WAITS, -1, libc::CLOSE_RANGE_CLOEXEC);
            wait_at(theirs.as_fd())
        });
    }
    let process = Process(command.spawn().unwrap());
    let (connection, from) = accept(server);
    (process, connection, from)
}

/// The next connection, once its request is read.
fn accept(server: &TcpListener) -> (TcpStream, SocketAddr) {
    let (mut connection, from) = server.accept().unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut request = [0; ASKED.len()];
    connection.read_exact(&mut request).unwrap();
    assert_eq!(request, ASKED);
    (connection, from)
}

/// Once all its threads wait.
fn taken(process: &Process, server: &TcpListener, from: SocketAddr) -> Result<Snapshot, Error> {
    taken_prepared(process, server, from, None)
}

/// The same, by a function that prepares it.
fn taken_prepared(
    process: &Process,
    server: &TcpListener,
    from: SocketAddr,
    prepares: Option<&Function>,
) -> Result<Snapshot, Error> {
    let SocketAddr::V4(server) = server.local_addr().unwrap() else { unreachable!("it was bound so") };
    let request = Request { server, from: from.port(), bytes: ASKED };
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match take(process.0.id() as i32, Waiting::ForAnswer(request, prepares), LIMITS) {
            Err(Error::Unsupported(why)) if why.contains("does not wait") && Instant::now() < end => {}
            taken => return taken,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A copy, and what it writes to its line.
fn restored(snapshot: &Snapshot) -> (Process, UnixStream) {
    let (child, line) = copies::restored(snapshot);
    (Process(child), line)
}

fn answer(connection: TcpStream, with: &[u8; 4]) {
    assert_eq!(told(connection, with), "42");
}

/// What a process tells after this answer.
fn told(mut connection: TcpStream, with: &[u8; 4]) -> String {
    connection.write_all(with).unwrap();
    let mut received = vec![0; 8];
    connection.read_exact(&mut received).unwrap();
    let (told, rest) = received.split_at(2);
    assert_eq!(rest, [b" ", &with[..], b"\n"].concat());
    String::from_utf8(told.to_vec()).unwrap()
}

/// A library of these, compiled with a flag, and one of its functions.
fn library(folder: &Path, flag: &str, name: &str) -> (String, Function) {
    let (source, library) = (folder.join("library.c"), folder.join("library.so"));
    std::fs::write(&source, LIBRARY).unwrap();
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", flag, "-o"]).args([&library, &source]).status();
    assert!(compiled.unwrap().success());
    let function = Function::of_library(&library, &library, name).unwrap();
    (library.to_str().unwrap().into(), function)
}

#[test]
fn each_copy_asks_the_server_again() {
    for script in [BLOCKS, LOOPS, EMPTIES] {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let (process, connection, from) = start(script, &server);
        let snapshot = taken(&process, &server, from).unwrap();
        assert!(!snapshot.reads_its_line());
        let copies: Vec<_> = (0..3).map(|_| restored(&snapshot)).collect();
        let connections: Vec<_> = copies.iter().map(|_| accept(&server).0).collect();
        for (connection, with) in connections.into_iter().zip([b"aaaa", b"bbbb", b"cccc"]) {
            answer(connection, with);
        }
        for (_copy, mut line) in copies {
            let mut told = Vec::new();
            line.read_to_end(&mut told).unwrap();
            assert_eq!(told, [RUNS], "it says that it runs, and closes the line");
        }
        answer(connection, b"zzzz");
    }
}

#[test]
fn other_connections_cannot_be_restored() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (process, connection, from) = start(BLOCKS, &server);
    let other = SocketAddr::new(from.ip(), from.port() ^ 1);
    let error = taken(&process, &server, other).unwrap_err().to_string();
    assert!(error.contains("the open file"), "{error}");
    answer(connection, b"goes");
    for (more, named) in [
        ("again = connection.dup()", "open twice"),
        ("pair = socket.socketpair()\npair[0].sendall(b'x')", "holds bytes"),
        ("pair = socket.socketpair()\nagain = pair[0].dup()", "open twice"),
        ("server = socket.socket()\nserver.bind(('127.0.0.1', 0))\nserver.listen()", "the open file"),
    ] {
        let script = BLOCKS.replace("answer =", &format!("{more}\nanswer ="));
        let (process, connection, from) = start(&script, &server);
        let error = taken(&process, &server, from).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
        answer(connection, b"goes");
    }
}

#[test]
fn prepared_process_shares_its_pages() {
    for (name, flag, when, calls, shares) in [
        ("prepares", "-O2", "before", 1, 1),
        ("prepares", "-O2", "after", 1, 1),
        ("cannot", "-O2", "before", 1, 0),
        // Its code empties memory by itself, so it is not asked.
        ("prepares", "-DRAW", "before", 0, 0),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (path, function) = library(folder.path(), flag, name);
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let (process, connection, from) = start_with(TELLS, &[&path, when], &server);
        let snapshot = taken_prepared(&process, &server, from, Some(&function)).unwrap();
        assert_eq!(told(connection, b"zzzz"), format!("{calls}0"), "{name} {flag} {when}");
        let copies: Vec<_> = (0..2).map(|_| restored(&snapshot)).collect();
        let connections: Vec<_> = copies.iter().map(|_| accept(&server).0).collect();
        for connection in connections {
            assert_eq!(told(connection, b"copy"), format!("{calls}{shares}"), "{name} {flag} {when}");
        }
    }
}

#[test]
fn failed_preparation_ends_the_process() {
    for name in ["faults", "waits"] {
        let folder = tempfile::tempdir().unwrap();
        let (path, function) = library(folder.path(), "-O2", name);
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut process, _connection, from) = start_with(TELLS, &[&path, "before"], &server);
        let error = taken_prepared(&process, &server, from, Some(&function)).unwrap_err().to_string();
        assert!(error.starts_with("a function of the process has failed"), "{error}");
        // Its tracer, which is its parent here, has waited for it already.
        assert!(!process.0.wait().is_ok_and(|status| status.success()));
    }
}

#[test]
fn functions_are_those_that_a_library_exports() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = library(folder.path(), "-O2", "prepares");
    for (library, name, why) in [
        (path.as_str(), "malloc", "it has no function malloc"),
        ("/dev/null", "prepares", "it has no function prepares"),
        ("/nowhere", "prepares", "No such file"),
    ] {
        let error = Function::of_library(library.as_ref(), library.as_ref(), name).unwrap_err();
        assert!(error.to_string().starts_with(why), "{error}");
    }
}
