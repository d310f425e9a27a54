"""Small templates as people write them, each with what must come of it: the files in `templates/`."""

import dataclasses
import io
import pathlib
import zipfile

import yaml

# The host's own Python, by Lambda's name.
PYTHON = pathlib.Path("/usr/bin/python3").resolve().name
FOLDER = pathlib.Path(__file__).parent / "templates"
EMPTY_ARCHIVE = b"PK\x05\x06" + bytes(18)


@dataclasses.dataclass
class Case:
    """A template, and what is beside it. See `templates/code.yaml` for the rest."""

    template: str
    file: str = "template.yaml"
    files: dict = dataclasses.field(default_factory=dict)
    options: list = dataclasses.field(default_factory=list)
    served: dict = dataclasses.field(default_factory=dict)
    failed: dict = dataclasses.field(default_factory=dict)
    lines: list = dataclasses.field(default_factory=list)
    routes: list | None = None
    queues: list | None = None
    schedules: list | None = None

    def written(self, folder):
        """Writes it into a folder; returns the template's path."""
        files = {"code/bootstrap": "#!", "code/app.py": "1\n", **self.files, self.file: self.template}
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            content = EMPTY_ARCHIVE if text == "EMPTY_ARCHIVE" else text
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(folder / self.file)


def of(text, **more):
    """A case of a template's text."""
    if "Transform" not in text and not text.startswith("{"):
        text = f"Transform: AWS::Serverless-2016-10-31\n{text}"
    return Case(text.replace("HOST_PYTHON", PYTHON), **more)


def read(file):
    cases = yaml.safe_load(file.read_text())
    return {name: of(case.pop("template"), **case) for name, case in cases.items()}


CASES = {name: case for file in sorted(FOLDER.glob("*.yaml")) for name, case in read(file).items()}


def archive(**files):
    """A .zip of files; a text that begins with `->` is a link's."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as into:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o120777 if text.startswith("->") else 0o100644) << 16
            into.writestr(entry, text.removeprefix("->"))
    return made.getvalue()
