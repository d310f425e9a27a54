"""A template of 60 functions: seconds until a worker serves them. Their code is a folder each, one that all
have, or a folder each below the same layers. Of three functions one is in Python and one in Node.js."""

import json
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.worker.worker import running

FUNCTIONS = 60
LAYERS = 3
KINDS = ("own", "shared", "layers")
RUNTIMES = ("python3.11", "nodejs22.x", "provided.al2023")
FILES_OF_LAYER, BYTES_OF_FILE = 700, 2000
SHARED_BYTES = 32 << 20
CODE = {
    "app.py": "def handler(event, context): return 1\n",
    "app.js": "exports.handler = async () => 1\n",
    "bootstrap": "#!/bin/sh\n",
}


def code(folder: Path) -> None:
    folder.mkdir()
    for name, text in CODE.items():
        (folder / name).write_text(text)


def written(kind: str, place: Path) -> Path:
    """The template, with all that it names."""
    resources: dict[str, dict] = {}
    layers = [f"Layer{number}" for number in range(LAYERS if kind == "layers" else 0)]
    for layer in layers:
        (place / layer / "python").mkdir(parents=True)
        for number in range(FILES_OF_LAYER):
            (place / layer / "python" / f"{layer}{number}.py").write_bytes(bytes(BYTES_OF_FILE))
        properties: dict = {"ContentUri": layer}
        resources[layer] = {"Type": "AWS::Serverless::LayerVersion", "Properties": properties}
    if kind == "shared":
        code(place / "shared")
        (place / "shared" / "data").write_bytes(bytes(SHARED_BYTES))
    for number in range(FUNCTIONS):
        own = "shared" if kind == "shared" else f"own{number}"
        if kind != "shared":
            code(place / own)
        properties = {"Runtime": RUNTIMES[number % len(RUNTIMES)], "Handler": "app.handler", "CodeUri": own}
        properties["Layers"] = [{"Ref": layer} for layer in layers]
        resources[f"F{number}"] = {"Type": "AWS::Serverless::Function", "Properties": properties}
    template = {"Metadata": {"Mayfly": {"NearestRuntime": True}}, "Resources": resources}
    (place / "template.json").write_text(json.dumps(template))
    return place / "template.json"


def starts(kind: str, rounds: int) -> dict[str, float]:
    """A worker starts again and again; the first time, which may install runtimes, does not count."""
    seconds = []
    with tempfile.TemporaryDirectory(prefix="mayfly-bench-") as place:
        template = written(kind, Path(place))
        for _ in range(rounds + 1):
            begun = time.monotonic()
            with running(template=template):
                seconds.append(time.monotonic() - begun)
    return {"serves_s": median(seconds[1:])}
