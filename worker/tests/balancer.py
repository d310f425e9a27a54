"""HAProxy before workers of the tests, with the file that deploy/haproxy has."""

import contextlib
import pathlib
import re
import shutil
import socket
import subprocess

from calls import until

FILE = pathlib.Path(__file__).resolve().parents[2] / "deploy/haproxy/haproxy.cfg"
# Debian has it where the PATH of a user that is not root does not lead.
PROGRAM = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")


def configuration(addresses, front, **changed):
    """The text of the file with these workers' addresses and this frontend's. `changed` are other settings by
    the first word of those that they replace."""
    text = FILE.read_text()
    servers = "".join(f"    server worker-{n} {address}\n" for n, address in enumerate(addresses, 1))
    text, times = re.subn(r"(^    server worker-\d+ .*\n)+", servers, text, flags=re.M)
    assert times == 2, "a list of workers in each backend"
    for word, line in {"bind": f"bind {front}", **changed}.items():
        text, times = re.subn(rf"^    {word.replace('_', '-')} .*$", f"    {line}", text, flags=re.M)
        assert times, f"{FILE.name} has no {word}"
    return text


@contextlib.contextmanager
def balanced(folder, addresses, front, **changed):
    """HAProxy at `front` before these workers, until the block ends; yields the file of its log."""
    file, log = pathlib.Path(folder, "haproxy.cfg"), pathlib.Path(folder, "haproxy.log")
    file.write_text(configuration(addresses, front, **changed))
    with log.open("w") as output:
        process = subprocess.Popen([PROGRAM, "-db", "-f", file], stdout=output, stderr=subprocess.STDOUT)
    try:
        until(lambda: is_listening(front) or process.poll() is not None, log.read_text, 60)
        assert process.poll() is None, log.read_text()
        yield log
    finally:
        process.kill()
        process.wait()


def is_listening(address):
    host, port = address.rsplit(":", 1)
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
        return True
    return False
