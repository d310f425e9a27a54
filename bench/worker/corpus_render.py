"""Renders every cookiecutter of a checkout into a folder, as `sam init` does that is asked nothing: each with
its own defaults, and for x86_64, which is sam's. Run by the Python of aws-sam-cli:

    worker/tests/build/venv/bin/python bench/worker/corpus_render.py CHECKOUT FOLDER
"""

import json
import shutil
import sys
from pathlib import Path

from cookiecutter.main import cookiecutter

DEFAULTS = {"architectures": {"value": ["x86_64"]}}


def main(checkout: Path, folder: Path) -> int:
    found = sorted(checkout.rglob("cookiecutter.json"))
    for file in found:
        place = folder / file.parent.relative_to(checkout)
        place.mkdir(parents=True)
        known = json.loads(file.read_text())
        given = {key: value for key, value in DEFAULTS.items() if key in known}
        cookiecutter(
            str(file.parent), no_input=True, extra_context=given, output_dir=str(place), accept_hooks=False
        )
    if (checkout / ".commit").exists():
        shutil.copy(checkout / ".commit", folder)
    print(f"{len(found)} cookiecutters", file=sys.stderr)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
