"""`mayfly up` and `mayfly load` as commands: the sample functions, the page, the metrics, usage errors."""

import html
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.error

import pytest
from calls import PYTHON, create, invoke, zipped
from conftest import HERE, MAYFLY, ROOT, TEMPLATE, Worker

FUNCTIONS = ROOT / "functions"
GOOD_OR_BAD = """
def handler(event, context):
    if not event:
        print("fails as requested")
        raise ValueError(event)
    return event
"""
CFN_LINT = pathlib.Path(sys.executable).with_name("cfn-lint")


@pytest.mark.parametrize("template", [FUNCTIONS / "template.yaml", HERE / "functions/template.yaml"])
def test_cfn_lint_accepts_templates(template):
    checked = subprocess.run([CFN_LINT, str(template)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_trace_matches_its_generator():
    subprocess.run([sys.executable, FUNCTIONS / "make_trace.py", "--check"], check=True)


def test_sample_functions_serve_a_trace(tmp_path):
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


def test_page_and_metrics_show_served_functions(worker, client):
    before = worker.figure("mayfly_invocations_total")
    invoke(client, "probe", {"do": "count"})
    assert worker.figure("mayfly_invocations_total") == before + 1
    assert worker.figure("mayfly_instance_memory_bytes") > 1 << 20
    page = worker.get("/")
    assert re.search(rf">probe</a><td>\d+<td>.*<td>{PYTHON}<td>128", page) and "://" not in page


def test_page_shows_request_outcomes_per_function():
    with Worker(TEMPLATE) as running:
        client = running.client()
        for name in ["good", "bad"]:
            create(client, name, zipped(app_py=GOOD_OR_BAD))
        for event in [1, 2, 3, 0]:
            invoke(client, "good", event)
        assert invoke(client, "bad", 0)[1] == "Unhandled"
        client.put_function_concurrency(FunctionName="bad", ReservedConcurrentExecutions=0)
        with pytest.raises(client.exceptions.TooManyRequestsException) as refused:
            invoke(client, "bad", 1)
        page = running.get("/")
        page = page[page.index("<table id=functions>") :]

        def row(name):
            found = re.search(rf"<th scope=row><a [^>]*>{name}</a>(.*?)<(tr|/table)", page)
            return [re.split("<td[^>]*>", found[1])[1:6], re.findall('title="([^"]*)"', found[1])]

        (answered, p50, p99, failed, refusals), reasons = row("good")
        assert (answered, failed, refusals, reasons) == ("4", "1", "0", [])
        assert p50.endswith("s") and p99.endswith("s"), (p50, p99)
        (answered, _, _, failed, refusals), reasons = row("bad")
        assert (answered, failed, refusals) == ("1", "1", "1")
        assert list(map(html.unescape, reasons)) == [refused.value.response["Error"]["Message"]]
        # The link in its row.
        log = running.get("/log?function=bad")
        assert "REPORT RequestId" in log and "fails as requested" in log
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+0000 ", log)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            running.get("/log?function=missing")


def test_log_option_json_prints_json_lines(tmp_path):
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen(
            [MAYFLY, "up", "--listen", "127.0.0.1:0", "--log", "json"],
            stderr=log,
            env={**os.environ, "CLICOLOR_FORCE": "1"},
        )
    deadline = time.monotonic() + 300
    while not (text := (tmp_path / "log").read_text()).endswith("\n") or "serving" not in text:
        assert running.poll() is None and time.monotonic() < deadline, text
        time.sleep(0.05)
    running.terminate()
    assert running.wait(timeout=60) == 0
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    serving = next(line for line in lines if "serving Lambda's API on http://127.0.0.1:" in line["message"])
    assert serving["level"] == "INFO" and re.match(r"\d{4}-\d\d-\d\dT", serving["timestamp"])
    assert "\x1b" not in str(lines)


def test_errors_are_printed_in_one_line():
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
