"""Requests at once: each in an instance of its own, or several in one instance, with merging and without. MiB
of each request at rest, and requests a second. An interrupted run goes on where it ended."""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import command
from bench.compiled import compiled
from bench.merge.machine import MIB
from bench.outcome import ROOT, BenchError, say, table
from bench.worker.worker import PLAIN, Worker, running

sys.path.append(str(ROOT / "worker" / "tests"))
from images import Image, layer, root_of  # noqa: E402

HERE = Path(__file__).parent
WAYS = {"own": "one request an instance", "several": "several in one instance"}
VARIANTS = {"plain": PLAIN, "mayfly": []}
COUNTS = [1, 4, 16]
MEMORY_MIB = {"own": 256, "several": 3072}
OPTIONS = ("--burst", "4", "--keep-alive", "3600", "--queue-wait", "300", "--memory", str(64 << 10))
ITEMS = 20_000
# Both hold a table of their own, and look into it for each request.
PYTHON = f"""
import json, time
TABLE = {{number: {{"id": number, "name": "item %d" % number}} for number in range({ITEMS})}}
def handler(event, context):
    time.sleep(0.005)
    return TABLE[event.get("seed", 0) % {ITEMS}]
"""
NODE = f"""
const table = new Map(Array.from({{ length: {ITEMS} }}, (_, id) => [id, {{ id, name: `item ${{id}}` }}]));
export async function handler(event) {{
  await new Promise((done) => setTimeout(done, 5));
  return table.get((event.seed ?? 0) % {ITEMS});
}}
"""
EVENTS = {
    "python": {"seed": 7},
    "node": {"seed": 7},
    "java": {"csv": "tea, cake\n2, 1\n1.5, 3\n"},
    "go": {"text": "b a b " * 500, "most": 1},
}
JAVA = ["/jre/bin/java", "-XX:+UseSerialGC", "-cp", "/var/task/*"]
CLIENT = "com.amazonaws.services.lambda.runtime.api.client.AWSLambda"


def properties(language: str, place: Path) -> dict:
    """The function's code in the folder, and its properties in a template."""
    code = place / "code"
    code.mkdir()
    if language == "java":
        root = root_of(ROOT / "functions" / "totals")
        whole = layer(*((path.name, path) for path in sorted(root.iterdir())))
        image = Image(whole, Entrypoint=[*JAVA, CLIENT], Cmd=["Totals::handleRequest"])
        return {"PackageType": "Image", "ImageUri": image.archive(place / "totals.tar")}
    of = {"CodeUri": "code", "Handler": "app.handler"}
    if language == "python":
        (code / "app.py").write_text(PYTHON)
        return of | {"Runtime": f"python3.{sys.version_info.minor}"}
    if language == "node":
        (code / "app.mjs").write_text(NODE)
        major = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
        return of | {"Runtime": f"nodejs{major.lstrip('v').split('.')[0]}.x"}
    build = ["go", "build", "-o", code / "bootstrap", "."]
    subprocess.run(build, cwd=ROOT / "functions" / "words", check=True)
    return of | {"Runtime": "provided.al2023", "Handler": "bootstrap"}


def measure(language: str, way: str, variant: str, count: int, seconds: float) -> dict[str, float]:
    """So many requests at once for a while, then all instances at rest."""
    with tempfile.TemporaryDirectory(prefix="mayfly-bench-") as folder:
        place = Path(folder)
        place.chmod(0o755)
        own = {"FunctionName": "f", "MemorySize": MEMORY_MIB[way], "Timeout": 60}
        resource = {
            "Type": "AWS::Serverless::Function",
            "Properties": own | properties(language, place),
            "Metadata": {"Mayfly": {"Concurrency": count if way == "several" else 1}},
        }
        (place / "template.json").write_text(json.dumps({"Resources": {"F": resource}}))
        with running(*VARIANTS[variant], *OPTIONS, template=place / "template.json") as worker:
            return at_once(worker, language, way, variant, count, seconds)


def at_once(worker: Worker, language: str, way: str, variant: str, count: int, seconds: float):
    event = json.dumps(EVENTS[language])
    path = "/2015-03-31/functions/f/invocations"
    wanted = count if way == "own" else 1
    worker.limit_instances("f", wanted)
    load = compiled("worker-load", ["gcc", "-O2", "-Wall", "-Wextra"], HERE / "load.c")
    # More at once than are measured: a function that answers in a millisecond has few requests waiting.
    for _ in range(30):
        warm = [load, str(worker.port), path, event, str(min(4 * count, 60)), "1"]
        subprocess.run(warm, capture_output=True)
        if len(worker.instances("f")) == wanted:
            break
    else:
        raise BenchError(f"{language}: {wanted} instances did not start")
    arguments = [load, str(worker.port), path, event, str(count), str(seconds)]
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode:
        raise BenchError(f"{language}: {done.stderr.strip()}")
    rate, p50, p99 = map(float, done.stdout.split())
    worker.wait_for_rest()
    time.sleep(2)  # a sample of the store is a second old at most
    there = worker.instances("f")
    pss, private, shared = (sum(one[f"{of}_bytes"] for one in there) for of in ("pss", "private", "shared"))
    store = worker.store_bytes() if variant == "mayfly" else 0
    return {
        "instances": len(there),
        "request_mib": (pss + max(0, store - shared)) / count / MIB,
        "private_mib": private / count / MIB,
        "rate": rate,
        "p50_ms": p50,
        "p99_ms": p99,
    }


def cases(options: argparse.Namespace) -> list[tuple[str, str, str, int]]:
    """With one request at once both ways are the same."""
    return [
        (language, way, variant, count)
        for language in options.only
        for variant in VARIANTS
        for count in options.counts
        for way in WAYS
        if count > 1 or way == "own"
    ]


class Run(command.Run):
    def all(self) -> int:
        output = self.options.output
        if output.exists() and not self.options.again:
            there = json.loads(output.read_text())
            if there.get("machine.quick") == self.options.quick:
                self.flat |= there
        for case in cases(self.options):
            prefix = ".".join(map(str, case))
            if f"{prefix}.rate" in self.flat:
                say(f"{prefix} is there")
                continue
            self.measure(prefix, measure, *case, self.options.seconds)
        return 0


def tables(flat: dict) -> None:
    for language in EVENTS:
        rows = [["at once", "way", "layers", "MiB of a request", "its own", "requests a second", "P99 ms"]]
        for _, way, variant, count in cases(argparse.Namespace(only=[language], counts=COUNTS)):
            values = [
                flat.get(f"{language}.{way}.{variant}.{count}.{key}")
                for key in ("request_mib", "private_mib", "rate", "p99_ms")
            ]
            if None not in values:
                rows.append([str(count), WAYS[way], variant, *(f"{value:.1f}" for value in values)])
        if len(rows) > 1:
            print(f"\n{language}")
            table(rows)


def template() -> str:
    """The section for bench/tables/worker.md, once the results are there."""
    ways = {"own.plain": "own, plain", "own.mayfly": "own, Mayfly"}
    ways |= {"several.plain": "several, plain", "several.mayfly": "several, Mayfly"}
    lines = ["## Several requests in one instance", "", "<!-- results: worker-several.json -->", ""]
    lines += [
        "MiB of a concurrent request at rest, and requests a second: each request in an instance of its"
    ]
    lines += ["own, or several in one instance.", ""]
    lines += ["| at once | " + " | ".join(f"{way}: MiB | a second" for way in ways.values()) + " |"]
    lines += ["| --- |" + " --- | --- |" * len(ways)]
    for language in EVENTS:
        for count in COUNTS:
            cells = [f"{language.title()}, {count}"]
            for way in ways:
                key = f"{language}.{way if count > 1 else 'own.' + way.split('.')[1]}.{count}"
                cells += [f"{{{key}.request_mib:.1f}}", f"{{{key}.rate:.0f}}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = command.parser(
        "worker/several",
        "Requests at once, one an instance and several in one instance, with merging and without",
        "language",
        {name: f"a function in {name.title()}" for name in EVENTS},
        "\nWhat the output file has already is not measured again.\n",
        "1 and 4 at once, two seconds each",
        "worker-several.json",
    )
    parser.add_argument("--again", action="store_true", help="measure what is there, too")
    parser.add_argument("--template", action="store_true", help="print the section for bench/tables and end")
    parsed = parser.parse_args()
    command.choose(parser, parsed, "only", EVENTS, all_of=True)
    needed = {"java": ("mvn", "javac", "jlink"), "go": ("go",), "node": ("node",), "python": ()}
    for language, tools in needed.items():
        if missing := [tool for tool in tools if not shutil.which(tool)]:
            say(f"{language} is left out: this host lacks {' '.join(missing)}")
            parsed.only = [one for one in parsed.only if one != language]
    parsed.counts = [1, 4] if parsed.quick else COUNTS
    parsed.seconds = 2 if parsed.quick else 5
    return parsed


if __name__ == "__main__":
    options = arguments()
    if options.template:
        sys.exit(print(template()))
    sys.exit(Run(options, lambda _: []).main(tables))
