"""Sources of Debian's packages, and steps that prepare them."""

import os
import re
import shutil
import subprocess
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mayfly/suites"


def need(command, package):
    found = shutil.which(command)
    assert found, f"no command {command}; install the Debian package {package} ('make setup' does)"
    return found


def quietly(command, cwd=None):
    """Runs a step of preparation; its output is shown only when it fails."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def downloads():
    """The command that fetches sources; sources.list is the system's, with deb-src for deb."""
    apt = CACHE / "apt"
    for name in ("lists/partial", "archives/partial", "sources.list.d"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    files = [*Path("/etc/apt/sources.list.d").glob("debian*"), *Path("/etc/apt").glob("sources.list")]
    for file in files:
        if file.suffix in (".list", ".sources"):
            text = re.sub(r"(?m)^Types:.*", "Types: deb-src", file.read_text())
            (apt / "sources.list.d" / file.name).write_text(re.sub(r"(?m)^deb ", "deb-src ", text))
    places = {
        "Dir::Etc::sourcelist": "-",
        "Dir::Etc::sourceparts": apt / "sources.list.d",
        "Dir::State::lists": apt / "lists",
        "Dir::Cache": apt,
    }
    get = ["apt-get", *(word for key, place in places.items() for word in ("-o", f"{key}={place}"))]
    quietly([*get, "update"])
    return [*get, "source", "--download-only"]


def upstream(package, folder):
    """Unpacks into the folder what `package` is built from, as its authors publish it, without Debian's
    changes."""
    quietly([*downloads(), "--tar-only", package], folder)
    for archive in folder.glob(f"{package}_*.orig*.tar.*"):
        quietly(["tar", "--strip-components=1", "-xf", archive.name], folder)
        archive.unlink()


def source(package):
    """The unpacked source of `package`, with Debian's changes, fetched once."""
    folder = CACHE / "src" / package
    if (folder / "debian").is_dir():
        return folder
    need("dpkg-source", "dpkg-dev")
    folder.parent.mkdir(parents=True, exist_ok=True)
    quietly([*downloads(), package], folder.parent)
    description = max(folder.parent.glob(f"{package}_*.dsc"))
    quietly(["dpkg-source", "--no-check", "-x", description.name, f"{package}.new"], folder.parent)
    (folder.parent / f"{package}.new").rename(folder)
    return folder
