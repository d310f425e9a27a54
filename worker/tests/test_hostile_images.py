"""Hostile and damaged container images: refused in one line, and nothing is written outside."""

import json
import os
import pathlib
import subprocess
import tarfile

import pytest
from conftest import MAYFLY
from images import Image, digest, folder, hard_link, layer, link, member, registry, zstd

LISTEN = ["--listen", "127.0.0.1:0"]


def other_manifest(path, data):
    return data + b" " if data and "/manifests/sha256" in path else data


def other_layer(path, data):
    return data[:-20] if data and "/blobs/" in path and len(data) > 1000 else data


def elsewhere(path, data):
    return "http://127.0.0.1:1/secret" if "/blobs/" in path else data


@pytest.mark.parametrize(
    "change, reason", [(other_manifest, "digest"), (other_layer, "digest"), (elsewhere, "answers 307")]
)
def test_registry_answers_are_verified(tmp_path, change, reason):
    image = Image(layer(("a", os.urandom(4000))), Cmd=["/a"])
    with registry(image, index=True, change=change) as (address, _):
        assert reason in refusal(tmp_path, f"{address}/me/it:v1")


def up(folder, uri):
    """`mayfly up` with a template of one image, until it ends."""
    template = {
        "Resources": {
            "It": {
                "Type": "AWS::Serverless::Function",
                "Properties": {"PackageType": "Image", "ImageUri": uri},
            }
        }
    }
    path = folder / "template.json"
    path.write_text(json.dumps(template))
    return subprocess.run(
        [MAYFLY, "up", path, *LISTEN],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NO_COLOR": "1"},
    )


def refusal(folder, uri):
    done = up(folder, uri)
    assert done.returncode == 1, done
    (line,) = [line for line in done.stderr.splitlines() if "installing Python packages" not in line]
    assert "It: ImageUri: " in line, line
    return line


def deep():
    """Each name is short, and begins at a link to the folder made last."""
    steps = "/".join("d" * 60)
    return layer(
        *[
            entry
            for number in range(1, 8)
            for entry in [
                folder(f"l{number - 1}/{steps}" if number > 1 else steps),
                link(f"l{number}", f"l{number - 1}/{steps}" if number > 1 else steps),
            ]
        ]
    )


OUTSIDE = "OUTSIDE"
HUGE = layer((member("huge", size=20 << 30), b"x"), form=tarfile.GNU_FORMAT)
HOSTILE = {
    "dots": (("../escaped", b"x"), "leads out"),
    "dots inside": (("a/../../escaped", b"x"), "leads out"),
    "absolute": (("/escaped", b"x"), "leads out"),
    "through a link": ([link("out", OUTSIDE), ("out/escaped", b"x")], "out/escaped"),
    "through a hard link": (hard_link("passwd", "/etc/passwd"), "leads out"),
    "through a link's link": ([link("out", OUTSIDE), hard_link("kept", "out/kept")], "kept"),
    "removed through a link": ([link("out", OUTSIDE), ("out/.wh.kept", b""), ("device/", b"")], "digest"),
    "device": (member("sda", tarfile.BLKTYPE, devmajor=8, devminor=0), "sda: a device"),
    "character device": (member("mem", tarfile.CHRTYPE, devmajor=1, devminor=1), "mem: a device"),
    "pipe": (member("pipe", tarfile.FIFOTYPE), "neither a file"),
    "huge": ((member("huge", size=20 << 30), b"x"), "more than 8 GiB"),
    "huge in its header": (HUGE, "bytes that are allowed"),
    "long name": ((member("x", tarfile.GNUTYPE_LONGNAME, size=2 << 20), b"y" * (2 << 20)), "a name has"),
    "nameless": (("a/.wh...", b""), "names no file"),
    "deep": (None, "too deep"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_layer_is_refused_and_writes_nothing_outside(tmp_path, kind):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    entries, reason = HOSTILE[kind]
    archive = deep() if kind == "deep" else entries
    if not isinstance(archive, bytes):
        entries = entries if isinstance(entries, list) else [entries]
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                entry.linkname = entry.linkname.replace(OUTSIDE, str(outside))
        archive = layer(*entries)
    contents = ["sha256:" + "0" * 64] if reason == "digest" else None
    uri = Image(archive, contents=contents, Cmd=["/a"]).write(tmp_path / "image")
    before = sorted(path for path in tmp_path.rglob("*") if path.name != "template.json")
    assert reason in refusal(tmp_path, uri)
    assert sorted(path for path in tmp_path.rglob("*") if path.name != "template.json") == before
    assert (outside / "kept").read_text() == "kept" and (outside / "kept").stat().st_nlink == 1
    assert not pathlib.Path("/escaped").exists()


def zstd_frame(kind):
    archive = layer(("a", os.urandom(3 << 20)))
    if kind == "window":
        return zstd(archive, "--ultra", "--long=31", "-1")
    if kind == "cut":
        return zstd(archive)[:-1000]
    return zstd(archive)[:5] + b"\xff" * 100


@pytest.mark.parametrize(
    "kind, reason",
    [
        ("window", "2147483648 bytes of memory, at most 134217728 are allowed"),
        ("cut", "a zstd frame: "),
        ("junk", "a zstd frame: "),
    ],
)
def test_hostile_zstd_layer_is_refused_in_one_line(tmp_path, kind, reason):
    image = Image(layer(("a", b"")), Cmd=["/a"])
    hostile = zstd_frame(kind)
    uri = image.write(tmp_path / "image")
    blob = tmp_path / "image/blobs/sha256" / digest(hostile)[7:]
    blob.write_bytes(hostile)
    manifest = json.loads(image.manifest)
    manifest["layers"] = [image.descriptor(hostile)]
    text = json.dumps(manifest).encode()
    index = tmp_path / "image/index.json"
    index.write_text(json.dumps({"schemaVersion": 2, "manifests": [image.descriptor(text)]}))
    (blob.parent / digest(text)[7:]).write_bytes(text)
    line = refusal(tmp_path, uri)
    assert reason in line and "layer 1 of 1" in line
    # As a whole archive, too.
    (tmp_path / "whole").write_bytes(hostile)
    assert reason in refusal(tmp_path, str(tmp_path / "whole"))


def test_damaged_image_is_refused_in_one_line(tmp_path):
    good = Image(layer(("a", os.urandom(5000))), compress="gzip", Cmd=["/a"])
    blob = "blobs/sha256/" + good.descriptor(good.layers[0])["digest"][7:]
    uri = good.write(tmp_path / "image")
    path = tmp_path / "image" / blob
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert "digest" in refusal(tmp_path, uri), "cut short"
    path.unlink()
    assert "is missing" in refusal(tmp_path, uri)
    path.write_bytes(whole)
    for name, text, reason in [
        ("index.json", "{", "index.json is not as it should be"),
        ("index.json", '{"manifests": []}', "no image for linux on amd64"),
        ("index.json", '{"manifests": [{"digest": "md5:0"}]}', "no digest"),
    ]:
        (tmp_path / "image" / name).write_text(text)
        assert reason in refusal(tmp_path, uri)
    archive = good.archive(tmp_path / "a")
    assert "has no image for linux on amd64 called 'v2'" in refusal(tmp_path, archive + ":v2")
    (tmp_path / "cut").write_bytes((tmp_path / "a").read_bytes()[:3000])
    assert "digest" in (line := refusal(tmp_path, str(tmp_path / "cut"))) or "missing" in line, line
    for junk in (os.urandom(4000), b"a\nb\x0b\x1b[31m" * 500):
        (tmp_path / "cut").write_bytes(junk)
        assert "no archive" in refusal(tmp_path, str(tmp_path / "cut"))
    assert "No such file" in refusal(tmp_path, "oci-archive:nowhere.tar")
    other = Image(layer(("a", b"")), architecture="arm64").write(tmp_path / "other")
    assert "arm64" in refusal(tmp_path, other)
    twice = Image(layer(("a", b"")), contents=["sha256:" + "0" * 64] * 2).write(tmp_path / "twice")
    assert "1 layers and names 2" in refusal(tmp_path, twice)
