"""/metrics as Prometheus reads it, and the Grafana dashboard, which queries only existing metrics."""

import json
import re

import pytest
from calls import invoke, until
from conftest import ROOT, TEMPLATE, Worker

DASHBOARD = ROOT / "deploy" / "grafana-worker.json"
LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')
UNITS = ("_total", "_bytes", "_seconds", "_bucket", "_sum", "_count")
# Counts of things, which have no unit.
THINGS = {
    "mayfly_instances",
    "mayfly_queued_requests",
    "mayfly_ready_sandboxes",
    "mayfly_running_requests",
    "mayfly_stores",
    "mayfly_vm_partitions",
    "mayfly_layer",
}
THINGS |= {"mayfly_concurrency_limit"}


@pytest.fixture(scope="module")
def text():
    with Worker(TEMPLATE) as running:
        for _ in range(3):
            assert invoke(running.client(), "probe", {"do": "count"})[1] is None
        running.wait_for("REPORT")
        until(lambda: json.loads(running.get("/history"))["samples"])
        yield running.get("/metrics")


@pytest.fixture(scope="module")
def figures(text):
    """Labels and values by metric name."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = LINE.fullmatch(line).groups()
            pairs = dict(re.findall(r'([a-z]+)="([^"]*)"', labels or ""))
            found.setdefault(name, []).append((pairs, float(value)))
    return found


def test_every_metric_has_one_description_and_a_unit(text, figures):
    described = re.findall(r"^# TYPE (\S+) (counter|gauge|histogram)$", text, re.M)
    helped = re.findall(r"^# HELP (\S+) \S", text, re.M)
    names = [name for name, _ in described]
    assert names == helped and len(names) == len(set(names))
    for name in figures:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in names or base in names, name
        assert name.endswith(UNITS) or name in THINGS, f"{name} lacks its unit"
    for name, kind in described:
        assert (kind == "counter") == name.endswith("_total"), name
        assert kind != "gauge" or name in figures, f"{name} has no value"


def test_metrics_count_served_requests(figures):
    def value(name, **labels):
        return sum(value for pairs, value in figures[name] if labels.items() <= pairs.items())

    assert value("mayfly_invocations_total", outcome="succeeded") == 3
    assert value("mayfly_latency_seconds_count") == value("mayfly_latency_seconds_bucket", le="+Inf") == 3
    starts = value("mayfly_events_total", kind="ready") + value("mayfly_events_total", kind="restored")
    assert starts == value("mayfly_cold_start_seconds_count") >= 1
    assert value("mayfly_instance_memory_bytes", function="probe") > 1 << 20
    assert value("mayfly_layer", layer="heap") == 1 and value("mayfly_layer", layer="partitions") == 0
    assert value("mayfly_memory_limit_bytes") == 1500 << 20


def test_dashboard_queries_only_existing_metrics(figures):
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) > 15
    labels = {name: set().union(*(pairs for pairs, _ in found)) for name, found in figures.items()}
    for expression in queries:
        names = re.findall(r"mayfly_\w+", expression)
        assert names, expression
        for name in names:
            assert name in figures, f"{expression}: there is no {name}"
        grouped = re.findall(r"by \((\w+)\)", expression)
        filtered = re.findall(r'(\w+)=~?"', expression)
        for label in grouped + filtered:
            assert any(label in labels[name] for name in names), f"{expression}: there is no label {label}"
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in dashboard["panels"]]
    assert len(set(places)) == len(places) and all(x + w <= 24 for x, _, w, _ in places)
