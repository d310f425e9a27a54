"""The library of merge/ and the kernel's own tests, on the patched kernel."""

import re
import subprocess
from pathlib import Path

import pytest
from guest import run_script

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / "target/release"


def test_library_merges_by_the_kernel(kernel, compiled):
    """The library merges by the kernel, without a page store."""
    sources, flags = [ROOT / "merge/tests/programs/kernel_path.c"], ["-Wall", "-Werror"]
    flags += [f"-I{ROOT}/merge/include", f"-L{RELEASE}", "-lmayfly_merge"]
    program = compiled("kernel_path", sources, *flags)
    # With the libraries that the program needs, and the loader.
    linked = subprocess.run(
        ["ldd", program], env={"LD_LIBRARY_PATH": RELEASE}, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    needed = [program, *map(Path, re.findall(r"/\S+", linked))]
    [loader] = [path.name for path in needed if "ld-linux" in path.name]
    script = f"LD_LIBRARY_PATH=/ /{loader} /kernel_path"
    files = {path.name: path for path in needed}
    run_script(kernel / "bzImage", script, files, ["-m", "512M", "-smp", "2"], 900)


@pytest.mark.soak
def test_kernels_own_tests(linux):
    """Their results are the same as on Debian's kernel."""
    subprocess.run([ROOT / "kernel/selftests", "--kernel", linux], check=True)
