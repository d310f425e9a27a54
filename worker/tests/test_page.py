"""The page at `/` and the report's file in a real browser: complete, offline, of any width, light or dark."""

import json
import os
import pathlib
import signal
import subprocess

import pytest
from browser import Browser
from calls import PYTHON, create, invoke, until, zipped
from conftest import MAYFLY, TEMPLATE, Worker

# Folder for screenshots of the tested pages, for a person to review.
PICTURES = os.environ.get("MAYFLY_PICTURES")


@pytest.fixture(scope="module")
def browser():
    with Browser() as started:
        yield started


@pytest.fixture(scope="module")
def served():
    """A worker that has served requests and has taken samples since."""
    with Worker(TEMPLATE) as running:
        client = running.client()
        for _ in range(5):
            assert invoke(client, "probe", {"do": "count"})[1] is None
        until(lambda: len(json.loads(running.get("/history"))["samples"]) >= 3)
        yield running


def picture(browser, name):
    if PICTURES:
        browser.screenshot(pathlib.Path(PICTURES, f"{name}.png"))


CHARTS = ["Memory by layer", "Memory of an instance", "Instances", "Requests", "Errors", "Latency"]


def test_page_is_complete_without_its_script(served):
    html = served.get("/")
    for chart in CHARTS:
        assert html.count(f"<figcaption><h2>{chart}</h2>") == 1
    assert html.count('<path class="area') >= 5 and "<td>" in html
    assert "probe" in html and "://" not in html


def test_page_renders_in_a_browser(browser, served):
    browser.resize(1280, 1500)
    browser.scheme("light")
    browser.open(served.url + "/?minutes=1")
    titles = browser.value("[...document.querySelectorAll('.charts h2')].map(one => one.textContent)")
    assert titles == [*CHARTS, "Merging, partitions, instances"]
    # Every area and line is drawn, and has a size.
    boxes = browser.value(
        "[...document.querySelectorAll('.plot svg')].map(svg => svg.getBoundingClientRect())"
        ".map(box => [box.width, box.height])"
    )
    assert len(boxes) == len(CHARTS) and all(width > 200 and height > 100 for width, height in boxes)
    row = browser.value(
        "[...document.querySelectorAll('#functions tbody tr')].map(row => row.innerText.split('\\t'))"
        ".find(row => row[0] === 'probe')"
    )
    # Answered, failed and refused; the runtime; busy, idle, starting or stopping.
    assert int(row[1]) >= 5 and row[4:6] == ["0", "0"] and row[6] == PYTHON
    assert sum(map(int, row[9:12])) >= 1
    picture(browser, "page-wide")
    assert browser.console() == []
    assert all(url.startswith((served.url, "data:")) for url in browser.requested())


def test_numbers_follow_the_pointer(browser, served):
    browser.resize(1280, 1500)
    browser.open(served.url + "/?minutes=1")
    middle = (
        "(plot => { const box = plot.getBoundingClientRect(); return [box.x, box.y, box.width, box.height] })"
    )
    x, y, width, height = browser.value(f"{middle}(document.querySelector('.plot'))")
    values = "document.querySelector('.legend li').dataset.values.split(' ')"
    shown = "document.querySelector('.legend b').textContent"
    browser.point(x + 1, y + height / 2)
    browser.wait_for("document.querySelectorAll('.cursor').length === 1")
    # In one step each, since the page reloads meanwhile.
    assert browser.value(f"{shown} === format.bytes(+{values}[0])")
    browser.point(1, 1)
    browser.wait_for("document.querySelectorAll('.cursor').length === 0")
    assert browser.value(f"{shown} === format.bytes(+{values}.at(-1))")
    assert browser.console() == []


def test_page_refreshes_and_keeps_open_sections(browser, served):
    browser.open(served.url + "/?minutes=1")
    browser.value("window.marked = true; document.querySelector('details').open = true")
    answered = "+document.querySelectorAll('.tiles strong')[1].textContent"
    before = browser.value(answered)
    assert before >= 5
    invoke(served.client(), "probe", {"do": "count"})
    browser.wait_for(f"{answered} === {before} + 1")
    assert browser.value("window.marked && document.querySelector('details').open")
    assert browser.value("document.querySelectorAll('#instances tbody tr').length") >= 1
    assert browser.console() == [], "the browser refuses none of it"


@pytest.mark.parametrize("width", [320, 500, 900, 1280, 2000])
def test_page_fits_any_width(browser, served, width):
    browser.resize(width, 1000)
    browser.open(served.url + "/")
    browser.value("document.querySelector('details').open = true")
    assert browser.value("document.documentElement.scrollWidth") <= width
    picture(browser, f"page-{width}")


LONG = "a-function-with-a-name-of-sixty-four-letters-as-long-as-they-get"
FAILS = """
import os
def handler(event, context):
    if event == "exit":
        os._exit(3)
    raise ValueError(f"no {event} here: 12345")
"""


def test_page_says_why_calls_fail_and_its_tables_fit(browser):
    with Worker(TEMPLATE) as running:
        client = running.client()
        create(client, LONG, zipped(app_py=FAILS), Timeout=900, MemorySize=512)
        for event in ["a", "a", "exit"]:
            assert invoke(client, LONG, event)[1] == "Unhandled"
        client.put_function_concurrency(FunctionName="neighbour", ReservedConcurrentExecutions=0)
        with pytest.raises(client.exceptions.TooManyRequestsException):
            invoke(client, "neighbour")

        def counted():
            last = running.sample()["outcomes"]
            return last["failed"] >= 3 and last["throttled"] >= 1

        until(counted, running.log)
        browser.resize(1440, 1500)
        browser.open(running.url + "/?minutes=1")
        rows = browser.value(
            "[...document.querySelectorAll('#reasons tbody tr')].map(row => row.innerText.split('\\t'))"
        )
        reasons = {(name, times): why for name, times, _, why in rows}
        assert reasons[LONG, "2 times"] == "ValueError: no a here: 12345"
        assert "Runtime.ExitError" in reasons[LONG, "once"]
        assert "TooManyRequestsException" in reasons["neighbour", "once"]
        assert browser.value("document.querySelector('#trouble').innerText").count("ended by itself") == 1
        browser.value("document.querySelector('details').open = true")
        wide = browser.value(
            "[...document.querySelectorAll('.table')].filter(one => one.scrollWidth > one.clientWidth)"
            ".map(one => one.innerText)"
        )
        assert wide == []
        picture(browser, "page-errors")
        assert browser.console() == []


def test_page_follows_the_colour_scheme(browser, served):
    browser.resize(1280, 1500)
    colour = "getComputedStyle(document.body).backgroundColor"
    brightness = f"{colour}.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"
    for scheme, is_right in (("dark", lambda sum_: sum_ < 150), ("light", lambda sum_: sum_ > 600)):
        browser.scheme(scheme)
        browser.open(served.url + "/?minutes=1")
        assert is_right(browser.value(brightness))
        picture(browser, f"page-{scheme}")
    browser.scheme("light")


def test_report_is_one_self_contained_file(browser, served, tmp_path):
    kept, html = tmp_path / "run.json", tmp_path / "report.html"
    address = served.url.removeprefix("http://")
    made = subprocess.run(
        [MAYFLY, "report", "--worker", address, "--name", "a<b>", "--keep", kept, "-o", html, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert made.returncode == 0, made.stderr
    numbers = json.loads(made.stdout)
    assert numbers["a<b>.requests.sent"] >= 5 and numbers["a<b>.memory.peak_bytes"] > 1 << 20
    both = subprocess.run(
        [MAYFLY, "report", kept, kept, "-o", html], capture_output=True, text=True, timeout=60
    )
    assert both.returncode == 0 and "1.00×" in both.stdout, both.stdout + both.stderr
    browser.resize(1280, 1500)
    browser.open(html.as_uri())
    assert browser.value("document.querySelectorAll('.plot').length") == 2 + 2 * len(CHARTS)
    facts = browser.value("[...document.querySelectorAll('#facts tbody tr')].map(row => row.innerText)")
    assert any(line.startswith("memory of all instances, at most") for line in facts)
    picture(browser, "report")
    assert browser.console() == []
    assert browser.requested() == [html.as_uri()] or browser.requested() == [html.as_uri(), "data:,"]


def test_page_shows_a_stopped_worker(browser):
    with Worker(TEMPLATE) as running:
        browser.open(running.url + "/")
        assert browser.value("document.querySelector('#live').className") == ""
        running.stop(signal.SIGTERM)
        browser.wait_for("document.querySelector('#live').className === 'lost'")
        assert "does not answer" in browser.value("document.querySelector('#live').textContent")
