"""The Helm chart: helm lints and renders it, the schemas accept it, its agent is the kustomization's."""

import json
import pathlib
import shutil
import sys

import pytest
from test_charts import NEWEST_KUBERNETES, OLDEST_KUBERNETES, run, tools, validate  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/mayfly"
sys.path.insert(0, str(ROOT / "node/tests"))

from go_programs import Missing, built  # noqa: E402

WORKER = ["--set", "worker.enabled=true"]
UNSIGNED = [*WORKER, "--set", "worker.allowUnsigned=true"]
REPLICAS = [*UNSIGNED, "--set", "worker.replicas=3"]


@pytest.fixture(scope="module")
def helm():
    try:
        program = built("helm", ROOT / "deploy/tests/helm", ["helm.sh/helm/v4/cmd/helm"]) / "helm"
    except Missing as why:
        pytest.skip(str(why))
    return lambda *words: run(program, *words)


@pytest.fixture
def render(helm):
    def render(*words):
        done = helm("template", "mayfly", CHART, "--namespace", "mayfly-system", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return render


def objects(text):
    """By the parser of the environment that validates."""
    read = (
        "import json, sys, yaml; json.dump([one for one in yaml.safe_load_all(sys.stdin) if one], sys.stdout)"
    )
    done = run(tools() / "python", "-c", read, input=text)
    assert done.returncode == 0, done.stderr
    return {(one["kind"], one["metadata"]["name"]): one for one in json.loads(done.stdout)}


@pytest.mark.parametrize("words", [[], UNSIGNED, REPLICAS], ids=["agent", "worker", "replicas"])
def test_helm_lints_the_chart_and_the_schemas_accept_it(helm, render, validate, tmp_path, words):  # noqa: F811
    done = helm("lint", "--strict", CHART, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    text = render(*words)
    for version in (OLDEST_KUBERNETES, NEWEST_KUBERNETES):
        done = validate(text, version, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    wrong = text.replace("terminationGracePeriodSeconds:", "terminationSeconds:")
    assert wrong != text and validate(wrong, NEWEST_KUBERNETES, tmp_path).returncode != 0


@pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl, to render the kustomization")
@pytest.mark.parametrize("kind", ["ServiceAccount", "Service", "DaemonSet"])
def test_its_agent_is_that_of_the_kustomization(render, kind):
    other = objects(run("kubectl", "kustomize", ROOT / "deploy/kubernetes").stdout)
    assert objects(render())[kind, "mayfly-node"] == other[kind, "mayfly-node"]


def test_profiles_go_to_a_bucket(render):
    words = ["--set", "node.environmentSecret=mayfly-bucket"]
    agent = objects(render(*words, "--set", "node.arguments={--profiles=s3://profiles/fleet}"))
    [container] = agent["DaemonSet", "mayfly-node"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][-1] == "--profiles=s3://profiles/fleet"
    assert container["envFrom"] == [{"secretRef": {"name": "mayfly-bucket"}}]
    assert {"name": "certificates", "mountPath": "/etc/ssl/certs", "readOnly": True} in container[
        "volumeMounts"
    ]


def test_the_worker_serves_the_functions_of_a_template(render, tmp_path):
    template = ROOT / "functions/template.yaml"
    made = objects(render(*UNSIGNED, "--set-file", f"worker.template={template}"))
    assert (
        made["ConfigMap", "mayfly-worker"]["data"]["template.yaml"].rstrip() == template.read_text().rstrip()
    )
    worker = made["DaemonSet", "mayfly-worker"]["spec"]["template"]
    [container] = worker["spec"]["containers"]
    assert "--state=/var/lib/mayfly/worker" in container["args"]
    [state] = [volume for volume in worker["spec"]["volumes"] if volume["name"] == "state"]
    assert state["hostPath"]["path"] == "/var/lib/mayfly/worker"
    other = objects(render(*UNSIGNED))["DaemonSet", "mayfly-worker"]["spec"]["template"]
    assert worker["metadata"]["annotations"] != other["metadata"]["annotations"], (
        "no rollout of a new template"
    )
    signed = objects(
        render(*WORKER, "--set", "worker.credentialsSecret=keys,worker.templateConfigMap=functions")
    )
    assert ("ConfigMap", "mayfly-worker") not in signed
    [container] = signed["DaemonSet", "mayfly-worker"]["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]


def test_kubernetes_waits_until_the_worker_has_drained(render):
    def pod(*words):
        return objects(render(*UNSIGNED, *words))["DaemonSet", "mayfly-worker"]["spec"]["template"]["spec"]

    for words, drain, grace in [
        ([], 15, 60),
        (["--set", "worker.drainSeconds=5,worker.graceSeconds=900"], 5, 900),
    ]:
        made = pod(*words)
        [container] = made["containers"]
        assert {f"--drain={drain}", f"--grace={grace}"} <= set(container["args"])
        assert made["terminationGracePeriodSeconds"] > drain + grace
        assert container["readinessProbe"]["httpGet"]["path"] == "/healthz"


def test_an_autoscaler_has_workers_on_nodes_of_their_own(render):
    made = objects(render(*REPLICAS))
    assert ("DaemonSet", "mayfly-worker") not in made
    workers = made["StatefulSet", "mayfly-worker"]["spec"]
    assert workers["replicas"] == 3 and workers["serviceName"] == "mayfly-worker"
    [rule] = workers["template"]["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert rule["labelSelector"]["matchLabels"].items() <= workers["template"]["metadata"]["labels"].items()
    [claim] = workers["volumeClaimTemplates"]
    volumes = {volume["name"] for volume in workers["template"]["spec"]["volumes"]}
    assert claim["metadata"]["name"] == "state" and "state" not in volumes
    several = objects(render(*UNSIGNED, "--set", "worker.maxUnavailable=5%"))["DaemonSet", "mayfly-worker"]
    assert several["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "5%"}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (WORKER, "worker.credentialsSecret"),
        (["--set", "node.imagge=x"], "imagge"),
        (["--set", "worker.memoryMiB=lots"], "memoryMiB"),
        (["--set", "worker.state=relative"], "state"),
        (["--set", "worker.drainSeconds=soon"], "drainSeconds"),
        (["--kube-version", "1.27.0"], "kubeVersion"),
    ],
    ids=["unsigned", "unknown", "type", "path", "seconds", "version"],
)
def test_wrong_values_are_refused(helm, words, line):
    done = helm("template", "mayfly", CHART, *words)
    assert done.returncode != 0 and line in done.stderr, done.stderr


def test_helm_takes_the_packed_chart(helm, packages):
    [packed] = packages[0].glob("mayfly-*.tgz")
    assert "mayfly-worker:0.1.0" in helm("template", "mayfly", packed, *UNSIGNED).stdout
