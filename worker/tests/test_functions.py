"""The sample functions: each returns a known answer, with the memory of HotMem's Table 1."""

import base64
import hashlib
import re

import pytest
from calls import invoke
from conftest import ROOT, Worker

BLACK_JPEG = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgGBgcGBQgHBwcJCQgKDBQNDAsLDBkSEw8UHRofHh0aHBwgJC4nICIsIxwcKDcpLDAxNDQ0Hyc5PTgyPC4z"
    "NDL/2wBDAQkJCQwLDBgNDRgyIRwhMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjL/wAARCAAIAAgDASIAAhEB"
    "AxEB/8QAFQABAQAAAAAAAAAAAAAAAAAAAAj/xAAUEAEAAAAAAAAAAAAAAAAAAAAA/8QAFAEBAAAAAAAAAAAAAAAAAAAAAP/EABQRAQAAAAAAAAAAAAAA"
    "AAAAAAD/2gAMAwEAAhEDEQA/AJ/AB//Z"
)
# Also computed with PyTorch, which agrees to the sixth digit.
SENTENCES = [
    ("The goalkeeper held the ball until the referee ended the match.", "sports", 0.276805),
    ("It will rain in the north until the evening.", "weather", 0.462778),
    ("Stir the onions in butter until they are golden.", "cooking", 0.217522),
]
MIB = {"image": 384, "text": 640, "bfs": 384, "page": 384, "thumbnail": 384, "dna": 384}


@pytest.fixture(scope="module")
def running():
    with Worker(str(ROOT / "functions/template.yaml")) as started:
        yield started


@pytest.fixture(scope="module")
def call(running):
    client = running.client()

    def answer(name, event):
        payload, error = invoke(client, name, event)
        assert error is None, payload
        return payload

    return answer


def test_template_declares_the_functions_and_memory_of_the_paper(running):
    listed = running.client().list_functions()["Functions"]
    assert {one["FunctionName"]: one["MemorySize"] for one in listed} == MIB


def test_image(call):
    found = call("image", {"seed": 1})
    assert found["size"] == [800, 600] and found["class"] == "safe"
    assert found["probabilities"]["unsafe"] == pytest.approx(0.00203, abs=2e-4)
    assert sum(found["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    # A black picture in the event, other than the one above.
    other = call("image", {"image": BLACK_JPEG})
    assert other["size"] == [8, 8]
    assert other["probabilities"]["unsafe"] == pytest.approx(0.0668, abs=2e-3)


def test_text(call):
    labels = ["sports", "weather", "cooking"]
    for text, label, similarity in SENTENCES:
        found = call("text", {"text": text, "labels": labels})
        assert found["label"] == label
        assert found["similarity"][label] == pytest.approx(similarity, abs=1e-4)


def test_bfs(call):
    found = call("bfs", {"size": 1000, "seed": 3})
    assert found == {"visited": 1000, "depth": 3, "last": 971, "its_parent": 493}


def test_page(call):
    found = call("page", {"name": "<you>", "rows": 3, "seed": 7})
    assert found["statusCode"] == 200
    assert "Hello, &lt;you&gt;" in found["body"]
    rows = [int(row) for row in re.findall(r"<li>(\d+)", found["body"])]
    assert rows == [339563, 993908, 158176] and f"sum {sum(rows)}:" in found["body"]


def test_thumbnail(call):
    found = call("thumbnail", {"seed": 1, "width": 64, "height": 64})
    assert found["from"] == [1920, 1080] and found["to"] == [64, 36]
    assert hashlib.sha256(base64.b64decode(found["thumbnail"])).hexdigest() == (
        "a79b283e22477098dd03634ac96a1ab11eef4d2d29e42442f92268106a7f398f"
    )


def test_dna(call):
    found = call("dna", {"sequence": "ACGTT"})
    assert found["bases"] == 5
    heights = [
        0,
        0.5,
        0,
        -0.5,
        0,
        0.5,
        1,
        0.5,
        0,
        -0.5,
        -1,
    ]  # A: up, down; C: down, up; G: up; T: down
    assert found["line"] == [[number / 2, height] for number, height in enumerate(heights)]
    assert (found["lowest"], found["highest"]) == (-1, 1)


@pytest.mark.parametrize(
    "name, event",
    [
        ("image", {"image": base64.b64encode(b"no picture").decode()}),
        ("text", {"labels": [1]}),
        ("text", {"labels": ["a"] * 101}),
        ("bfs", {"size": 1}),
        ("page", {"rows": 100_001}),
        ("thumbnail", {"width": 0}),
        ("dna", {"sequence": "ACGX"}),
    ],
)
def test_invalid_input_is_a_function_error(running, name, event):
    payload, error = invoke(running.client(), name, event)
    assert error == "Unhandled" and payload["errorType"] in ("ValueError", "UnidentifiedImageError")
