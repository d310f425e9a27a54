"""SnapStart of functions in Node.js: an event loop, its threads and its generators of random numbers."""

import pytest
from calls import create, invoke, until, zipped
from conftest import Worker
from test_nodejs import RUNTIME, version
from test_runtimes import needs_npm
from test_snapshots import HAS_SNAPSHOT, at_once, at_once_until, is_restored, started

pytestmark = pytest.mark.skipif(version() not in ("20", "22", "24"), reason="this host has no such Node.js")

ALL = 16
TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Globals:
  Function: { Handler: index.handler, Timeout: 60, MemorySize: 256 }
Resources:
  Usual:
    Type: AWS::Serverless::Function
    Properties: { FunctionName: usual, Runtime: %(runtime)s, CodeUri: usual }
  Keeps:
    Type: AWS::Serverless::Function
    Properties: { FunctionName: keeps, Runtime: %(runtime)s, CodeUri: keeps }
  Asks:
    Type: AWS::Serverless::Function
    Metadata: { Mayfly: { Snapshot: true } }
    Properties: { FunctionName: asks, Runtime: %(runtime)s, CodeUri: keeps }
  Connected:
    Type: AWS::Serverless::Function
    Properties: { FunctionName: connected, Runtime: %(runtime)s, CodeUri: connected }
  Threads:
    Type: AWS::Serverless::Function
    Properties: { FunctionName: threads, Runtime: %(runtime)s, CodeUri: threads }
  Newest:
    Type: AWS::Serverless::Function
    Properties: { FunctionName: newest, Runtime: nodejs24.x, CodeUri: usual }
"""
# It has used the thread pool, every generator, and a timer before it is taken.
USUAL = """
const crypto = require("node:crypto");
const fs = require("node:fs");
const { promisify } = require("node:util");
const zlib = require("node:zlib");
const { random } = Math;
const sleep = promisify(setTimeout);
const hex = (bytes) => Buffer.from(bytes).toString("hex");
const startedAs = crypto.randomUUID();
const used = [random(), crypto.randomInt(1 << 30), crypto.randomBytes(8)];
const table = Object.fromEntries(Array.from({ length: 20000 }, (_, n) => [n, [n]]));
const block = Buffer.alloc(8 << 20, "x");
let ticks = 0;
setInterval(() => (ticks += 1), 20).unref();
fs.writeFileSync("/tmp/written", "as imported");
crypto.pbkdf2("a", "b", 1000, 16, "sha256", () => {});
const pooled = promisify(crypto.randomBytes);

exports.handler = async (event) => {
  const unique = [
    random(), Math.random(), crypto.randomUUID(), crypto.randomInt(2 ** 47), hex(crypto.randomBytes(16)),
    hex(await pooled(16)), hex(crypto.webcrypto.getRandomValues(new Uint8Array(16))),
    globalThis.crypto.randomUUID(), process.env.AWS_LAMBDA_LOG_STREAM_NAME,
    crypto.generateKeyPairSync("ed25519").publicKey.export({ format: "jwk" }).x,
  ];
  const before = ticks;
  await sleep((event?.seconds ?? 0) * 1000);
  // Memory that the collector gives back and takes again.
  let parts = [];
  for (let round = 0; round < 3; round += 1) parts = Array.from({ length: 200000 }, (_, n) => ({ n }));
  const packed = await promisify(zlib.gzip)(block);
  return {
    unique, started: startedAs, sum: Object.values(table).reduce((all, [n]) => all + n, 0) + parts.at(-1).n,
    block: block.equals(zlib.gunzipSync(packed)), ticks: ticks - before > 5, number: event?.number,
    type: process.env.AWS_LAMBDA_INITIALIZATION_TYPE, stream: process.env.AWS_LAMBDA_LOG_STREAM_NAME,
    marked: "MAYFLY_SNAPSHOT" in process.env, user: process.getuid(),
    pid: process.pid === Number(fs.readlinkSync("/proc/self")), tmp: fs.readFileSync("/tmp/written", "utf8"),
    zeros: Buffer.alloc(4 << 20).every((byte) => byte === 0),
  };
};
"""
KEEPS = (
    """
const pool = new Uint8Array(256);
require("node:crypto").randomFillSync(pool);
"""
    + USUAL
)
THREADS = (
    'const { Worker } = require("node:worker_threads");\n'
    'new Worker("setInterval(() => {}, 100)", { eval: true }).unref();\n' + USUAL
)
CONNECTED = 'const server = require("node:net").createServer().listen(0);\n' + USUAL


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    codes = {"usual": USUAL, "keeps": KEEPS, "threads": THREADS, "connected": CONNECTED}
    for name, code in codes.items():
        (folder / name).mkdir()
        (folder / name / "index.js").write_text(code)
    (folder / "template.yaml").write_text(TEMPLATE % {"runtime": RUNTIME})
    with Worker(str(folder / "template.yaml"), "--memory", "8000", "--burst", str(ALL)) as worker:
        yield worker


def first_answers(answers):
    """Of restored instances, each of which may have served several requests."""
    return {answer["stream"]: answer for answer in reversed(answers) if is_restored(answer)}.values()


def unlike(answers):
    """The first answers of restored instances, of which each source of what must differ has given others."""
    first_of = first_answers(answers)
    for source in zip(*(answer["unique"] for answer in first_of), strict=True):
        assert len(set(source)) == len(source), source
    return list(first_of)


@pytest.mark.parametrize("name", ["usual", "newest"])
def test_restored_instances_share_state_and_differ_in_random_numbers(nodes, name):
    if name == "newest":
        needs_npm()
    client = nodes.client(max_pool_connections=ALL)
    first, answers = started(nodes, name), []
    # Some instances may serve two of them.
    until(lambda: answers.extend(at_once(client, name, ALL)) or len(first_answers(answers)) >= ALL)
    restored = unlike(answers)
    assert len({answer["started"] for answer in restored}) == 1
    assert first["started"] != restored[0]["started"]
    for answer in restored:
        assert answer["sum"] == sum(range(20_000)) + 199_999
        assert answer["block"] and answer["ticks"] and answer["pid"] and answer["zeros"]
        assert answer["tmp"] == "as imported" and not answer["marked"]
    assert len({answer["user"] for answer in restored}) == len(restored)


def test_packages_with_random_bytes_in_stock_start_as_ever_unless_asked_for(nodes):
    client = nodes.client(max_pool_connections=4)
    invoke(client, "keeps", {"seconds": 0})
    nodes.wait_for(r"\[keeps\] starts as ever, without a snapshot: .*it keeps random bytes")
    started(nodes, "asks")
    at_once_until(lambda some: any(map(is_restored, some)), client, "asks", 4)


def test_threads_with_a_generator_start_as_ever_unless_asked_for(nodes):
    client = nodes.client(max_pool_connections=4)
    invoke(client, "threads", {"seconds": 0})
    nodes.wait_for(r"\[threads\] starts as ever, without a snapshot: .*it keeps a thread with a generator")


def test_open_sockets_have_the_function_start_as_ever(nodes):
    client = nodes.client(max_pool_connections=4)
    assert invoke(client, "connected", {"seconds": 0})[1] is None
    nodes.wait_for(r"\[connected\] starts as ever, without a snapshot: .*the open file .* cannot be restored")
    assert not any(map(is_restored, at_once(client, "connected", 4)))


def test_failing_start_says_why_there_is_no_snapshot(running):
    code = "if (process.env.MAYFLY_SNAPSHOT) throw new TypeError('not twice');\n" + USUAL
    client, settings = running.client(), {"Runtime": RUNTIME, "Handler": "index.handler"}
    snap_start = {"SnapStart": {"ApplyOn": "PublishedVersions"}, "Timeout": 60}
    create(client, "once", zipped(**{"index.js": code}), **settings, **snap_start)
    client.publish_version(FunctionName="once")
    assert invoke(client, "once", {"seconds": 0}, Qualifier="1")[1] is None
    running.wait_for(r"\[once\] starts as ever, without a snapshot: .*not twice")


HOOKS = """
const seen = [];
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
for (const name of ["first", "second"]) {
  process.on("beforeSnapshot", async () => {
    await sleep(20);
    seen.push(`${name} before`);
  });
}
process.on("beforeSnapshot", () => exports.handler({ seconds: 0, primes: true }));
process.once("afterRestore", () => seen.push(`after in ${process.env.AWS_LAMBDA_LOG_STREAM_NAME}`));
process.on("afterRestore", async () => {
  await sleep(20);
  seen.push(`drew ${Math.random()}`);
});
let primed = 0;
exports.handler = async ({ seconds, primes }) => {
  if (primes) primed += 1;
  await sleep(1000 * seconds);
  return {
    seen, primed, type: process.env.AWS_LAMBDA_INITIALIZATION_TYPE,
    stream: process.env.AWS_LAMBDA_LOG_STREAM_NAME,
  };
};
"""


def published(client, name, code):
    settings = {"Runtime": RUNTIME, "Handler": "index.handler", "Timeout": 60}
    snap_start = {"ApplyOn": "PublishedVersions"}
    create(client, name, zipped(**{"index.js": code}), SnapStart=snap_start, **settings)
    client.publish_version(FunctionName=name)


def test_hooks_run_before_the_snapshot_and_after_each_restore(running):
    client = running.client(max_pool_connections=4)
    published(client, "hooks", HOOKS)
    running.wait_for(HAS_SNAPSHOT % "hooks")
    enough = lambda answers: len(first_answers(answers)) > 1  # noqa: E731
    answers = first_answers(at_once_until(enough, client, "hooks", 4, Qualifier="1"))
    for answer in answers:
        # Before the snapshot the last registered is the first.
        order = ["second before", "first before", "after in " + answer["stream"]]
        assert answer["seen"][:3] == order and answer["primed"] == 1, answer
    assert len({answer["seen"][3] for answer in answers}) == len(answers), "drawn by a hook"
    # Where no snapshot is taken, registering does nothing.
    answer, error = invoke(client, "hooks", {"seconds": 0})
    assert error is None and (answer["seen"], answer["primed"]) == ([], 0)


def test_hook_that_takes_too_long_has_the_instance_start(running):
    client = running.client()
    waits = "process.on('afterRestore', () => new Promise((resolve) => setTimeout(resolve, 11000)));\n"
    published(client, "late", waits + "exports.handler = async () => 'served';\n")
    running.wait_for(HAS_SNAPSHOT % "late")
    assert invoke(client, "late", Qualifier="1") == ("served", None)
    running.wait_for(r"\[late#\d+\]: starts as ever, as it was not restored: not done after 10 s")


@pytest.mark.parametrize(
    ("name", "hook", "why"),
    [
        ("rejects", "'beforeSnapshot', async () => { throw new TypeError('as asked'); }", "as asked"),
        ("waits", "'beforeSnapshot', () => new Promise(() => {})", "a hook of beforeSnapshot never ends"),
        ("throws", "'afterRestore', () => { throw new TypeError('later'); }", "it was not restored: later"),
        (
            "stays",
            "'afterRestore', () => new Promise(() => {})",
            "it was not restored: a hook of afterRestore never ends",
        ),
    ],
)
def test_failing_hooks_have_the_function_start_as_ever(running, name, hook, why):
    client = running.client()
    published(client, name, f"process.on({hook});\nexports.handler = async () => 'served';\n")
    assert invoke(client, name, Qualifier="1") == ("served", None)
    running.wait_for(rf"\[{name}\] starts as ever, without a snapshot: .*{why}")
    assert invoke(client, name, Qualifier="1") == ("served", None)
