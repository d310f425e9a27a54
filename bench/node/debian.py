"""Images of Debian's packages, unchanged for Mayfly."""

import hashlib
import os
import subprocess
import tarfile
from pathlib import Path

from podman4 import CDI, Podman

import node
from bench.outcome import ROOT


def image(
    podman: Podman,
    name: str,
    packages: list[str],
    files: dict[str, str] | None = None,
    trees: dict[str, Path] | None = None,
    suite: str | None = None,
) -> str:
    """Makes `localhost/NAME` of these packages, files and folders; returns the name."""
    root = root_of(packages, suite)
    archive = podman.folder / f"{name}.tar"
    archive.write_bytes(root.read_bytes())
    with tarfile.open(archive, "a") as tar:
        for place, text in (files or {}).items():
            source = podman.folder / Path(place).name
            source.write_text(text)
            tar.add(source, place)
        for place, tree in (trees or {}).items():
            tar.add(tree, place)
    podman("import", str(archive), f"localhost/{name}", timeout=600)
    archive.unlink()
    return name


def root_of(packages: list[str], suite: str | None = None) -> Path:
    """A root with these packages, of this Debian or of another suite, as a tar. It is kept: making it
    takes a minute, and is not measured.
    """
    sources = node.run(ROOT / "deploy/sources").splitlines()
    if suite:
        # Without the sources of this one's updates.
        archives = [line.split() for line in sources if "-" not in line.split()[2]]
        sources = [" ".join([kind, place, suite, *more]) for kind, place, _, *more in archives]
    digest = hashlib.sha256("\n".join([*sources, *sorted(packages)]).encode()).hexdigest()[:16]
    caches = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    archive = caches / "mayfly/images" / f"{digest}.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        fresh = archive.with_suffix(f".{os.getpid()}")
        command = ["mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(packages)}"]
        command += ["--keyring=/usr/share/keyrings", "--format=tar", "--quiet", suite or "", str(fresh), "-"]
        try:
            subprocess.run(command, input="\n".join(sources), text=True, check=True)
            fresh.rename(archive)
        finally:
            fresh.unlink(missing_ok=True)
    return archive


def clear(podman: Podman) -> None:
    """Removes the containers and files that containers and agent have left."""
    podman("rm", "--all", "--force", "--time", "0")
    podman("rmi", "--all", "--force")
    subprocess.run(
        ["umount", "--lazy", str(podman.folder / "root/overlay")], capture_output=True, check=False
    )
    for file in CDI.glob("mayfly.dev-*.json"):
        file.unlink()
