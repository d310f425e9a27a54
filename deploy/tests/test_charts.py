"""Files for clusters, each read by the program that it is for, or by that program's parser."""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from test_pages import blocks

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
sys.path.insert(0, str(ROOT / "node/tests"))

from go_programs import Missing, built  # noqa: E402

KUSTOMIZATIONS = sorted(path.parent for path in DEPLOY.glob("kubernetes*/kustomization.yaml"))
HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
OLDEST_KUBERNETES = "1.28"
NEWEST_KUBERNETES = "1.33"


def run(*words, **more):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, **more)


@pytest.fixture(scope="module")
def parsers():
    """Podman's reader of quadlets, which Debian 12's Podman lacks, and Nomad's of jobs."""
    packages = ["./hcl", "github.com/containers/podman/v5/cmd/quadlet"]
    try:
        return built("parsers", DEPLOY / "tests/parsers", packages)
    except Missing as why:
        pytest.skip(str(why))


def tools():
    """Programs of the environment that deploy/libraries makes."""
    name = hashlib.sha256((DEPLOY / "requirements.txt").read_bytes()).hexdigest()[:16]
    caches = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    return caches / "mayfly/portable" / name / "bin"


@pytest.fixture(scope="module")
def validate():
    """Validates against the schemas of Kubernetes' API."""
    program = tools() / "kubernetes-validate"

    def validate(text, version, folder):
        file = folder / "objects.yaml"
        file.write_text(text)
        return run(program, "--strict", "--kubernetes-version", version, file)

    return validate


@pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl, to render kustomizations")
@pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=lambda folder: folder.name)
def test_kubernetes_schemas_accept_the_charts(folder, validate, tmp_path):
    rendered = run("kubectl", "kustomize", folder)
    assert rendered.returncode == 0, rendered.stderr
    assert "kind: DaemonSet" in rendered.stdout and "image: mayfly-node:" in rendered.stdout
    for version in (OLDEST_KUBERNETES, NEWEST_KUBERNETES):
        done = validate(rendered.stdout, version, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    for right, wrong in (("hostPID: true", "hostPid: true"), ("port: 9117", "port: metrics")):
        assert right in rendered.stdout
        done = validate(rendered.stdout.replace(right, wrong), NEWEST_KUBERNETES, tmp_path)
        assert done.returncode != 0, f"{wrong} is accepted"


def test_kubernetes_schema_accepts_the_pod_of_the_first_steps(validate, tmp_path):
    [pod] = blocks("node-first-steps.md", "pod", "yaml")
    done = validate(pod, NEWEST_KUBERNETES, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert validate(pod.replace("command:", "commands:"), NEWEST_KUBERNETES, tmp_path).returncode != 0


def test_models_are_mounted_from_an_image(validate, tmp_path):
    [volume] = blocks("node.md", "model-image", "yaml")
    text = (DEPLOY / "kubernetes/daemonset.yaml").read_text()
    first = text.index("        - name: models\n          configMap:")
    text = text[:first] + volume
    done = validate(text, NEWEST_KUBERNETES, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert validate(text.replace("reference:", "references:"), NEWEST_KUBERNETES, tmp_path).returncode != 0


def test_podman_makes_a_unit_of_the_quadlet(parsers, tmp_path):
    def generate(text):
        (tmp_path / "mayfly-node.container").write_text(text)
        environment = {**os.environ, "QUADLET_UNIT_DIRS": str(tmp_path)}
        return run(parsers / "quadlet", "-dryrun", env=environment)

    text = (DEPLOY / "podman/mayfly-node.container").read_text()
    done = generate(text)
    assert done.returncode == 0, done.stderr
    assert "mayfly-node:0.1.0 node --nri none --domain web" in done.stdout
    assert "--cap-drop all" in done.stdout and "unsupported" not in done.stderr
    assert generate(text.replace("ReadOnly=", "ReadsOnly=")).returncode != 0


def test_nomads_parser_reads_the_job(parsers):
    done = run(parsers / "hcl", DEPLOY / "nomad/mayfly-node.nomad.hcl")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "job mayfly-node system",
        "task agent raw_exec /usr/bin/mayfly [node --nri none --domain web]",
    ]


@pytest.mark.skipif(not HAPROXY, reason="needs haproxy")
def test_haproxy_accepts_its_file(tmp_path):
    text = (DEPLOY / "haproxy/haproxy.cfg").read_text()
    in_cluster = re.sub(r"^    server worker.*\n", "", text, flags=re.M).replace("#:", "")
    assert "\nresolvers cluster" in in_cluster and in_cluster != text
    for whole in (text, in_cluster):
        (tmp_path / "haproxy.cfg").write_text(whole)
        done = run(HAPROXY, "-c", "-f", tmp_path / "haproxy.cfg")
        assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    (tmp_path / "haproxy.cfg").write_text(text.replace("hash-balance-factor 150", "hash-balance-factor 50"))
    assert run(HAPROXY, "-c", "-f", tmp_path / "haproxy.cfg").returncode != 0


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_accepts_the_units(tmp_path):
    units = tmp_path / "usr/lib/systemd/system"
    shutil.copytree("/usr/lib/systemd/system", units, symlinks=True)
    (tmp_path / "usr/bin").mkdir()
    for program in ("mayfly", "kill"):  # the units' programs have to exist
        shutil.copy("/bin/true", tmp_path / "usr/bin" / program)
    names = []
    for unit in DEPLOY.glob("mayfly-*.service"):
        shutil.copy(unit, units)
        names.append(unit.name)
    assert len(names) == 3

    def verify():
        done = run("systemd-analyze", "verify", "--man=no", f"--root={tmp_path}", *sorted(names))
        return (done.stdout + done.stderr).strip()

    assert verify() == ""
    wrong = units / "mayfly-node.service"
    wrong.write_text(wrong.read_text().replace("Restart=always", "Restart=allways"))
    assert "allways" in verify()
