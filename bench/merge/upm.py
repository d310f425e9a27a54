"""The paper's functions on Mayfly's kernel with madvise(MADV_UPM) itself, beside ksmd with its advisor, in a
VM: bench/merge/upm_guest.py runs there. The VM sees this machine's files, read-only. Without KVM it is
emulated: memory is exact, and times compare with one another only."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.merge import environment, kernel, models
from bench.merge.regions import Numbers
from bench.outcome import ROOT, BenchError, say

BOOT = ROOT / "kernel" / "boot"
MEMORY_MIB = 5 * 1024
LIMIT_S = 3 * 3600
# Debian's PyTorch has no CUDA: without it an instance is as large as when the paper was written. A ResNet-50
# would take minutes for each answer.
NETWORKS = [f"alexnet{environment.DEBIAN}"]
# UPM of the parameters; of all private memory, and KSM; the same in processes of one layout.
METHODS = ["upm", "nothing", "upm_all", "ksm", f"upm_all{models.LAYOUT}", f"ksm{models.LAYOUT}"]
# Bind mounts over the machine's files, which an overlay in the VM's memory makes writable.
SCRIPT = """#!/bin/sh
set -e
mkdir -p /host /over /root
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose host /host
mount -t tmpfs -o size=512m over /over
mkdir /over/upper /over/work
mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work over /root
for folder in proc sys dev; do mount -o bind /$folder /root/$folder; done
mount -t tmpfs tmp /root/tmp
exec chroot /root /bin/sh -c {command}
"""


def networks() -> list[str]:
    """The models that can run here."""
    return NETWORKS if environment.has_debian_torch() else ["alexnet"]


def measure(folder: Path | None, names: list[str], quick: bool) -> Numbers:
    methods = {name: METHODS[1:] if name in models.FUNCTIONS else METHODS for name in names}
    for name in names:  # made here: the VM has no network
        if name in models.FUNCTIONS:
            environment.python_of_functions(tuple(models.FUNCTIONS))
        else:
            environment.model_files(name)
    wanted = {"methods": methods, "counts": [1, 2] if quick else [1, 2, 4]}
    words = [sys.executable, "-m", "bench.merge.upm_guest", json.dumps(wanted)]
    # The same variables as here, so that the same files are found.
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "XDG_CACHE_HOME") if name in os.environ}
    kept |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    words = ["env", "-i", *(f"{name}={value}" for name, value in kept.items()), *words]
    inside = f"cd {shlex.quote(str(ROOT))} && exec {shlex.join(words)}"
    found: Numbers = {}
    with tempfile.TemporaryDirectory() as work:
        script = Path(work) / "script"
        script.write_text(SCRIPT.format(command=shlex.quote(inside)))
        command = [BOOT, "--timeout", str(LIMIT_S), "--append", "loglevel=3"]
        command += [kernel.built(folder) / "bzImage", script]
        command += ["--", "-smp", "2", "-m", f"{MEMORY_MIB}M"]
        command += ["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"]
        command += ["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            lines = follow(process, found)
        finally:
            process.kill()
            status = process.wait()
    if status:
        raise BenchError(f"kernel/boot: status {status}: {' | '.join(lines[-5:])}")
    for name in names:
        answers = {found[f"{name}.{method}.answer"] for method in methods[name]}
        if len(answers) != 1:
            raise BenchError(f"{name}: {len(answers)} different answers to one request")
    return found


def follow(process: subprocess.Popen, found: Numbers) -> list[str]:
    """Reads the console to its end; results go into `found`. Returns the lines that are none."""
    others = []
    for line in process.stdout:
        _, is_result, text = line.partition("RESULT ")
        if is_result:
            one = json.loads(text)
            found |= one
            say(f"upm.{next(iter(one)).rsplit('.', 1)[0]}")
        elif line.strip():
            others.append(line.strip())
    process.wait()
    return others
