"""Random histories of a function: calls one by one and at once, snapshots and restores, rests and merges,
kills, new code, published versions, and handovers of the worker. Each answer shows the whole state of its
instance, which must be as the model's: that of its code, changed by its own requests and by nothing else.

`MAYFLY_HISTORIES=1000 worker/tests/run -k histories` runs as many of them; the first has the seed
`MAYFLY_SEED`, and each further one the next number."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import os
import random
import signal
import time

import pytest
from calls import create, invoke, until, zipped
from conftest import descendants, is_store
from test_handover import succession

HISTORIES = int(os.environ.get("MAYFLY_HISTORIES", 100 if os.environ.get("MAYFLY_SOAK") else 1))
SEED = int(os.environ.get("MAYFLY_SEED", 1))
PAGES, WORDS, VERSIONS, AT_ONCE = 96, 400, 2, 3
# How often each step is in a history; all are shuffled.
STEPS = {
    "call": 10,
    "calls_at_once": 5,
    "publish": 2,
    "snapshot": 2,
    "rest": 2,
    "merge": 1,
    "kill": 2,
    "kill_while_called": 1,
    "new_code": 2,
    "hand_over": 1,
}
# How long an instance may take until it merges, which it does now and then; all else is waited for.
MERGE_S = 4
# What a caller may receive whose instance was killed.
OF_KILLS = {"Runtime.ExitError", "ServiceException"}
CODE = """
import mmap, os, random, time, uuid

REVISION = {revision}
PAGES, WORDS = {pages}, {words}
STARTED = uuid.uuid4().hex
memory = mmap.mmap(-1, PAGES << 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(PAGES):
    memory[page << 12 : (page + 1) << 12] = bytes([1 + (page + REVISION) % 200]) * 4096
words = {{n: f"{{REVISION}} {{n}}" for n in range(WORDS)}}
own, calls = None, 0

def told(page):
    values = set(memory[page << 12 : (page + 1) << 12])
    return values.pop() if len(values) == 1 else "mixed"

def handler(event, context):
    global own, calls
    own = own or uuid.uuid4().hex
    calls += 1
    for page, value in event["writes"]:
        memory[page << 12 : (page + 1) << 12] = bytes([value]) * 4096
    for page in event["empties"]:
        memory.madvise(mmap.MADV_DONTNEED, page << 12, 4096)
    for word, text in event["words"]:
        words[word] = text
    time.sleep(event["seconds"])
    return {{"own": own, "calls": calls, "revision": REVISION, "started": STARTED, "number": event["number"],
             "memory": [told(page) for page in range(PAGES)], "words": list(words.values()),
             "type": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"], "version": context.function_version,
             "unique": [random.getrandbits(64), uuid.uuid4().int, os.urandom(8).hex(), own]}}
"""


def code(revision):
    return zipped(app_py=CODE.format(revision=revision, pages=PAGES, words=WORDS))


@dataclasses.dataclass
class Model:
    """What an instance of this code has."""

    revision: int
    calls: int = 0

    def __post_init__(self):
        self.memory = [1 + (page + self.revision) % 200 for page in range(PAGES)]
        self.words = [f"{self.revision} {n}" for n in range(WORDS)]

    def run(self, event):
        self.calls += 1
        for page, value in event["writes"]:
            self.memory[page] = value
        for page in event["empties"]:
            self.memory[page] = 0
        for word, text in event["words"]:
            self.words[word] = text

    def state(self):
        return {"calls": self.calls, "revision": self.revision, "memory": self.memory, "words": self.words}


class History:
    """One function from its creation to its end, with the model of each of its instances."""

    def __init__(self, running, line, seed, total):
        self.running, self.line, self.total = running, line, total
        self.choose, self.name, self.numbers = random.Random(seed), f"history{seed}", 0
        self.client = running.client(max_pool_connections=AT_ONCE)
        self.revision, self.versions = 1, {}  # the revision of each version
        self.instances, self.unique = {}, set()
        self.started = {"on-demand": set(), "snap-start": set()}
        self.steps, self.failed, self.killed = [], 0, 0
        settings = {"SnapStart": {"ApplyOn": "PublishedVersions"}, "Timeout": 60, "MemorySize": 128}
        create(self.client, self.name, code(self.revision), **settings)

    def event(self, seconds=0.0):
        self.numbers += 1
        pages = self.choose.sample(range(PAGES), 8)
        words = self.choose.sample(range(WORDS), 5)
        return {
            "number": self.numbers,
            "seconds": seconds,
            "writes": [[page, self.choose.randrange(201, 256)] for page in pages[:5]],
            "empties": pages[5:],
            "words": [[word, f"of request {self.numbers}"] for word in words],
        }

    def qualifier(self):
        return self.choose.choice(["$LATEST", *self.versions])

    def ask(self, qualifier, event):
        """The answer, or None, if its instance was killed."""
        try:
            answer, error = invoke(self.client, self.name, event, Qualifier=qualifier)
            kind = answer["errorType"] if error else None
        except self.client.exceptions.ClientError as refused:
            kind, answer = refused.response["Error"]["Code"], refused
        if kind is None:
            return answer
        assert kind in OF_KILLS, (kind, answer)
        self.failed += 1
        assert self.failed <= self.killed, (answer, "although nothing was killed")
        return None

    def check(self, qualifier, asked):
        """Answers and their events, of calls that may have run one after the other in one instance."""
        for answer, event in sorted(asked, key=lambda pair: pair[0]["calls"]):
            revision = self.versions.get(qualifier, self.revision)
            model = self.instances.setdefault(answer["own"], Model(revision))
            model.run(event)
            assert (answer["number"], answer["version"]) == (event["number"], qualifier)
            assert {key: answer[key] for key in model.state()} == model.state()
            drawn = answer["unique"][:3] if model.calls > 1 else answer["unique"]
            assert not self.unique & set(drawn), "a random number was there before"
            self.unique |= set(drawn)
            self.started[answer["type"]].add(answer["started"])
            assert not set.intersection(*self.started.values())
            self.total[answer["type"]] += 1

    def call(self, qualifier=None):
        qualifier, event = qualifier or self.qualifier(), self.event()
        if answer := self.ask(qualifier, event):
            self.check(qualifier, [(answer, event)])

    def calls_at_once(self, qualifier=None, seconds=0.2):
        qualifier = qualifier or self.qualifier()
        events = [self.event(seconds) for _ in range(AT_ONCE)]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
            answers = list(threads.map(lambda event: self.ask(qualifier, event), events))
        self.check(qualifier, [pair for pair in zip(answers, events, strict=True) if pair[0]])

    def publish(self):
        if len(self.versions) == VERSIONS:
            oldest = next(iter(self.versions))
            self.client.delete_function(FunctionName=self.name, Qualifier=oldest)
            del self.versions[oldest]
        version = self.client.publish_version(FunctionName=self.name)["Version"]
        self.versions[version] = self.revision

    def snapshot(self):
        """Until each version has a snapshot, or has failed to have one: it may have been killed."""
        for version in self.versions:

            def state(version=version):
                about = {"FunctionName": self.name, "Qualifier": version}
                return self.client.get_function_configuration(**about)["State"]

            until(lambda state=state: state() != "Pending")
            self.calls_at_once(version)

    def rest(self):
        before = self.running.figure("mayfly_rests_total")
        with contextlib.suppress(AssertionError):
            until(lambda: self.running.figure("mayfly_rests_total") > before, seconds=1)
        self.total["rests"] += int(self.running.figure("mayfly_rests_total") - before)

    def merge(self):
        """Instances merge at a rest after their second request."""
        qualifier = self.qualifier()
        for _ in range(2):
            self.call(qualifier)

        def merged():
            return len(self.running.events("merge", function=self.name))

        before = merged()
        with contextlib.suppress(AssertionError):
            until(lambda: merged() > before, seconds=MERGE_S)
        self.total["merges"] += merged() - before
        self.call(qualifier)

    def kill(self):
        below = sorted(descendants(self.line.now))
        found = [one for one in below if self.choose.random() < 0.8 or is_store(one)]
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(self.choose.choice(found), signal.SIGKILL)
            self.killed += 1
            self.total["kills"] += 1

    def kill_while_called(self):
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            called = thread.submit(self.calls_at_once, self.qualifier())
            time.sleep(self.choose.random() * 0.3)
            self.kill()
            called.result()

    def new_code(self):
        self.revision += 1
        self.client.update_function_code(FunctionName=self.name, ZipFile=code(self.revision))

    def hand_over(self):
        self.line.hand_over()
        self.total["handovers"] += 1

    def run(self):
        steps = [name for name, times in STEPS.items() for _ in range(times)]
        self.choose.shuffle(steps)
        for name in ["publish", "snapshot", *steps, "snapshot"]:
            self.steps.append(name)
            getattr(self, name)()
        self.client.delete_function(FunctionName=self.name)
        until(lambda: self.running.figure("mayfly_instances") == 0, self.running.state)


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    state = tmp_path_factory.mktemp("state")
    settings = ["--burst", "4", "--keep-alive", "4", "--memory", "2000"]
    with succession("--state", str(state), *settings) as (line, running):
        yield line, running


def test_instances_are_as_the_models(line):
    line, running = line
    total, began = collections.Counter(), time.monotonic()
    for seed in range(SEED, SEED + HISTORIES):
        history = History(running, line, seed, total)
        try:
            history.run()
        except BaseException:
            print(f"history {seed}: {' '.join(history.steps)}\n{running.log()[-3000:]}")
            raise
        total["histories"] += 1
    print(f"{dict(total)} in {time.monotonic() - began:.0f} s")
    for kind in ("on-demand", "snap-start", "rests", "merges", "kills", "handovers"):
        assert total[kind], (kind, total)
