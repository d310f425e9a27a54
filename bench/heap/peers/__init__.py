"""Builds the allocators that Debian lacks (or has only old) from their authors' sources, for preloading.

Cargo only fetches: Cargo.lock pins every source by its checksum. The functions here compile as each project's
own build does for its preloaded library. Results lie in ~/.cache/mayfly/peers, under a name made from
Cargo.lock and the code here that made them: one build a machine, four minutes or so.
"""

import hashlib
import inspect
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.compiled import compiled
from bench.outcome import BenchError, say

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mayfly" / "peers"

C = ["gcc", "-std=gnu11", "-O3", "-DNDEBUG", "-fPIC", "-ftls-model=initial-exec", "-w"]
CXX = ["g++", "-O3", "-DNDEBUG", "-fPIC", "-w"]


def call(command: list, folder: Path) -> None:
    try:
        made = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise BenchError(f"{command[0]} is not installed: run 'make setup'") from error
    if made.returncode:
        raise BenchError(f"{' '.join(map(str, command))}:\n{made.stderr[-2000:]}")


def compile_all(compiler: list, sources: list[Path], folder: Path) -> list[Path]:
    """Objects of all sources, made on all processors."""
    objects = [folder / f"{number}.o" for number in range(len(sources))]
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        for _ in workers.map(
            lambda pair: call([*compiler, "-c", pair[0], "-o", pair[1]], folder),
            zip(sources, objects, strict=True),
        ):
            pass
    return objects


def snmalloc(crate: Path, folder: Path, output: Path) -> None:
    source = crate / "upstream" / "src"
    compiler = [*CXX, "-std=c++20", "-mcx16", "-mprfchw", "-fno-rtti", "-fvisibility=hidden"]
    compiler += ["-ftls-model=initial-exec", "-fomit-frame-pointer", "-ffunction-sections", f"-I{source}"]
    compiler += ["-DSNMALLOC_USE_WAIT_ON_ADDRESS=1", "-DSNMALLOC_USE_CXX11_DESTRUCTORS"]
    compiler += ['-DSNMALLOC_EXPORT=__attribute__((visibility("default")))']
    compiler += ["-DSNMALLOC_CHECK_LOADS=false", "-DSNMALLOC_PAGEID=false"]
    override = source / "snmalloc" / "override"
    objects = compile_all(compiler, [override / "malloc.cc", override / "new.cc"], folder)
    call(["g++", "-shared", "-static-libstdc++", "-o", output, *objects, "-pthread", "-latomic"], folder)


def mimalloc3(crate: Path, folder: Path, output: Path) -> None:
    source = crate / "c_src" / "mimalloc" / "v3"
    compiler = [*C, "-DMI_MALLOC_OVERRIDE", "-DMI_SHARED_LIB", "-DMI_SHARED_LIB_EXPORT", "-DMI_DEBUG=0"]
    compiler += ["-DMI_BUILD_RELEASE", "-fvisibility=hidden", "-fno-builtin-malloc", f"-I{source}/include"]
    call([*compiler, "-shared", "-o", output, source / "src" / "static.c", "-pthread"], folder)


def google_tcmalloc(crate: Path, folder: Path, output: Path) -> None:
    """The sources that the crate's build script names, and tcmalloc.cc with malloc's own names."""
    text = (crate / "build.rs").read_text()
    named = (line.strip().strip('",') for line in text.splitlines())
    sources = [crate / one for one in named if one.startswith("c_src/") and one.endswith((".cc", ".S"))]
    sources = [one for one in sources if one.parent.name != "c_src"]
    sources.append(crate / "c_src" / "tcmalloc" / "tcmalloc" / "tcmalloc.cc")
    compiler = ["g++", "-std=c++17", "-O2", "-DNDEBUG", "-fPIC", "-w", "-DTCMALLOC_INTERNAL_8K_PAGES"]
    compiler += ["-ffunction-sections", "-fdata-sections", "-fno-omit-frame-pointer"]
    compiler += [f"-I{crate}/c_src/abseil-cpp", f"-I{crate}/c_src/tcmalloc"]
    objects = compile_all(compiler, sources, folder)
    call(["g++", "-shared", "-Wl,--gc-sections", "-o", output, *objects, "-pthread"], folder)


def rpmalloc(crate: Path, folder: Path, output: Path) -> None:
    source = crate / "rpmalloc" / "rpmalloc"
    compiler = [*C, "-D_GNU_SOURCE=1", "-DENABLE_PRELOAD=1", "-DENABLE_OVERRIDE=1", "-fno-builtin-malloc"]
    call(
        [*compiler, f"-I{source}", "-shared", "-o", output, source / "rpmalloc.c", "-pthread", "-ldl"], folder
    )


def jemalloc531(crate: Path, folder: Path, output: Path) -> None:
    shutil.copytree(crate / "jemalloc", folder, dirs_exist_ok=True)
    shutil.copy(crate / "configure" / "configure", folder)
    version = crate.name.partition("+")[2]
    call(["sh", "./configure", f"--with-version={version}", "--enable-doc=no", "--enable-static=no"], folder)
    call(["make", f"-j{os.cpu_count()}", "build_lib_shared"], folder)
    shutil.copy(folder / "lib" / "libjemalloc.so.2", output)


# Name of the allocator here: the crate with its sources, and how its library is made.
BUILT: dict[str, tuple[str, Callable[[Path, Path, Path], None]]] = {
    "snmalloc": ("snmalloc-sys", snmalloc),
    "mimalloc3": ("libmimalloc-sys", mimalloc3),
    "googletcmalloc": ("libtcmalloc-sys", google_tcmalloc),
    "rpmalloc": ("rpmalloc-sys", rpmalloc),
    "jemalloc531": ("tikv-jemalloc-sys", jemalloc531),
}


def crates() -> dict[str, Path]:
    """The folders of the sources, which cargo fetches if they are missing."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    command += ["--manifest-path", str(HERE / "Cargo.toml")]
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise BenchError("cargo is not installed: run 'make setup'") from error
    if result.returncode:
        raise BenchError(f"cargo cannot fetch the allocators' sources:\n{result.stderr.strip()[-1000:]}")
    return {one["name"]: Path(one["manifest_path"]).parent for one in json.loads(result.stdout)["packages"]}


def check(library: Path) -> None:
    """Raises BenchError unless a preloading program gets all of malloc and operator new from it."""
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fno-builtin"]
    program = compiled("interposes", command, HERE / "interposes.cc")
    environment = os.environ | {"LD_PRELOAD": str(library)}
    result = subprocess.run([program, library], env=environment, capture_output=True, text=True)
    if result.returncode:
        raise BenchError(f"{library} does not interpose malloc:\n{result.stderr.strip()}")


def built(name: str) -> Path:
    """The library of that allocator, built now if it is not in the cache."""
    crate, build = BUILT[name]
    inputs = [(HERE / "Cargo.lock").read_text(), str(C), str(CXX), inspect.getsource(build)]
    folder = CACHE / hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
    output = folder / f"lib{name}.so"
    if output.exists():
        return output
    say(f"building {name} from {crate}'s sources, once")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mayfly-peer") as scratch:
        made = Path(scratch) / output.name
        (Path(scratch) / "build").mkdir()
        build(crates()[crate], Path(scratch) / "build", made)
        check(made)
        # Two runs at once may build the same: renaming makes the file appear complete, whichever run is last.
        part = output.with_suffix(f".{os.getpid()}")
        shutil.copy(made, part)
        part.rename(output)
    return output
