"""Images of Debian's packages, as somebody makes them who knows nothing of Mayfly."""

import subprocess
import tarfile
from pathlib import Path

from podman4 import CDI, Podman

import node


def image(podman: Podman, folder: Path, packages: list[str], files: dict[str, str] | None = None) -> str:
    """The name of an image that has these packages and files."""
    sources = ["apt-get", "indextargets", "--format", "deb $(REPO_URI) $(RELEASE) $(COMPONENT)"]
    sources = node.run(*sources, "Created-By: Packages", "Origin: Debian")
    archive = folder / "root.tar"
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(packages)}"]
    command += ["--keyring=/usr/share/keyrings", "--format=tar", "--quiet", "", str(archive), "-"]
    subprocess.run(command, input="\n".join(sorted(set(sources.splitlines()))), text=True, check=True)
    with tarfile.open(archive, "a") as tar:
        for place, text in (files or {}).items():
            source = folder / Path(place).name
            source.write_text(text)
            tar.add(source, place)
    podman("import", str(archive), "localhost/server")
    archive.unlink()
    return "server"


def clear(podman: Podman) -> None:
    """Takes away what the containers and the agent have left."""
    podman("rm", "--all", "--force", "--time", "0")
    podman("rmi", "--all", "--force")
    subprocess.run(
        ["umount", "--lazy", str(podman.folder / "root/overlay")], capture_output=True, check=False
    )
    for file in CDI.glob("mayfly.dev-*.json"):
        file.unlink()
