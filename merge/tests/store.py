"""The page store and its clients in tests: `Store` is a `mayfly share` of its own on a socket in a temporary
folder, `Puppet` a client that follows a script (programs/puppet.c)."""

import atexit
import contextlib
import os
import pathlib
import re
import select
import shutil
import signal
import socket as sockets
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = HERE / "build"
NOBODY = 65534
FLAGS = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]


class Failed(AssertionError):
    """A test's finding."""


def check(right, message):
    if not right:
        raise Failed(message)


def until(right, what, seconds=60.0):
    """Waits for an effect of other processes."""
    end = time.monotonic() + seconds
    while not (value := right()):
        if time.monotonic() > end:
            raise Failed(f"not within {seconds:g} s: {what}")
        time.sleep(0.01)
    return value


class Built:
    """The objects under test: the command, the library, and the test programs linked with it."""

    def __init__(self, folder):
        self.folder, self.build = pathlib.Path(folder).resolve(), BUILD
        BUILD.mkdir(exist_ok=True)
        for file, package in (("mayfly", "mayfly"), ("libmayfly_merge.so", "mayfly_merge")):
            if not (self.folder / file).is_file():
                raise FileNotFoundError(
                    f"no {self.folder / file}; build it with: cargo build --release -p {package}"
                )
        # Some tests run as another user, who cannot enter root's home, nor many a user's.
        if os.geteuid() == 0 and not all(
            p.stat().st_mode & 1 for p in [*self.folder.parents, *BUILD.parents]
        ):
            self.folder = self.build = self.copied(self.folder)
        self.mayfly, self.library = self.folder / "mayfly", self.folder / "libmayfly_merge.so"
        self.programs = {}

    @staticmethod
    def copied(folder):
        """Copies to a folder where all users may run them, until the tests end."""
        open_to_all = pathlib.Path(tempfile.mkdtemp(prefix="mayfly-merge-built-"))
        atexit.register(shutil.rmtree, open_to_all, ignore_errors=True)
        open_to_all.chmod(0o755)
        names = ("mayfly", "libmayfly_merge.so", "libmayfly_merge_auto.so", "libmayfly_heap.so")
        for file in (folder / name for name in names):
            if file.is_file():
                shutil.copy(file, open_to_all)
        return open_to_all

    def program(self, name, *extra):
        if (name, extra) not in self.programs:
            self.programs[name, extra] = self.compile(name, extra)
        return self.programs[name, extra]

    def compile(self, name, extra):
        target = self.build / "-".join([name, *(re.sub(r"\W", "", e) for e in extra)])
        source = HERE / f"programs/{name}.c"
        headers = [HERE / "programs/merge_test.h", HERE.parent / "include/mayfly_merge.h"]
        if target.exists() and target.stat().st_mtime > max(p.stat().st_mtime for p in [source, *headers]):
            return target
        # To another name first: another run may be executing the old file.
        fresh = target.with_name(f"{target.name}.{os.getpid()}")
        command = ["gcc", *FLAGS, *extra, "-o", fresh, source, f"-L{self.folder}", "-lmayfly_merge"]
        done = subprocess.run(command, capture_output=True, text=True)
        check(done.returncode == 0, f"{name} does not compile: {done.stderr.strip()}")
        fresh.rename(target)
        return target

    def environment(self, socket, **more):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MAYFLY_")}
        environment["LD_LIBRARY_PATH"] = str(self.folder)
        environment["MAYFLY_SHARE_SOCKET"] = str(socket)
        environment["MAYFLY_MERGE_PATH"] = "engine"
        return environment | more

    def run(self, socket, name, *words, prefix=(), uid=None, timeout=120, flags=(), **more):
        """Runs one of the programs, compiled with `flags`, to a successful end; returns its result."""
        done = subprocess.run(
            [*prefix, self.program(name, *flags), *words],
            env=self.environment(socket, **more),
            capture_output=True,
            text=True,
            timeout=timeout,
            **as_user(uid),
        )
        said = f"{' '.join([name, *words])}: {status_text(done.returncode)}: {done.stderr.strip()[-300:]}"
        check(done.returncode == 0, said)
        return done


def as_user(uid):
    """For Popen: the child becomes this user, with none of root's groups."""
    return {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}


class Store:
    """A `mayfly share` in its own folder. `with Store(built) as store:` ends it and checks that it left
    nothing."""

    def __init__(self, built, *arguments, uid=None, prefix=(), **environment):
        self.built, self.arguments, self.uid, self.prefix = built, arguments, uid, prefix
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mayfly-merge-test-"))
        self.folder.chmod(0o755)
        if uid is not None:
            os.chown(self.folder, uid, uid)
        self.socket, self.figures = self.folder / "share.socket", self.folder / "metrics.socket"
        self.extra = environment
        self.log = open(self.folder / "log", "a+b")  # noqa: SIM115 (closed with the store)
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, *_):
        try:
            if self.process and self.process.poll() is None:
                self.stop()
        except Failed:
            if kind is None:
                raise
        finally:
            if self.process and self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.log.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, prefix=None, wait=True, files=()):
        command = [
            *(self.prefix if prefix is None else prefix),
            self.built.mayfly,
            "share",
            "--socket",
            self.socket,
            "--metrics",
            self.figures,
        ]
        self.process = subprocess.Popen(
            [str(word) for word in [*command, *self.arguments]],
            env=self.built.environment(self.socket, **self.extra),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
            pass_fds=files,
            **as_user(self.uid),
        )
        if wait:
            until(self.answers, f"the store is ready; its log: {self.log_text()[-500:]}")

    def answers(self):
        check(self.process.poll() is None, f"the store ended at once: {self.log_text()[-500:]}")
        with sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError as error:
                # A socket of another kind accepts connections, too.
                return error.errno == 91
            return True

    def log_text(self):
        return (self.folder / "log").read_text(errors="replace")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        try:
            status = self.process.wait(10)
        except subprocess.TimeoutExpired:
            raise Failed("the store does not end on SIGTERM") from None
        check(status == 0, f"the store ended with {status} on SIGTERM: {self.log_text()[-500:]}")

    def alive(self, when):
        status = self.process.poll()
        check(status is None, f"the store ended with {status} {when}: {self.log_text()[-800:]}")

    @property
    def pid(self):
        return self.process.pid

    def metrics(self):
        """Metrics of all domains together, from GET /metrics."""
        with sockets.socket(sockets.AF_UNIX) as visitor:
            visitor.settimeout(5)
            visitor.connect(str(self.figures))
            visitor.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            text = b"".join(iter(lambda: visitor.recv(65536), b"")).decode()
        found = {"clients": 0, "store_pages": 0, "segments": 0, "index_entries": 0, "private_pages": 0}
        for name, value in re.findall(r"^mayfly_share_(\w+?)(?:\{.*\})? ([0-9.]+)$", text, re.M):
            found[name] = found.get(name, 0) + float(value)
        check("cpu_seconds_total" in found, f"/metrics says {text[:300]!r}")
        return {name: int(value) for name, value in found.items()} | {"pages": int(found["store_pages"])}

    def empty(self, when):
        """Checks that the store holds nothing of any client."""
        names = ("clients", "store_pages", "segments", "index_entries", "private_pages")

        def left():
            figures = self.metrics()
            return {name: figures[name] for name in names if figures[name]}

        end = time.monotonic() + 60
        while rest := left():
            check(time.monotonic() < end, f"{when} the store still holds {rest}")
            time.sleep(0.05)

    def rested(self, case):
        """After a program that ended well."""
        self.alive(f"after `{case}`")
        self.empty(f"after `{case}`")

    def files(self):
        """The number of its open files; 0 unless root runs the test (the store is not dumpable)."""
        try:
            return len(os.listdir(f"/proc/{self.pid}/fd"))
        except PermissionError:
            return 0

    def resident_kib(self, kind="RssAnon"):
        return int(re.search(rf"{kind}:\s+(\d+)", pathlib.Path(f"/proc/{self.pid}/status").read_text())[1])


class Puppet:
    """A client process that runs one command at a time (programs/puppet.c)."""

    def __init__(self, store, uid=None, prefix=(), socket=None, **environment):
        program = store.built.program("puppet")
        self.process = subprocess.Popen(
            [str(word) for word in [*prefix, program]],
            env=store.built.environment(socket or store.socket, **environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            **as_user(uid),
        )

        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def send(self, command):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()

    def answer(self, timeout=60.0):
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        check(ready, "a client does not answer")
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(5)
            error = self.process.stderr.read()[-500:]
            raise ClientEnded(f"a client ended with {self.process.returncode}: {error}")
        return line.rstrip("\n")

    def ask(self, command, timeout=60.0):
        self.send(command)
        return self.answer(timeout)

    def do(self, *commands):
        """Runs commands, each of which must succeed."""
        for command in commands:
            said = self.ask(command)
            check(said == "ok", f"client: {command}: {said}")

    def block(self, number, pages, content, flags=0):
        """A new block with known contents, advised."""
        self.do(f"map {number} {pages}", f"fill {number} {content}", f"advise {number} {flags}")

    def fork(self):
        """From now on the child answers."""
        self.pid = int(self.ask("fork"))

    def stats(self):
        return {k: int(v) for k, v in (pair.split("=") for pair in self.ask("stats").split())}

    def private_kib(self, number):
        """Anonymous memory of a block: the part that is not shared."""
        return self.block_kib(number, "Anonymous", [self.pid])

    def block_kib(self, number, kind, pids):
        """A field of /proc/PID/smaps for the addresses of a block, of processes together."""
        start, size = map(int, self.ask(f"where {number}").split())
        total, inside = 0, False
        for line in "".join(pathlib.Path(f"/proc/{pid}/smaps").read_text() for pid in pids).splitlines():
            if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                inside = start <= int(found[1], 16) < start + size
            elif inside and line.startswith(f"{kind}:"):
                total += int(line.split()[1])
        return total

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        if self.process.poll() is None:
            self.send("exit")
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class ClientEnded(Failed):
    """The client's process has ended."""


def status_text(status):
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
