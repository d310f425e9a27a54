"""The worker on a machine with cgroup version 2 alone: Mayfly's guest, booted with guest.py as its first
process."""

import os
import pathlib
import re
import shutil
import subprocess

import guest
import pytest
from conftest import HERE, MAYFLY

PATIENCE_S = 1800
# Linux patches its own code by way of breakpoints, and QEMU's multi-threaded translation may run one after it
# was removed; about one boot in forty ends so. The kernel is not at fault: the guest boots again.
STALE_BREAKPOINT = "Oops: int3"
BOOTS = 4
LIBRARIES = ["libmayfly_heap.so", "libmayfly_merge.so", "libmayfly_rest.so"]


@pytest.fixture(scope="module")
def console(tmp_path_factory, worker):
    """The guest's console output, complete. This host's worker has installed Lambda's client for it."""
    built = subprocess.run(
        [MAYFLY, "vm", "image", "--kernel", "hotmem", "--linux", "7.3"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    image = pathlib.Path(built.stdout.split()[-1])
    place = tmp_path_factory.mktemp("guest")
    tree = place / "tree"
    (tree / "python").mkdir(parents=True)
    shutil.copy(HERE / "guest.py", tree)
    for path in [pathlib.Path(MAYFLY), *(pathlib.Path(MAYFLY).with_name(name) for name in LIBRARIES)]:
        shutil.copy(path, tree)
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    for client in (cache / "mayfly/worker/python").glob("*/awslambdaric"):
        shutil.copytree(client.parent, tree / "python" / client.parent.name)
    mke2fs = shutil.which("mke2fs") or "/sbin/mke2fs"
    # Each file and folder takes an inode and whole blocks; a quarter more is for the file system itself.
    found = list(tree.rglob("*"))
    blocks = sum(path.stat().st_size // 4096 + 1 for path in found)
    size, inodes = f"{(blocks >> 8) * 5 // 4 + 64}M", str(len(found) * 5 // 4 + 1024)
    subprocess.run(
        [mke2fs, "-q", "-t", "ext4", "-O", "^has_journal", "-N", inodes, "-d", tree, place / "disk", size],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    # Debian's root has no mount(8) here; the kernel passes the words after `--` to init.
    first = "import ctypes, os; ctypes.CDLL(None).mount(b'/dev/vdb', b'/mnt', b'ext4', 1, None); "
    first += "os.execv('/usr/bin/python3', ['python3', '/mnt/guest.py'])"
    words = "root=/dev/vda ro console=ttyS0 quiet panic=-1 oops=panic no_timer_check init=/usr/bin/python3"
    command = [
        *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", "pc", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2560"),
        *("-kernel", image / "kernel", "-serial", "stdio"),
        *("-append", f'{words} -- -c "{first}"'),
        *("-drive", f"file={image / 'root.ext4'},if=virtio,format=raw,readonly=on"),
        *("-drive", f"file={place / 'disk'},if=virtio,format=raw,readonly=on"),
    ]
    for _ in range(BOOTS):
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
        )
        if STALE_BREAKPOINT not in done.stdout:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("check", [check.__name__ for check in guest.CHECKS])
def test_on_cgroup_v2(console, check):
    assert re.search(rf"^{check}: ok", console, re.MULTILINE), console
