"""`mayfly up` and `mayfly load` as commands: the sample functions, the page, the figures, mistakes."""

import json
import pathlib
import re
import subprocess
import sys

import pytest
from calls import invoke
from conftest import HERE, MAYFLY, ROOT, Worker

FUNCTIONS = ROOT / "functions"
CFN_LINT = pathlib.Path(sys.executable).with_name("cfn-lint")


@pytest.mark.parametrize("template", [FUNCTIONS / "template.yaml", HERE / "functions/template.yaml"])
def test_templates_are_accepted_by_cfn_lint(template):
    checked = subprocess.run([CFN_LINT, str(template)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_trace_is_what_its_generator_makes():
    subprocess.run([sys.executable, FUNCTIONS / "make_trace.py", "--check"], check=True)


def test_the_sample_functions_serve_a_trace(tmp_path):
    """Without the model functions: their instances are so large that here they would only take turns."""
    lines = (FUNCTIONS / "trace.csv").read_text().splitlines()
    light = [line for line in lines if line.split(",")[2] not in ("image", "text")]
    assert len(light) == len(lines) - 2
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(light) + "\n")
    with Worker(str(FUNCTIONS / "template.yaml"), "--queue-wait", "150") as running:
        load = [MAYFLY, "load", "--trace", trace, "--worker", f"127.0.0.1:{running.port}"]
        load += ["--functions", "bfs,page,thumbnail,dna"]
        done = subprocess.run(
            [*load, "--seconds", "60", "--speed", "12", "--json"], capture_output=True, text=True, timeout=180
        )
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["all.sent"] == sum(int(line.split(",")[4]) for line in light[1:])
        assert result["all.succeeded"] == result["all.sent"], result
        assert 0 < result["all.latency.p50_ms"] <= result["all.latency.p99_ms"]
        assert result["elapsed_s"] > 4, "at the pace of the trace"


def test_the_page_and_the_figures_tell_what_is_served(worker, client):
    before = worker.figure("mayfly_invocations_total")
    invoke(client, "probe", {"do": "count"})
    assert worker.figure("mayfly_invocations_total") == before + 1
    assert worker.figure("mayfly_instance_memory_bytes") > 1 << 20
    page = worker.get("/")
    assert re.search(r"<th scope=row>probe<td>python3.11<td>128", page) and "://" not in page


def test_mistakes_are_told_in_one_line():
    def refusal(*arguments, environment=None):
        done = subprocess.run(
            [MAYFLY, *map(str, arguments)], capture_output=True, text=True, timeout=30, env=environment
        )
        assert done.returncode == 1, done.stderr
        lines = [line for line in done.stderr.splitlines() if line.startswith("mayfly: ")]
        assert len(lines) == 1, done.stderr
        return lines[0]

    assert refusal("up", "/nowhere.yaml") == "mayfly: /nowhere.yaml: No such file or directory"
    assert "cannot listen on 192.0.2.1:80" in refusal("up", "--listen", "192.0.2.1:80")
    assert "no worker answers at 127.0.0.1:9" in refusal(
        "load", "--trace", FUNCTIONS / "trace.csv", "--worker", "127.0.0.1:9"
    )
    assert "line 1: neither the 2019 layout" in refusal("load", "--trace", __file__)
