"""Programs that tests need and Debian lacks, built from Go modules and cached by the sources' hash."""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess

# From this version on Go gets what a module asks for from the module proxy, which Debian's packages turn off.
FETCHES_ITS_SUCCESSORS = (1, 21)


class Missing(Exception):
    """The program cannot be built; the text has the reason."""


def go_version(name):
    try:
        done = subprocess.run(["go", "env", "GOVERSION"], cwd="/", capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as why:
        raise Missing(f"needs Go, to build {name}") from why
    return tuple(int(part) for part in re.findall(r"\d+", done.stdout)[:2])


def built(name, sources, packages, tags=""):
    """The folder with the programs of a module's packages; the first build takes minutes."""
    caches = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    cache = caches / "mayfly" / name
    digest = hashlib.sha256(tags.encode())
    for file in sorted(sources.rglob("*")):
        if file.is_file():
            digest.update(file.read_bytes())
    folder = cache / digest.hexdigest()[:16]
    if not folder.exists():
        version = go_version(name)
        oldest = re.search(r"^go (\d+)\.(\d+)", (sources / "go.mod").read_text(), re.M)
        if version < min(FETCHES_ITS_SUCCESSORS, tuple(int(part) for part in oldest.groups())):
            raise Missing(f"needs Go {oldest[1]}.{oldest[2]}, to build {name}; here is {version}")
        fresh = cache / f".{folder.name}.{os.getpid()}"
        fresh.mkdir(parents=True)
        command = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-tags", tags, "-o", f"{fresh}/"]
        command += packages
        environment = {"GOTOOLCHAIN": "auto"} | os.environ
        environment |= {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}
        done = subprocess.run(
            command, cwd=sources, env=environment, capture_output=True, text=True, timeout=3000
        )
        if done.returncode:
            shutil.rmtree(fresh)
            raise Missing(f"{name} cannot be built: {done.stderr[-500:]}")
        for old in cache.iterdir():
            if not old.name.startswith("."):
                shutil.rmtree(old)
        fresh.rename(folder)
    return folder
