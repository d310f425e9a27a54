"""Functions written for Node.js: both kinds of modules, promises, callbacks, errors."""

import base64
import json
import shutil
import subprocess

import pytest
from calls import create, invoke, programs, until, zipped


def version():
    node = shutil.which("node")
    found = node and subprocess.run([node, "--version"], capture_output=True, text=True).stdout
    return found.removeprefix("v").split(".")[0] if found else None


RUNTIME = f"nodejs{version()}.x"
pytestmark = pytest.mark.skipif(version() not in ("20", "22", "24"), reason="this host has no such Node.js")


@pytest.fixture(scope="module")
def node(running):
    return running.client()


def made(client, name, handler="index.handler", files=None, **settings):
    settings = {"Runtime": RUNTIME, "Handler": handler, "MemorySize": 256, "Timeout": 20, **settings}
    return create(client, name, zipped(**files), **settings)


MODULE = """
import { setTimeout as sleep } from 'node:timers/promises';
let calls = 0;
export const handler = async (event, context) => {
  console.log('seen', { event });
  await sleep(5);
  const left = context.getRemainingTimeInMillis();
  return { event, calls: ++calls, id: context.awsRequestId, name: context.functionName,
           left: left > 1000 && left <= 20000, memory: context.memoryLimitInMB,
           region: process.env.AWS_REGION, home: process.env.HOME };
};
"""


def test_module_handler_returns_a_promise(node):
    made(node, "module", files={"index.mjs": MODULE})
    first, error = invoke(node, "module", {"a": "é"})
    assert error is None, first
    assert (first["event"], first["calls"], first["name"], first["left"]) == ({"a": "é"}, 1, "module", True)
    assert (first["memory"], first["region"], first["home"]) == ("256", "us-east-1", "/tmp")
    second = node.invoke(FunctionName="module", Payload=b"5", LogType="Tail")
    log = base64.b64decode(second["LogResult"]).decode()
    assert f"\t{second['ResponseMetadata']['RequestId']}\tINFO\tseen {{ event: 5 }}" in log
    assert json.loads(second["Payload"].read())["calls"] == 2, "the same instance"


COMMON = """
const { word } = require('words');
exports.later = { handler: (event, context, callback) => {
  context.callbackWaitsForEmptyEventLoop = event.waits;
  setTimeout(() => {}, event.leaves);
  setTimeout(() => callback(event.fails ? new TypeError('as asked') : null, word), 5);
} };
exports.nothing = (event, context, callback) => { setTimeout(() => {}, 5); };
exports.forever = async () => { await new Promise(() => {}); };
exports.thrown = () => new Promise(() => {
  setTimeout(() => { throw new RangeError('outside'); }, 5);
});
exports.rejected = () => { Promise.reject(new Error('not awaited')); setTimeout(() => {}, 5000); };
exports.exits = () => process.exit(3);
"""
WORDS = {"node_modules/words/index.js": "exports.word = 'of a package';", "src/index.js": COMMON}


@pytest.mark.skipif(version() == "24", reason="Lambda calls no handler with a callback from Node.js 24 on")
def test_callbacks_and_the_event_loop(node):
    made(node, "common", "src/index.later.handler", {"package.json": "{}", **WORDS})
    assert invoke(node, "common", {"waits": True, "leaves": 50}) == ("of a package", None)
    assert invoke(node, "common", {"waits": False, "leaves": 15000}) == ("of a package", None)
    answer, error = invoke(node, "common", {"waits": False, "leaves": 0, "fails": True})
    assert (
        error == "Unhandled" and answer["errorType"] == "TypeError" and answer["errorMessage"] == "as asked"
    )
    assert any("src/index.js" in line for line in answer["trace"])
    for name in ["nothing", "forever"]:
        made(node, name, f"src/index.{name}", WORDS)
        assert invoke(node, name, {}) == (None, None), "nothing is left to wait for"


def test_failures_outside_the_handler_are_reported(node):
    for name, kind, text in [
        ("thrown", "RangeError", "outside"),
        ("rejected", "Runtime.UnhandledPromiseRejection", "not awaited"),
        ("exits", "Runtime.ExitError", "exit"),
    ]:
        made(node, name, f"src/index.{name}", WORDS)
        for _ in range(2):
            answer, error = invoke(node, name, {})
            assert error == "Unhandled" and answer["errorType"] == kind, answer
            assert text in answer["errorMessage"]


def test_load_errors_are_reported_by_kind(node):
    for name, handler, files, kind in [
        ("missing", "none.handler", {"index.js": ""}, "Runtime.ImportModuleError"),
        ("absent", "index.handler", {"index.js": "require('nowhere')"}, "Runtime.ImportModuleError"),
        ("syntax", "index.handler", {"index.js": "exports.handler = ("}, "Runtime.UserCodeSyntaxError"),
        ("unnamed", "index.other", {"index.js": "exports.handler = 1"}, "Runtime.HandlerNotFound"),
        ("malformed", "index", {"index.js": ""}, "Runtime.MalformedHandlerName"),
        ("throws", "index.handler", {"index.mjs": "throw new RangeError('early')"}, "RangeError"),
    ]:
        made(node, name, handler, files)
        answer, error = invoke(node, name, {})
        assert (error, answer["errorType"]) == ("Unhandled", kind), answer


def test_layer_packages_can_be_required(node):
    content = zipped(**{"nodejs/node_modules/shared/index.js": "module.exports = 'of a layer';"})
    arn = node.publish_layer_version(LayerName="packages", Content={"ZipFile": content})["LayerVersionArn"]
    files = {"index.js": "const shared = require('shared'); exports.handler = async () => shared;"}
    made(node, "layered", files=files, Layers=[arn])
    assert invoke(node, "layered", {}) == ("of a layer", None)


def test_layer_packages_can_be_imported(node):
    packages = {
        "nodejs/node_modules/shared/index.js": "module.exports = 'of a layer';",
        "nodejs/node_modules/two/package.json": '{"exports": {"import": "./m.mjs", "require": "./c.js"}}',
        "nodejs/node_modules/two/m.mjs": "import it from 'shared'; export const two = `${it}, imported`;",
        "nodejs/node_modules/two/c.js": "exports.two = 'required';",
        "nodejs/node_modules/own/index.js": "module.exports = 'of a layer';",
    }
    content = zipped(**packages)
    arn = node.publish_layer_version(LayerName="modules", Content={"ZipFile": content})["LayerVersionArn"]
    code = """
import { createRequire } from 'node:module';
import own from 'own';
import { two } from 'two';
export const handler = async () => [two, own, createRequire(import.meta.url)('two').two];
export const nothing = () => { setTimeout(() => {}, 5); };
"""
    own = {"node_modules/own/index.js": "module.exports = 'own';"}
    made(node, "importing", files={"index.mjs": code, **own}, Layers=[arn])
    assert invoke(node, "importing", {}) == (["of a layer, imported", "own", "required"], None)
    made(node, "idles", "index.nothing", files={"index.mjs": code, **own}, Layers=[arn])
    assert invoke(node, "idles", {}) == (None, None), "hooks leave the event loop empty"
    made(node, "lacks", files={"index.mjs": "import 'nowhere'; export const handler = 1;"}, Layers=[arn])
    answer, error = invoke(node, "lacks", {})
    assert (error, answer["errorType"]) == ("Unhandled", "Error"), answer
    assert "'nowhere'" in answer["errorMessage"]


def test_wrapper_starts_the_runtime(node):
    wrapper = '#!/bin/sh\nexport WRAPPED="$#"\nexec "$@"\n'
    arn = node.publish_layer_version(LayerName="wrapper", Content={"ZipFile": programs({"wrapper": wrapper})})
    variables = {"AWS_LAMBDA_EXEC_WRAPPER": "/opt/wrapper"}
    code = {"index.js": "exports.handler = async () => process.env.WRAPPED;"}
    settings = {"Layers": [arn["LayerVersionArn"]], "Environment": {"Variables": variables}}
    made(node, "wrapped", files=code, **settings)
    assert invoke(node, "wrapped", {}) == ("3", None), "the program, its heap's size and the bootstrap"


LOUD = """
import { spawnSync } from 'node:child_process';
export const handler = async ({ child, lines, length, exit }) => {
  process.stdout.write('begun\\n');
  const code = "process.stdout.write('a child\\\\n')";
  if (child) spawnSync(process.execPath, ['-e', code], { stdio: 'inherit' });
  for (let line = 0; line < lines; line++) console.log(String(line).padStart(length, '.'));
  if (exit) {
    process.stdout.write('x'.repeat(length) + '\\n');
    process.exit(3);
  }
  return lines;
};
"""


@pytest.mark.parametrize(
    "event",
    [
        {"lines": 40, "length": 5000},
        {"lines": 1, "length": 200_000},
        {"lines": 40, "length": 5000, "child": True},
        {"lines": 2, "length": 90_000, "exit": True},
    ],
)
def test_full_pipe_loses_no_output(node, running, event):
    """A pipe takes 64 KiB, and Node.js makes it non-blocking once something uses process.stdout."""
    name = f"loud-{event['lines']}-{'child' in event}"
    made(node, name, files={"index.mjs": LOUD})
    answer, error = invoke(node, name, event)
    if "exit" in event:
        assert answer["errorMessage"].endswith("exit status 3")
    else:
        assert (answer, error) == (event["lines"], None)
    logs, length = running.client(service="logs"), event["length"]
    wanted = [str(line).rjust(length, ".") for line in range(event["lines"])]
    wanted += ["x" * length] if "exit" in event else []

    def printed():
        events = logs.filter_log_events(logGroupName=f"/aws/lambda/{name}")["events"]
        texts = [event["message"].rsplit("\t", 1)[-1] for event in events]
        return [text for text in texts if len(text) == length][-len(wanted) :]

    until(lambda: printed() == wanted, lambda: [len(text) for text in printed()])
    node.delete_function(FunctionName=name)


def test_long_errors_keep_their_type_and_text(node):
    made(
        node,
        "long",
        files={
            "index.js": "exports.handler = async (event) => { throw new RangeError('y'.repeat(event)); };"
        },
    )
    for length in [70_000, 300_000, 1_200_000]:
        answer, error = invoke(node, "long", length)
        assert (error, answer["errorType"]) == ("Unhandled", "RangeError"), str(answer)[:500]
        assert answer["errorMessage"] == "y" * length


def test_large_events_and_answers(node):
    made(node, "large", files={"index.js": "exports.handler = async (event) => event;"})
    text = "é" * 1_000_000
    assert invoke(node, "large", text) == (text, None)
