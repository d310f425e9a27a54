"""Functions that are container images: from folders, archives and a registry, built here and by podman."""

import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest
from calls import PYTHON, create, invoke, until, zipped
from conftest import Worker
from images import Image, create_image, folder, hard_link, layer, link, member, python_layers, registry

APP = """
import os, pathlib, subprocess

def handler(event, context):
    root = pathlib.Path("/")
    writable = []
    for place in event.get("write", []):
        try:
            (root / place).write_text("x")
            writable.append(place)
        except OSError:
            pass
    return {
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "files": sorted(str(path) for path in root.iterdir()),
        "read": {path: pathlib.Path(path).read_text() for path in event.get("read", [])},
        "stat": {path: stat(path) for path in event.get("stat", [])},
        "absent": [path for path in event.get("look", []) if not os.path.lexists(path)],
        "writable": writable,
        "user": os.getuid(),
        "version": context.function_version,
    }

def stat(path):
    found = os.lstat(path)
    return [oct(found.st_mode), found.st_nlink]

def other(event, context):
    return "other"
"""
ENTRY = [f"/usr/bin/{PYTHON}", "-m", "awslambdaric"]


@pytest.fixture(scope="module")
def base(running):
    return python_layers()


def python_image(base, *more, compress=None, **config):
    config = {
        "Entrypoint": ENTRY,
        "Cmd": ["app.handler"],
        "Env": ["PYTHONPATH=/var/runtime", "OF_THE_IMAGE=yes", "LANG=C"],
        "WorkingDir": "/var/task",
        **config,
    }
    return Image(*base, layer(("var/task/app.py", APP.encode())), *more, compress=compress, **config)


def test_image_from_folder_or_archive_plain_or_compressed(running, place, base):
    client = running.client()
    image = python_image(base)
    uris = {
        "folder": image.write(place / "folder"),
        "archive": image.archive(place / "image.tar"),
        "gzip": image.archive(place / "image.tar.gz", compress="gzip"),
        "zstd": image.archive(place / "image.tar.zst", compress="zstd"),
        "layers": python_image(base, compress="zstd").write(place / "zstd"),
        "docker": image.docker_archive(place / "docker.tar"),
        "path": str(place / "image.tar"),
        "tag": f"oci:{place / 'folder'}:v1",
    }
    digests = set()
    for name, uri in uris.items():
        made = create_image(client, name, uri)
        assert made["PackageType"] == "Image" and "Runtime" not in made and "Handler" not in made
        digests.add(made["CodeSha256"])
        answer, error = invoke(client, name, {"write": ["x", "var/task/x", "etc/x", "tmp/x"]})
        assert error is None, answer
        assert answer["cwd"] == "/var/task" and answer["writable"] == ["tmp/x"] and answer["user"] != 0
        environment = answer["environment"]
        assert environment["OF_THE_IMAGE"] == "yes" and environment["LANG"] == "C"
        assert environment["AWS_LAMBDA_FUNCTION_NAME"] == name
        assert environment["LD_PRELOAD"] == "/dev/mayfly/libmayfly_heap.so", "the host's only library"
        # Nothing of the host: only the image and each instance's own folders.
        own = {"/dev", "/etc", "/proc", "/tmp", "/.mask"}
        assert set(answer["files"]) == {"/usr", "/lib", "/lib64", "/var"} | own
    assert len(digests) == 1, "it is the same image"
    # It is unpacked once.
    unpacked = {
        bind
        for process in running.descendants()
        for bind in mounts(process)
        if "code-" in bind and bind.endswith("/usr")
    }
    assert len(unpacked) == 1, unpacked
    code = client.get_function(FunctionName="docker")["Code"]
    assert code["RepositoryType"] == "Image" and code["ImageUri"] == uris["docker"]
    for name in uris:
        client.delete_function(FunctionName=name)


def mounts(process):
    try:
        lines = pathlib.Path(f"/proc/{process}/mountinfo").read_text().splitlines()
    except OSError:
        return []
    return [line.split()[3] for line in lines]


def test_image_config_overrides_settings_of_the_image(running, place, base):
    client = running.client()
    uri = python_image(base).archive(place / "config.tar")
    create_image(client, "config", uri, ImageConfig={"Command": ["app.other"]}, Publish=True)
    assert invoke(client, "config", {}) == ("other", None)
    changed = client.update_function_configuration(
        FunctionName="config",
        ImageConfig={"WorkingDirectory": "/tmp"},
        Environment={"Variables": {"PYTHONPATH": "/var/runtime:/var/task", "OF_THE_IMAGE": "no"}},
    )
    assert changed["ImageConfigResponse"] == {"ImageConfig": {"WorkingDirectory": "/tmp"}}
    answer, error = invoke(client, "config", {})
    assert error is None, answer
    assert answer["cwd"] == "/tmp" and answer["environment"]["OF_THE_IMAGE"] == "no"
    assert invoke(client, "config", {}, Qualifier="1") == ("other", None), "as it was published"
    client.update_function_configuration(FunctionName="config", ImageConfig={"EntryPoint": ["/no/such"]})
    answer, error = invoke(client, "config", {})
    assert error and "/no/such" in answer["errorMessage"] + str(running.log()), answer
    for wrong in [{"Runtime": PYTHON}, {"Handler": "app.handler"}]:
        with pytest.raises(client.exceptions.InvalidParameterValueException, match="PackageType Image"):
            client.update_function_configuration(FunctionName="config", **wrong)
    with pytest.raises(client.exceptions.InvalidParameterValueException, match="belong together"):
        client.update_function_code(FunctionName="config", ZipFile=zipped(app_py=APP))
    create(client, "zipped", zipped(app_py=APP))
    with pytest.raises(client.exceptions.InvalidParameterValueException, match="belong together"):
        client.update_function_code(FunctionName="zipped", ImageUri=uri)
    with pytest.raises(client.exceptions.InvalidParameterValueException, match="PackageType Zip"):
        client.update_function_configuration(FunctionName="zipped", ImageConfig={"Command": ["a"]})
    newer = layer(("var/task/app.py", b"def handler(*_): return 'new'"))
    new = python_image(base, newer).archive(place / "new.tar")
    client.update_function_code(FunctionName="config", ImageUri=new)
    client.update_function_configuration(FunctionName="config", ImageConfig={})
    assert invoke(client, "config", {}) == ("new", None)


def test_later_image_layers_replace_hide_and_relink_earlier_files(running, place, base):
    first = layer(
        ("d/removed", b"1"),
        ("d/stays", b"1"),
        ("o/removed/deep", b"1"),
        ("replaced", b"file"),
        ("linked/x", b"1"),
        link("var/run", "/run"),
        ("run/here", b"1"),
        (member("strong", mode=0o4755), b"1"),
    )
    second = layer(
        ("d/.wh.removed", b""),
        # A layer's own files stay, before and after its mark.
        ("o/new", b"2"),
        ("o/.wh..wh..opq", b""),
        folder("replaced"),
        ("replaced/inside", b"2"),
        hard_link("d/again", "d/stays"),
        # An absolute link is resolved in the image's root.
        ("var/run/through", b"2"),
        (".wh.linked", b""),
        (".wh.never-there", b""),
        ("n" * 150 + "/" + "m" * 120, b"2"),
    )
    uri = python_image(base, first, second, compress="gzip").write(place / "layers")
    client = running.client()
    create_image(client, "layers", uri)
    long = "/" + "n" * 150 + "/" + "m" * 120
    read = ["/d/stays", "/d/again", "/o/new", "/replaced/inside", "/run/here", "/run/through", long]
    look = ["/d/removed", "/o/removed", "/linked", "/d/.wh.removed", "/o/.wh..wh..opq", "/.wh.linked"]
    answer, error = invoke(client, "layers", {"read": read, "look": look, "stat": ["/strong", "/d/again"]})
    assert error is None, answer
    assert "".join(answer["read"][path] for path in read) == "1122122"
    assert answer["absent"] == look
    assert answer["stat"] == {"/strong": ["0o100755", 1], "/d/again": ["0o100644", 2]}


def test_image_from_an_allowed_registry(place, base):
    image = python_image(base, compress="gzip")
    with registry(image, index=True) as (address, asked), Worker("--image-registry", address) as running:
        client = running.client()
        create_image(client, "remote", f"{address}/me/it:v1")
        answer, error = invoke(client, "remote", {})
        assert error is None and answer["cwd"] == "/var/task", answer
        fetched = [path for path in asked if "/blobs/" in path]
        assert len(fetched) == len(set(fetched)) == 4, "each once: three layers, and the config"
        create_image(client, "again", f"{address}/me/it:v1")
        assert len([path for path in asked if "/blobs/" in path]) == 5, "only the config"
        with pytest.raises(client.exceptions.InvalidParameterValueException, match="404"):
            create_image(client, "missing", f"{address}/me/it:v2")
        with registry(image) as (other, asked_there):
            with pytest.raises(client.exceptions.InvalidParameterValueException, match="--image-registry"):
                create_image(client, "elsewhere", f"{other}/me/it:v1")
            assert not asked_there, "the worker calls no other address of this machine"
        for uri in ["docker.io/library/busybox", "10.0.0.1:5000/a:b", "hello:latest", "oci:relative"]:
            with pytest.raises(client.exceptions.InvalidParameterValueException, match="ImageUri: "):
                create_image(client, "elsewhere", uri)


def test_callers_name_only_readable_images_in_allowed_folders(running, place, tmp_path):
    client = running.client()
    image = Image(layer(("a", b"x")), Cmd=["/a"])

    def refused(uri, reason):
        with pytest.raises(client.exceptions.InvalidParameterValueException, match=reason):
            create_image(client, "secret", uri)

    refused(image.archive(tmp_path / "image.tar"), "--code-from")
    refused(f"oci:{place}/../{tmp_path.name}", "without '..'|No such")
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    refused(image.archive(closed / "image.tar"), "closed to others")
    refused(image.write(closed / "folder"), "closed to others")
    image.archive(place / "private.tar")
    (place / "private.tar").chmod(0o600)
    refused(f"oci-archive:{place}/private.tar", "not all may read it")
    image.write(place / "private")
    (place / "private/index.json").chmod(0o600)
    refused(f"oci:{place}/private", "not all may read it")
    (place / "private/index.json").unlink()
    (place / "private/index.json").symlink_to("/etc/hostname")
    refused(f"oci:{place}/private", "outside")
    (place / "out.tar").symlink_to(tmp_path / "image.tar")
    refused(f"oci-archive:{place}/out.tar", "outside")
    os.mkfifo(place / "pipe.tar")
    refused(f"oci-archive:{place}/pipe.tar", "is no file|not all")


def test_template_images_are_unpacked_once(tmp_path, base):
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "mayfly/worker"
    own = tmp_path / "cache/mayfly/worker"
    own.mkdir(parents=True)
    (own / "python").symlink_to(cache / "python")
    image = python_image(base)
    uri = image.write(tmp_path / "image")
    template = tmp_path / "template.yaml"
    template.write_text(
        f"""
Globals: {{Function: {{Runtime: {PYTHON}, Handler: none, Timeout: 60, MemorySize: 256}}}}
Resources:
  It:
    Type: AWS::Serverless::Function
    Properties:
      {{PackageType: Image, ImageUri: '{uri}', FunctionName: it, ImageConfig: {{Command: [app.other]}}}}
    Metadata: {{Dockerfile: Dockerfile, DockerContext: ., DockerTag: v1}}
"""
    )
    for _ in range(2):
        with Worker(str(template), environment={"XDG_CACHE_HOME": str(tmp_path / "cache")}) as running:
            assert invoke(running.client(), "it", {}) == ("other", None)
        (root,) = (own / "images").iterdir()
        assert (root / "var/task/app.py").read_text() == APP
        # The second worker needs no layer.
        for archive in image.layers:
            name = image.descriptor(archive)["digest"][7:]
            (tmp_path / "image/blobs/sha256" / name).unlink(missing_ok=True)


def test_api_images_survive_the_worker_until_their_functions_are_deleted(tmp_path, place, base):
    arguments = ["--state", str(tmp_path / "state"), "--code-from", str(place)]
    uri = python_image(base).archive(place / "kept.tar")
    with Worker(*arguments) as running:
        create_image(running.client(), "one", uri, ImageConfig={"Command": ["app.other"]})
        create_image(running.client(), "two", uri)
    with Worker(*arguments) as running:
        client = running.client()
        assert invoke(client, "one", {}) == ("other", None)
        assert len(list((tmp_path / "state/code").iterdir())) == 1
        client.delete_function(FunctionName="one")
        assert invoke(client, "two", {})[0]["cwd"] == "/var/task"
        client.delete_function(FunctionName="two")
        until(lambda: not list((tmp_path / "state/code").iterdir()), "the last function is deleted")


SHELL = r"""#!/bin/sh
api=http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation
while wget -q -S -O /tmp/event $api/next 2>/tmp/headers; do
    id=$(grep -i lambda-runtime-aws-request-id /tmp/headers | tr -d '\r' | sed 's/.*: //')
    answer="{\"event\": $(cat /tmp/event), \"word\": \"$WORD\", \"cwd\": \"$(pwd)\"}"
    wget -q -O - --post-data "$answer" $api/$id/response
done
"""


@pytest.fixture(scope="module")
def storage():
    """Podman's storage, in a folder with a short name: it takes no long ones."""
    with tempfile.TemporaryDirectory(prefix="mayfly-", ignore_cleanup_errors=True) as folder:
        yield ["podman", "--root", f"{folder}/root", "--runroot", f"{folder}/run", "--storage-driver", "vfs"]


@pytest.fixture(scope="module")
def built(storage, place):
    """The tag of an image that podman has built, in its storage."""
    if not shutil.which("podman") or not shutil.which("busybox"):
        pytest.skip("builds an image by podman, of busybox")
    context = place / "context"
    context.mkdir(exist_ok=True)
    shutil.copy(shutil.which("busybox"), context / "busybox")
    (context / "bootstrap").write_text(SHELL)
    (context / "bootstrap").chmod(0o755)
    (context / "Dockerfile").write_text(
        'FROM scratch\nCOPY busybox /bin/\nRUN ["/bin/busybox", "--install", "-s", "/bin"]\n'
        "COPY bootstrap /var/task/\nENV WORD=blue\nWORKDIR /var/task\n"
        'ENTRYPOINT ["/var/task/bootstrap"]\n'
    )
    tag = "localhost/mayfly-worker-test:v1"
    building = subprocess.run([*storage, "build", "-q", "-t", tag, context], capture_output=True, text=True)
    if building.returncode:
        pytest.skip(f"podman cannot build here: {building.stderr.strip()[-200:]}")
    return tag


@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive", "oci-dir", "zstd"])
def test_image_built_and_saved_by_podman(running, place, storage, built, kind):
    saved = place / f"podman-{kind}"
    save = ["save", "-q", "--format", kind, "-o", saved, built]
    push = ["push", "-q", "--compression-format", "zstd", built, f"oci:{saved}"]
    subprocess.run([*storage, *(push if kind == "zstd" else save)], check=True, timeout=300)
    if saved.is_file():
        saved.chmod(0o644)
    transport = kind if saved.is_file() else "oci"
    client = running.client()
    create_image(client, f"podman-{kind}", f"{transport}:{saved}")
    for number in range(3):
        answer, error = invoke(client, f"podman-{kind}", number)
        assert (answer, error) == ({"event": number, "word": "blue", "cwd": "/var/task"}, None)


TEMPLATE_OF_BUILT = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Built:
    Type: AWS::Serverless::Function
    Properties: {{ PackageType: Image, FunctionName: built, ImageUri: '{built}' }}
  Absent:
    Type: AWS::Serverless::Function
    Properties: {{ PackageType: Image, FunctionName: absent, ImageUri: 'mayfly-never-built:latest' }}
"""


def test_image_in_the_store_of_podman_is_served_by_its_name(storage, built, tmp_path):
    """As `sam build` leaves it: the template has NAME:TAG."""
    (tmp_path / "podman").write_text(
        f'#!/bin/sh\nexec {shutil.which(storage[0])} {" ".join(storage[1:])} "$@"\n'
    )
    (tmp_path / "podman").chmod(0o755)
    template = tmp_path / "template.yaml"
    template.write_text(TEMPLATE_OF_BUILT.format(built=built.removeprefix("localhost/")))
    path = f"{tmp_path}:{os.environ['PATH']}"
    with Worker(str(template), environment={"PATH": path}) as running:
        client = running.client()
        answer, error = invoke(client, "built", 7)
        assert (answer, error) == ({"event": 7, "word": "blue", "cwd": "/var/task"}, None)
        assert client.get_function(FunctionName="built")["Code"]["ImageUri"] == built.removeprefix(
            "localhost/"
        )
        absent = client.get_function(FunctionName="absent")["Configuration"]
        assert (
            absent["State"] == "Failed" and "no such image in the store of podman" in absent["StateReason"]
        ), absent
