"""The heap in container images: one library for every C library, after the image's own preloads."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest
from calls import invoke
from conftest import HERE, Worker
from images import Image, create_image, layer

HEAP = "/dev/mayfly/libmayfly_heap.so"
THEIRS = "/lib/theirs.so"
COMPILERS = {"glibc": ["gcc"], "musl": ["musl-gcc"], "static": ["musl-gcc", "-static"]}
BOOTSTRAP = r"""#!/bin/busybox sh
api=http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation
while busybox wget -q -S -O /tmp/event $api/next 2>/tmp/headers; do
    id=$(busybox sed -n 's/\r$//; s/.*[Ll]ambda-[Rr]untime-[Aa]ws-[Rr]equest-[Ii]d: //p' /tmp/headers)
    busybox wget -q -O - --post-data "$(/bin/allocates)" $api/$id/response
done
"""

pytestmark = pytest.mark.skipif(
    not all(shutil.which(tool) for tool in ("gcc", "musl-gcc", "busybox")),
    reason="compiles programs for glibc and musl: apt install gcc musl-tools busybox-static",
)


def image(place, libc, **config):
    """A program for one C library, its libraries and one of its own, and a static shell that runs it."""
    folder = place / libc
    folder.mkdir(exist_ok=True)
    program, theirs = folder / "allocates", folder / "theirs.so"
    (folder / "theirs.c").write_text("int of_the_image(void) { return 1; }\n")
    compiler = COMPILERS[libc]
    subprocess.run([*compiler, "-O2", "-o", program, HERE / "functions/allocates.c"], check=True)
    subprocess.run(
        [compiler[0], "-shared", "-fPIC", "-nostdlib", "-o", theirs, folder / "theirs.c"], check=True
    )
    libraries = []
    if libc == "glibc":
        linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        libraries = re.findall(r"(/\S+) \(0x", linked)
    elif libc == "musl":
        libraries = ["/lib/ld-musl-x86_64.so.1"]
    files = [(name[1:], pathlib.Path(os.path.realpath(name))) for name in libraries]
    files += [("bin/allocates", program), (THEIRS[1:], theirs), ("bin/busybox", pathlib.Path("/bin/busybox"))]
    (folder / "bootstrap").write_text(BOOTSTRAP)
    (folder / "bootstrap").chmod(0o755)
    files.append(("bootstrap", folder / "bootstrap"))
    return Image(layer(*files), Entrypoint=["/bootstrap"], **config).archive(place / f"{libc}.tar")


def answer_of(running, name, uri, **settings):
    client = running.client()
    create_image(client, name, uri, **settings)
    answer, error = invoke(client, name, {})
    assert error is None, answer
    client.delete_function(FunctionName=name)
    return answer


@pytest.mark.parametrize("libc", ["glibc", "musl"])
def test_image_programs_load_the_heap_after_their_own_preloads(running, place, libc):
    uri = image(place, libc, Env=["PATH=/bin"])
    assert answer_of(running, libc, uri) == {"malloc": HEAP, "preloaded": HEAP, "pages": "base", "theirs": 0}
    uri = image(place, libc, Env=["PATH=/bin", f"LD_PRELOAD={THEIRS}"])
    both = {"malloc": HEAP, "preloaded": f"{THEIRS}:{HEAP}", "pages": "base", "theirs": 1}
    assert answer_of(running, libc, uri) == both
    # The function's own setting stays unchanged, as for other functions.
    answer = answer_of(running, libc, uri, Environment={"Variables": {"LD_PRELOAD": THEIRS}})
    assert HEAP not in answer["malloc"] and answer["preloaded"] == THEIRS and answer["theirs"] == 1


def test_static_image_program_runs_unchanged(running, place):
    answer = answer_of(running, "static", image(place, "static", Env=["PATH=/bin"]))
    assert answer == {"malloc": "", "preloaded": HEAP, "pages": "base", "theirs": 0}


def test_without_heap_an_image_has_no_preload(place):
    with Worker("--code-from", str(place), "--without", "heap") as running:
        answer = answer_of(running, "none", image(place, "glibc", Env=["PATH=/bin"]))
        assert HEAP not in answer["malloc"] and answer["preloaded"] == answer["pages"] == ""
