"""The load on Redis, LLAMA §9's: redis-benchmark's standard tests over up to 5,000 connections, values of
1,000 bytes. Stored values stay; connections, queries and replies are short-lived.

redis-benchmark does not check answers. So a client of our own writes values of every type before, some of
which expire, changes most of them during the tests, and reads all of them back at the end."""

import time
from dataclasses import dataclass

from bench.heap import redis
from bench.heap.redis_protocol import Client
from bench.lifetime.process import AtEnd, Program
from bench.outcome import BenchError

# The standard tests on data of each type; SET, LPUSH and LRANGE run on their own, with more requests.
OF_ALL_TYPES = ("get", "incr", "rpush", "lpop", "rpop", "sadd", "hset", "spop", "zadd", "zpopmin", "mset")


@dataclass(frozen=True)
class Requests:
    stored: int  # SET, and LPUSH
    ranges: int  # LRANGE of 100 values each: 100 KB of answer waiting on every connection
    of_each: int  # of each other test
    own: int  # keys of each type that are read back
    connections: int = 5000
    few_connections: int = 500  # for the other tests: opening 5,000 takes redis-benchmark 4 s

    def scaled(self, scale: float) -> "Requests":
        by = lambda count, least: max(least, int(count * scale))  # noqa: E731
        return Requests(
            by(self.stored, 1000),
            by(self.ranges, 500),
            by(self.of_each, 500),
            by(self.own, 50),
            max(100, int(self.connections * min(1.0, scale * 2))),
            max(50, int(self.few_connections * min(1.0, scale * 2))),
        )


FULL = Requests(stored=100_000, ranges=20_000, of_each=20_000, own=2_000)


class OwnData:
    """Keys of every type, whose values follow from their numbers."""

    def __init__(self, client: Client, keys: int):
        self.client, self.keys = client, range(keys)

    def write(self) -> None:
        def commands():
            for i in self.keys:
                value = redis.value_of(i, 40 + i % 3000)
                yield "SET", b"own:string:%d" % i, value
                yield "SET", b"own:session:%d" % i, value, "PX", 2000
                yield "SET", b"own:lease:%d" % i, value, "EX", 1000
                yield "HSET", b"own:hash:%d" % i, "name", b"n%d" % i, "about", value[:200], "gone", "x"
                yield "RPUSH", b"own:list:%d" % i, b"a%d" % i, b"b%d" % i, b"c%d" % i
                yield "SADD", b"own:set:%d" % i, b"m%d" % i, "member"
                yield "ZADD", b"own:sorted:%d" % i, i, "low", i + 1, "high"
                yield "INCRBY", b"own:counter:%d" % i, i
                yield "HSET", "own:directory", b"entry:%d" % i, value[:64]
                yield "ZADD", "own:ranking", i, b"player:%d" % i

        self.client.pipeline(commands())

    def change(self) -> None:
        def commands():
            for i in self.keys:
                yield "APPEND", b"own:string:%d" % i, b"+%d" % i
                yield "PERSIST", b"own:lease:%d" % i
                yield "HDEL", b"own:hash:%d" % i, "gone"
                yield "LPUSH", b"own:list:%d" % i, b"z%d" % i
                yield "LTRIM", b"own:list:%d" % i, 0, 2
                yield "SREM", b"own:set:%d" % i, "member"
                yield "ZINCRBY", b"own:sorted:%d" % i, 5, "low"
                yield "INCR", b"own:counter:%d" % i

        self.client.pipeline(commands())

    def wait_for_sessions(self) -> None:
        """Waits until the keys that expire have: a small load ends before."""
        deadline = time.monotonic() + 20
        while any(self.client.pipeline(("EXISTS", b"own:session:%d" % i) for i in self.keys)):
            if time.monotonic() > deadline:
                raise BenchError("keys that expire after 2 s are there 20 s later")
            time.sleep(0.1)

    def check(self) -> None:
        for i in self.keys:
            value = redis.value_of(i, 40 + i % 3000)
            wanted = {
                ("GET", b"own:string:%d" % i): value + b"+%d" % i,
                ("GET", b"own:session:%d" % i): None,
                ("GET", b"own:lease:%d" % i): value,
                ("HMGET", b"own:hash:%d" % i, "name", "about", "gone"): [b"n%d" % i, value[:200], None],
                ("LRANGE", b"own:list:%d" % i, 0, -1): [b"z%d" % i, b"a%d" % i, b"b%d" % i],
                ("SMEMBERS", b"own:set:%d" % i): [b"m%d" % i],
                ("ZRANGE", b"own:sorted:%d" % i, 0, -1): [b"high", b"low"],
                ("GET", b"own:counter:%d" % i): b"%d" % (i + 1),
                ("HGET", "own:directory", b"entry:%d" % i): value[:64],
                ("ZRANK", "own:ranking", b"player:%d" % i): i,
            }
            answers = self.client.pipeline(wanted)
            for (command, key, *_), expected, answer in zip(wanted, wanted.values(), answers, strict=True):
                if answer != expected:
                    raise BenchError(f"{command} {key!r}: {answer!r}, not {expected!r}"[:300])


class Load(redis.Load):
    """Runs the tests; `at_end` is memory at the steady state."""

    at_end = AtEnd(0, 0, 0, 0)

    def __init__(self, program: Program, requests: Requests, settle_s: float):
        # bench/heap's load runs one test of redis-benchmark, over as many connections as are allowed.
        super().__init__(program, redis.FULL)
        self.requests, self.settle_s = requests, settle_s
        self.connections = min(requests.connections, self.connections)
        self.sent = 0

    def everything(self) -> None:
        own, requests = OwnData(self.client, self.requests.own), self.requests
        keys = ("-r", str(requests.stored))
        self.phase("idle")
        self.phase("fill")
        own.write()
        self.test("set", requests.stored, *keys, "-t", "set")
        self.test("lpush", requests.stored, "-t", "lpush")
        self.phase("serve")
        own.change()
        self.test("lrange_100", requests.ranges, "LRANGE", "mylist", "0", "99")
        self.phase("all types")
        self.connections = min(self.connections, requests.few_connections)
        for name in OF_ALL_TYPES:
            self.test(name, requests.of_each, *keys, "-t", name)
        self.phase("settle")
        own.wait_for_sessions()
        self.at_end = self.server.rest(self.settle_s)
        own.check()
        self.check_tests()
        self.client.close()

    def phase(self, name: str) -> None:
        self.server.phase(name)

    def test(self, name: str, count: int, *what: str) -> None:
        self.benchmark(name, count, *what)
        self.sent += count

    def check_tests(self) -> None:
        """The list has what was pushed and not popped, all of it the tests' one value."""
        (length,) = self.client.pipeline([("LLEN", "mylist")])
        pushed = self.requests.stored + self.requests.of_each
        if length != pushed - 2 * self.requests.of_each:
            raise BenchError(f"redis' list has {length} values, not {pushed - 2 * self.requests.of_each}")
        values = set(self.client.pipeline([("LRANGE", "mylist", 0, 99)])[0])
        if len(values) != 1 or len(values.pop()) != redis.VALUE_BYTES:
            raise BenchError("redis' list has values that were not pushed")

    @property
    def speed(self) -> dict[str, float]:
        each = {name: rate for name, rate in self.numbers.items() if name.endswith("_per_s")}
        return {"requests_per_s": self.sent / self.numbers["time_ms"] * 1000} | each
