"""Container images for the tests, in OCI's format and `docker save`'s, and a registry."""

import contextlib
import gzip
import hashlib
import http.server
import io
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import threading

from calls import EXTENSION, PYTHON

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def member(name, kind=tarfile.REGTYPE, mode=0o644, link="", **fields):
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname = kind, mode, link
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def link(name, target):
    return member(name, tarfile.SYMTYPE, link=target)


def hard_link(name, target):
    return member(name, tarfile.LNKTYPE, link=target)


def folder(name, mode=0o755):
    return member(name, tarfile.DIRTYPE, mode)


def layer(*entries, form=tarfile.PAX_FORMAT):
    """An archive of members, or of pairs of a member or name, and a content or a path of this host's."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as archive:
        for entry in entries:
            info, content = entry if isinstance(entry, tuple) else (entry, b"")
            if isinstance(content, pathlib.Path):
                archive.add(content, info, filter=plain)
                continue
            info = member(info) if isinstance(info, str) else info
            # A header may claim another size than the content's, which `addfile` refuses from Python 3.13 on.
            info.size = info.size or len(content)
            made.write(info.tobuf(archive.format, archive.encoding, archive.errors))
            made.write(content)
            made.write(b"\0" * (-len(content) % tarfile.BLOCKSIZE))
            archive.offset = made.tell()
    return made.getvalue()


def plain(info):
    return None if "__pycache__" in info.name or "dist-packages" in info.name else info


def zstd(data, *options):
    """Compressed by the program of that name from a pipe, as by skopeo and buildah."""
    return subprocess.run(["zstd", "-q", *options], input=data, capture_output=True, check=True).stdout


def packed(data, how):
    """Compressed in one of the ways that layers may be: by `gzip`, by `zstd`, or not at all."""
    return {"gzip": lambda: gzip.compress(data, 1), "zstd": lambda: zstd(data), None: lambda: data}[how]()


class Image:
    """An image: its layers, each an archive, its config and its manifest."""

    def __init__(self, *layers, compress=None, contents=None, architecture="amd64", **config):
        self.layers = [packed(archive, compress) for archive in layers]
        self.config = json.dumps(
            {
                "architecture": architecture,
                "os": "linux",
                "config": config,
                "rootfs": {
                    "type": "layers",
                    "diff_ids": contents or [digest(archive) for archive in layers],
                },
            }
        ).encode()
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": self.descriptor(self.config),
                "layers": [self.descriptor(archive) for archive in self.layers],
            }
        ).encode()

    @staticmethod
    def descriptor(data, **more):
        return {"mediaType": MANIFEST, "digest": digest(data), "size": len(data), **more}

    def files(self, tag="v1"):
        """An OCI layout, by name."""
        blobs = [self.config, self.manifest, *self.layers]
        named = {"annotations": {"org.opencontainers.image.ref.name": tag}}
        index = {"schemaVersion": 2, "manifests": [self.descriptor(self.manifest, **named)]}
        return {
            "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
            "index.json": json.dumps(index).encode(),
            **{f"blobs/sha256/{digest(blob)[7:]}": blob for blob in blobs},
        }

    def write(self, place):
        for name, data in self.files().items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(data)
        return f"oci:{place}"

    def archive(self, path, compress=None):
        path.write_bytes(packed(layer(*self.files().items()), compress))
        return f"oci-archive:{path}"

    def docker_archive(self, path):
        """An archive in `docker save`'s format: a layer that occurs twice is a link to the first."""
        name = digest(self.config)[7:] + ".json"
        names, entries = [], [(name, self.config)]
        for number, archive in enumerate(self.layers):
            first = self.layers.index(archive)
            names.append(f"{number}/layer.tar")
            entries.append(
                (names[-1], archive) if first == number else link(names[-1], f"../{first}/layer.tar")
            )
        saved = [{"Config": name, "RepoTags": ["me/it:v1"], "Layers": names}]
        path.write_bytes(layer(*entries, ("manifest.json", json.dumps(saved).encode())))
        return f"docker-archive:{path}:me/it:v1"


@contextlib.contextmanager
def registry(image, index=False, change=lambda path, data: data):
    """Serves an image as 127.0.0.1:PORT/me/it:v1; `change` replaces an answer by another."""
    documents = {f"blobs/{digest(blob)}": blob for blob in [image.config, *image.layers]}
    documents[f"manifests/{digest(image.manifest)}"] = image.manifest
    documents["manifests/v1"] = image.manifest
    if index:
        of_others = Image(architecture="arm64").manifest
        platforms = [(image.manifest, "amd64"), (of_others, "arm64")]
        manifests = [
            Image.descriptor(text, platform={"os": "linux", "architecture": kind}) for text, kind in platforms
        ]
        listed = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
        documents["manifests/v1"] = json.dumps(listed).encode()
    requested = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requested.append(self.path)
            data = change(self.path, documents.get(self.path.removeprefix("/v2/me/it/")))
            if isinstance(data, str):
                self.send_response(307)
                self.send_header("Location", data)
                data = b""
            else:
                self.send_response(404 if data is None else 200)
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}", requested
    finally:
        server.shutdown()
        server.server_close()


def python_layer(client):
    """The host's interpreter, with the libraries that it, its modules and those of a folder need."""
    program = pathlib.Path(f"/usr/bin/{PYTHON}").resolve()
    modules = pathlib.Path(f"/usr/lib/{PYTHON}")
    linked = [program, *modules.glob("lib-dynload/*.so"), *client.glob("*.so")]
    needed = subprocess.run(["ldd", *linked], capture_output=True, text=True, check=True)
    words = [word for line in needed.stdout.splitlines() for word in line.split() if word.startswith("/")]
    libraries = sorted({pathlib.Path(word) for word in words if not word.endswith(":")})
    real = [("usr" + str(path) if path.parts[1].startswith("lib") else str(path)[1:]) for path in libraries]
    files = [(name, path.resolve()) for name, path in zip(real, libraries, strict=True)]
    links = [link("lib", "usr/lib"), link("lib64", "usr/lib64")]
    return layer(*links, (f"usr/bin/{PYTHON}", program), (f"usr/lib/{PYTHON}", modules), *files)


def python_layers():
    """The interpreter, and AWS' runtime interface client, which a running worker has installed for it."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    client = next((cache / "mayfly/worker/python").glob(f"*/runtime_client.{EXTENSION}-*")).parent
    return [python_layer(client), layer(("var/runtime", client))]


def root_of(function):
    """The root of a sample function's image, made by its `build`: once for each state of its sources."""
    sources = sorted(path for path in function.rglob("*") if path.is_file())
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    made = pathlib.Path(__file__).parent / f"build/{function.name}-{key}"
    if not made.exists():
        for old in made.parent.glob(f"{function.name}-*"):
            shutil.rmtree(old)
        making = made.with_name(f"{made.name}.{os.getpid()}")
        subprocess.run([function / "build", making], check=True)
        making.rename(made)
    return made


def create_image(client, name, uri, **settings):
    settings = {"MemorySize": 256, "Timeout": 60, **settings}
    code = {"ImageUri": uri}
    return client.create_function(FunctionName=name, Code=code, PackageType="Image", Role="r", **settings)
