"""An image FROM scratch as an OCI archive: image.py ROOT OUT NAME WORD...; ROOT is what the Debian package
installs, WORDs what `mayfly` runs with.

One layer: the command with the loader and the C libraries that it is linked to, and the libraries for
containers. Dates are SOURCE_DATE_EPOCH, names are sorted, so the same input gives the same archive.
"""

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path

EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
VERSION = os.environ["VERSION"]


def linked(program: Path) -> list[Path]:
    """The program's loader and libraries, at the paths where the loader finds them."""
    output = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", output)]


def add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(content), mode, EPOCH
    archive.addfile(info, io.BytesIO(content))


def layer(root: Path) -> bytes:
    files = {"usr/bin/mayfly": (root / "usr/bin/mayfly", 0o755)}
    for path in sorted((root / "usr/lib/mayfly").rglob("*.so")):
        files[str(path.relative_to(root))] = (path, 0o755)
    for path in linked(root / "usr/bin/mayfly"):
        files[str(path).lstrip("/")] = (path.resolve(), 0o755)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        folders = {str(folder) for name in files for folder in Path(name).parents if str(folder) != "."}
        for folder in sorted(folders | {"tmp", "var", "var/lib", "etc"}):
            info = tarfile.TarInfo(folder)
            mode = 0o1777 if folder == "tmp" else 0o755
            info.type, info.mode, info.mtime = tarfile.DIRTYPE, mode, EPOCH
            archive.addfile(info)
        for name, (path, mode) in sorted(files.items()):
            add(archive, name, path.read_bytes(), mode)
    return buffer.getvalue()


def main() -> None:
    root, out = Path(sys.argv[1]), Path(sys.argv[2])
    name, words = sys.argv[3], sys.argv[4:]
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, media_type: str) -> dict:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def document(value: dict, media_type: str) -> dict:
        return blob(json.dumps(value, sort_keys=True).encode(), media_type)

    kind = "application/vnd.oci.image"
    plain = layer(root)
    packed = blob(gzip.compress(plain, 9, mtime=EPOCH), f"{kind}.layer.v1.tar+gzip")
    created = datetime.fromtimestamp(EPOCH, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    config = document(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": created,
            "config": {
                "Entrypoint": ["/usr/bin/mayfly"],
                "Cmd": words,
                "Env": ["PATH=/usr/bin"],
                "Labels": {"org.opencontainers.image.version": VERSION},
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
        },
        f"{kind}.config.v1+json",
    )
    manifest = document(
        {"schemaVersion": 2, "mediaType": f"{kind}.manifest.v1+json", "config": config, "layers": [packed]},
        f"{kind}.manifest.v1+json",
    )
    manifest["annotations"] = {"org.opencontainers.image.ref.name": f"{name}:{VERSION}"}
    index = {"schemaVersion": 2, "mediaType": f"{kind}.index.v1+json", "manifests": [manifest]}
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as archive:
        add(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        add(archive, "index.json", json.dumps(index, sort_keys=True).encode())
        for digest, content in sorted(blobs.items()):
            add(archive, f"blobs/sha256/{digest}", content)


if __name__ == "__main__":
    main()
