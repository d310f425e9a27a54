"""The situations of python.toml and nodejs.toml, and what of two answers to one request is compared."""

import dataclasses
import json
import re
import tomllib

from emulator import HERE

LANGUAGES = {"python": ("app.py", "app.handler"), "nodejs": ("index.mjs", "index.handler")}
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
STREAM_NAME = re.compile(r"(\d{4}/\d\d/\d\d/)?\[\$LATEST\](ID-\d+|[0-9a-f]{32})")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
# The emulator's account is 012345678912.
ACCOUNT = re.compile(r"\b(arn:aws:lambda:us-east-1):\d{12}:")
# A Node.js function's callers, which are the runtime client's own.
FRAME = re.compile(r"\s*at (?!.*/var/task/).*")
# The same as a member of an object in JSON.
STACKS = re.compile(r',?"stack":\[(?:"(?:\\.|[^"\\])*",?)*\]')
# Lines of the platform, in a log. test_call_ends.py has those of the worker.
PLATFORM = re.compile(
    r"(START|END|REPORT) RequestId: .*|INIT_(START|REPORT) .*|Executing '.*' in function directory .*"
    r"|RequestId: ID .*|Runtime\.\w+|TIME ID Task timed out after .*"
)
# What the worker puts before each line: its time and its log stream.
STREAM = re.compile(r"^\S+ \[\$LATEST\]\S+ ", re.M)


@dataclasses.dataclass
class Situation:
    language: str
    name: str
    code: str = ""
    files: dict = dataclasses.field(default_factory=dict)
    handler: str = ""
    events: list = dataclasses.field(default_factory=list)
    size: int = 0
    headers: dict = dataclasses.field(default_factory=dict)
    settings: dict = dataclasses.field(default_factory=dict)
    environment: dict = dataclasses.field(default_factory=dict)
    differs: list = dataclasses.field(default_factory=list)
    log: bool = True
    fails: bool = True

    def __post_init__(self):
        file, handler = LANGUAGES[self.language]
        self.handler = self.handler or handler
        self.files = self.files or {file: self.code}
        self.settings = {"Timeout": 20, "MemorySize": 256, **self.settings}

    @property
    def function(self):
        return f"{self.language}-{self.name}"

    def requests(self):
        """Body and headers of each."""
        sized = ['"' + "x" * (self.size - 2) + '"'] if self.size else []
        return [(body.encode(), self.headers) for body in sized + self.events]

    def write(self, root):
        for name, text in self.files.items():
            path = root / self.function / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root / self.function

    def resource(self, runtime):
        return {
            "Type": "AWS::Serverless::Function",
            "Properties": {
                "FunctionName": self.function,
                "Runtime": runtime,
                "Handler": self.handler,
                "CodeUri": f"{self.function}/",
                "Environment": {"Variables": self.environment},
                **self.settings,
            },
        }

    def emulated(self):
        """The environment of the emulator, as the images that AWS makes set it."""
        return {
            "AWS_LAMBDA_FUNCTION_NAME": self.function,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(self.settings["MemorySize"]),
            "AWS_LAMBDA_FUNCTION_TIMEOUT": str(self.settings["Timeout"]),
            "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{self.function}",
            "AWS_LAMBDA_LOG_STREAM_NAME": "STREAM",
            "AWS_REGION": "us-east-1",
            "LANG": "en_US.UTF-8",
            **self.environment,
        }


def read(language):
    data = tomllib.loads((HERE / f"{language}.toml").read_text())
    return [Situation(language, name, **settings) for name, settings in data.items()]


def write_template(root, situations, runtimes):
    resources = {}
    for number, situation in enumerate(situations):
        situation.write(root)
        resources[f"F{number}"] = situation.resource(runtimes[situation.language])
    template = root / "template.json"
    template.write_text(json.dumps({"Resources": resources}))
    return template


# ---- what is compared ----


def normalised(text, paths):
    """Without what differs between two calls; `paths` are texts in place of paths."""
    for path, name in paths.items():
        text = text.replace(str(path), name)
    text = STREAM_NAME.sub("STREAM", TIME.sub("TIME", ID.sub("ID", text)))
    return ACCOUNT.sub(r"\1:000000000000:", text)


def without_frames(value):
    """A stack trace in Node.js, without the frames of the runtime client."""
    if isinstance(value, dict):
        return {key: without_frames(part) for key, part in value.items()}
    if isinstance(value, list):
        kept = [part for part in value if not (isinstance(part, str) and FRAME.fullmatch(part))]
        return [without_frames(part) for part in kept]
    return value


def compared(answer, paths):
    """The parts of an answer: the body of an error as an object, any other as its text."""
    body = normalised(answer.body.decode(errors="backslashreplace"), paths)
    try:
        read = json.loads(body)
    except ValueError:
        read = None
    if isinstance(read, dict) and "errorType" in read:
        body = without_frames(read)
    return {"status": answer.status, "body": body}


def lines(text, paths):
    """The lines of a log that the function and its runtime have written."""
    text = STACKS.sub("", normalised(STREAM.sub("", text), paths))
    kept = [line.rstrip() for line in re.split(r"[\r\n]+", text)]
    return [line for line in kept if line and not PLATFORM.fullmatch(line) and not FRAME.fullmatch(line)]


@dataclasses.dataclass
class Difference:
    """What the cloud does otherwise than the emulator: two patterns for each part."""

    name: str
    why: str
    source: str
    status: tuple = ()
    body: tuple = ()

    def explains(self, part, theirs, ours):
        patterns = getattr(self, part, ())
        return bool(patterns) and all(
            re.fullmatch(pattern, shown(value), re.S)
            for pattern, value in zip(patterns, (theirs, ours), strict=True)
        )


def differences():
    data = tomllib.loads((HERE / "differences.toml").read_text())
    return {name: Difference(name, **settings) for name, settings in data.items()}


def shown(value):
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
