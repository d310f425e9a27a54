"""The programs of `sim/tests`, and `mayfly sim` on them: the release build, or what MAYFLY names."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mayfly"
MAYFLY = os.environ.get("MAYFLY", str(ROOT / "target/release/mayfly"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where the programs are, and what `sim` writes."""
    folder = tmp_path_factory.mktemp("sim")
    for source in (ROOT / "sim/tests/programs").glob("*.c"):
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o", folder / source.stem, source]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="session")
def sim(folder):
    def run(*words, **variables):
        command = [MAYFLY, "sim", *words]
        return subprocess.run(
            command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=1800
        )

    run.command = [MAYFLY, "sim"]
    return run


@pytest.fixture(scope="session")
def first(folder, sim):
    """The process, and the folder with the statistics of 20000 turns."""
    return sim("--out", "first", "--", "./churn", "20000"), folder / "first/stats.json"


@pytest.fixture(scope="session")
def image(first):
    """A small image: busybox as the shell, the C library, the kernel that a static program's run has. It is
    kept by what is in it, since its snapshot is."""
    assert first[0].returncode == 3, first[0].stderr
    kernel = (CACHE / "image/latest-stock-6.12/kernel").resolve()
    loader, library = "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"
    parts = {"/bin/busybox": "bin/sh", loader: loader[1:], library: library[1:]}
    content = b"".join(Path(part).read_bytes() for part in parts) + str(kernel).encode()
    image = CACHE / f"sim-test-image/{hashlib.sha256(content).hexdigest()[:16]}"
    if image.is_dir():
        return image
    image.parent.mkdir(exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=image.parent))
    tree = made / "tree"
    for part, place in parts.items():
        (tree / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(part, tree / place)
    (tree / "etc").mkdir()
    (tree / "etc/passwd").write_text("the image's\n")
    with open(made / "initrd", "wb") as file:
        names = subprocess.run(["find", "."], cwd=tree, check=True, capture_output=True).stdout
        pack = ["cpio", "--quiet", "-o", "-H", "newc", "--owner=0:0"]
        file.write(subprocess.run(pack, cwd=tree, input=names, check=True, capture_output=True).stdout)
    known = {"kernel": str(kernel), "initrd": "initrd", "environment": {"c": {"native": {}}}}
    (made / "image.json").write_text(json.dumps(known))
    return made.rename(image)
