"""SnapStart of functions whose client is not Mayfly's: Java with its hooks, Ruby, Go, programs of the
function's own, images. They are restored within the request in which they waited."""

import os
import pathlib
import shutil
import subprocess

import pytest
from calls import create, invoke, open_folder, programs, zipped
from conftest import Worker
from images import Image, create_image, layer, python_layers
from test_images import ENTRY
from test_snapshots import HAS_SNAPSHOT, SNAP_START, at_once_until, is_restored
from test_suite_runtimes import CACHE, needs

ALL = 8
JAVA = """
package pkg;

import com.amazonaws.services.lambda.crac.Core;
import com.amazonaws.services.lambda.crac.Resource;
import com.amazonaws.services.lambda.runtime.Context;
import com.amazonaws.services.lambda.runtime.RequestHandler;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

public class App implements RequestHandler<Map<String, Object>, Map<String, Object>>, Resource {
    static final String STARTED = UUID.randomUUID().toString();
    static final SecureRandom SECURE = new SecureRandom();
    static final AtomicLong TICKS = new AtomicLong();
    static final List<long[]> TABLE = new ArrayList<>();
    static int before, after;

    public App() throws Exception {
        Core.getGlobalContext().register(this);
        SECURE.nextLong();
        for (int n = 0; n < 20_000; n++) TABLE.add(new long[] {n});
        var timer = Executors.newSingleThreadScheduledExecutor(work -> {
            var thread = new Thread(work, "ticks");
            thread.setDaemon(true);
            return thread;
        });
        timer.scheduleAtFixedRate(TICKS::incrementAndGet, 0, 20, TimeUnit.MILLISECONDS);
        Files.writeString(Path.of("/tmp/written"), "as imported");
        System.out.println("imported");
    }

    @Override
    public void beforeCheckpoint(com.amazonaws.services.lambda.crac.Context<? extends Resource> context) {
        before++;
    }

    @Override
    public void afterRestore(com.amazonaws.services.lambda.crac.Context<? extends Resource> context) {
        if (Files.exists(Path.of("fails"))) throw new IllegalStateException("as asked");
        after++;
    }

    public Map<String, Object> handleRequest(Map<String, Object> event, Context context) {
        var unique = List.of(
            "" + SECURE.nextLong(), UUID.randomUUID().toString(), "" + new SecureRandom().nextLong());
        long begun = TICKS.get(), sum = 0;
        try {
            Thread.sleep(1000 * ((Number) event.getOrDefault("seconds", 0)).longValue());
            // Garbage, so that the collector moves what was restored.
            for (int round = 0; round < 40; round++) sum += new byte[4 << 20].length & 1;
            System.gc();
            for (long[] one : TABLE) sum += one[0];
            return Map.of(
                "started", STARTED, "unique", unique, "sum", sum, "ticks", TICKS.get() - begun > 5,
                "type", System.getenv("AWS_LAMBDA_INITIALIZATION_TYPE"), "hooks", List.of(before, after),
                "tmp", Files.readString(Path.of("/tmp/written")), "pid",
                Long.parseLong(Path.of("/proc/self").toRealPath().getFileName().toString())
                    == ProcessHandle.current().pid(),
                "shares", Files.lines(Path.of("/proc/self/maps"))
                    .filter(line -> line.contains("rw-p") && line.contains("mayfly-snapshot")).count());
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }
}
"""


GO = """
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"sync/atomic"
	"time"
)

func unique() string {
	bytes := make([]byte, 16)
	rand.Read(bytes)
	return fmt.Sprintf("%x", bytes)
}

func main() {
	runtimeAPI := "http://" + os.Getenv("AWS_LAMBDA_RUNTIME_API") + "/2018-06-01/runtime/invocation/"
	started, table := unique(), map[int][]int{}
	for n := 0; n < 20000; n++ {
		table[n] = []int{n}
	}
	var ticks atomic.Int64
	go func() {
		for range time.Tick(20 * time.Millisecond) {
			ticks.Add(1)
		}
	}()
	for {
		asked, err := http.Get(runtimeAPI + "next")
		if err != nil {
			panic(err)
		}
		var event struct{ Seconds float64 }
		body, _ := io.ReadAll(asked.Body)
		asked.Body.Close()
		json.Unmarshal(body, &event)
		before := ticks.Load()
		time.Sleep(time.Duration(event.Seconds * 1e9))
		// A collection stops threads that compute, by signals to their ids.
		done := make(chan int)
		for part := 0; part < 4; part++ {
			go func() {
				sum := 0
				for n := 0; n < 20000; n++ {
					sum += table[n][0]
				}
				done <- sum
			}()
		}
		runtime.GC()
		maps, _ := os.ReadFile("/proc/self/maps")
		answer, _ := json.Marshal(map[string]any{
			"started": started, "unique": []string{unique()}, "sum": (<-done + <-done + <-done + <-done) / 4,
			"shares": len(regexp.MustCompile(`rw-p.*mayfly-snapshot`).FindAll(maps, -1)),
			"ticks":  ticks.Load()-before > 5, "type": os.Getenv("AWS_LAMBDA_INITIALIZATION_TYPE"),
		})
		id := asked.Header.Get("Lambda-Runtime-Aws-Request-Id")
		said, err := http.Post(runtimeAPI+id+"/response", "application/json", bytes.NewReader(answer))
		if err != nil {
			panic(err)
		}
		io.Copy(io.Discard, said.Body)
		said.Body.Close()
	}
}
"""
PROGRAM = """#!/usr/bin/python3
import ctypes, http.client, json, os, re, threading, time, uuid
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.calloc.restype = ctypes.c_void_p
held = [libc.malloc(1 << 16) for _ in range(256)]
def reads_as_zeros():
    # What the allocator has given back to the system, and takes again.
    for block in held:
        libc.free(ctypes.c_void_p(block))
    libc.malloc_trim(0)
    held[:] = [libc.calloc(1, 1 << 16) for _ in held]
    return all(ctypes.string_at(block, 1 << 16).count(0) == 1 << 16 for block in held)
for block in held:
    ctypes.memset(block, 0x5a, 1 << 16)
STARTED, TABLE = uuid.uuid4().hex, {n: [n] for n in range(20_000)}
ticks = []
def tick():
    while True:
        time.sleep(0.02)
        ticks.append(1)
threading.Thread(target=tick, daemon=True).start()
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
below = "/2018-06-01/runtime/"
if os.path.exists("asks-when"):
    api.request("GET", below + "restore/next")
    assert api.getresponse().read() == b""
while True:
    api.request("GET", below + "invocation/next")
    asked = api.getresponse()
    event = json.loads(asked.read()) or {}
    before = len(ticks)
    time.sleep(event.get("seconds", 0))
    answer = {"started": STARTED, "unique": [uuid.uuid4().hex], "sum": sum(n for n, in TABLE.values()),
              "shares": len(re.findall("rw-p.*mayfly-snapshot", open("/proc/self/maps").read())),
              "zeros": reads_as_zeros(), "ticks": len(ticks) - before > 5,
              "type": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"]}
    id = asked.headers["Lambda-Runtime-Aws-Request-Id"]
    api.request("POST", f"{below}invocation/{id}/response", json.dumps(answer))
    api.getresponse().read()
"""
RUBY = """
require "securerandom"
STARTED = SecureRandom.uuid
TABLE = (0...20_000).to_h { |n| [n, [n]] }
$ticks = 0
Thread.new { loop { sleep 0.02; $ticks += 1 } }

def handler(event:, context:)
  before = $ticks
  sleep((event || {}).fetch("seconds", 0))
  GC.start
  { "started" => STARTED, "unique" => [SecureRandom.uuid], "sum" => TABLE.values.sum { |n,| n },
    "shares" => File.read("/proc/self/maps").scan(/rw-p.*mayfly-snapshot/).size,
    "ticks" => $ticks - before > 5, "type" => ENV["AWS_LAMBDA_INITIALIZATION_TYPE"] }
end
"""
OF_IMAGE = """
import os, re, time, uuid
STARTED, TABLE = uuid.uuid4().hex, {n: [n] for n in range(20_000)}
def handler(event, context):
    time.sleep((event or {}).get("seconds", 0))
    return {"started": STARTED, "unique": [uuid.uuid4().hex], "stream": context.log_stream_name,
            "shares": len(re.findall("rw-p.*mayfly-snapshot", open("/proc/self/maps").read())),
            "ticks": True, "sum": sum(n for n, in TABLE.values()),
            "type": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"]}
"""


@pytest.fixture(scope="module")
def restoring(place):
    with Worker("--memory", "6000", "--burst", str(ALL), "--code-from", str(place)) as worker:
        yield worker


def restored(worker, name):
    """Answers of restored instances of a function's first version, all as they should be."""
    worker.client().publish_version(FunctionName=name)
    worker.wait_for(HAS_SNAPSHOT % name)
    client = worker.client(max_pool_connections=ALL)
    answers = at_once_until(lambda some: any(map(is_restored, some)), client, name, ALL, Qualifier="1")
    # An instance that answers several times has a stream for all of them.
    answers = list({answer.get("stream", at): answer for at, answer in enumerate(answers)}.values())
    answers = [answer for answer in answers if is_restored(answer)]
    assert len({answer["started"] for answer in answers}) == 1
    for answer in answers:
        assert answer["sum"] == sum(range(20_000)) and answer["ticks"] and answer.get("zeros", True), answer
        # One is the restorer's own.
        assert answer["shares"] > 1, answer
    for source in zip(*(answer["unique"] for answer in answers), strict=True):
        assert len(set(source)) == len(source), source
    return answers


@pytest.fixture(scope="module")
def classes(restoring, tmp_path_factory):
    if not shutil.which("javac"):
        pytest.skip("this host has no javac: apt install openjdk-17-jdk-headless")
    # The worker installs AWS' client with the first function.
    create(restoring.client(), "first", zipped(**{"a": "b"}), Runtime="java17", Handler="pkg.App")
    place = open_folder(tmp_path_factory, "classes")
    (place / "App.java").write_text(JAVA)
    libraries = ":".join(
        map(str, pathlib.Path(CACHE, "mayfly/worker/runtimes").glob("java-client-*/lib/*.jar"))
    )
    command = ["javac", "--release", "17", "-cp", libraries, "-d", place / "code", place / "App.java"]
    subprocess.run(command, check=True)
    return {
        str(path.relative_to(place / "code")): path.read_bytes() for path in place.glob("code/**/*.class")
    }


@pytest.mark.parametrize("version", ["17", "21", "25"])
def test_java_is_restored_with_its_hooks(restoring, classes, version):
    needs(f"java{version}")
    client, name = restoring.client(), f"java{version}"
    settings = {"Handler": "pkg.App", "MemorySize": 512, **SNAP_START}
    create(client, name, zipped(**classes), Runtime=f"java{version}", **settings)
    for answer in restored(restoring, name):
        assert answer["pid"] and answer["hooks"] == [1, 1] and answer["tmp"] == "as imported"
    # $LATEST starts: the owner has not said that its state may be shared.
    answer, error = invoke(client, name, {"seconds": 0})
    assert error is None and answer["type"] == "on-demand" and answer["hooks"] == [0, 0]


def test_failing_java_hook_has_the_function_start_as_ever(restoring, classes, tmp_path):
    needs("java17")
    code = {**classes, "fails": ""}
    client, settings = restoring.client(), {"Handler": "pkg.App", "MemorySize": 512, **SNAP_START}
    create(client, "hook-fails", zipped(**code), Runtime="java17", **settings)
    client.publish_version(FunctionName="hook-fails")
    why = "it was not restored: it asks the Runtime API for POST /2018-06-01/runtime/restore/error"
    restoring.wait_for(rf"\[hook-fails\] starts as ever, without a snapshot: {why}")
    answer, error = invoke(client, "hook-fails", {"seconds": 0}, Qualifier="1")
    assert error is None and answer["hooks"] == [0, 0]


@pytest.mark.parametrize("asks_when", [False, True])
def test_programs_of_the_functions_own_are_restored(restoring, asks_when):
    name = "asks-when" if asks_when else "program"
    code = programs({"bootstrap": PROGRAM}, {"asks-when": ""} if asks_when else {})
    create(restoring.client(), name, code, Runtime="provided.al2023", **SNAP_START)
    restored(restoring, name)


def test_go_is_restored(restoring, tmp_path):
    if not shutil.which("go"):
        pytest.skip("this host has no go: apt install golang-go")
    (tmp_path / "main.go").write_text(GO)
    command = ["go", "build", "-o", tmp_path / "bootstrap", tmp_path / "main.go"]
    subprocess.run(command, check=True, env={**os.environ, "CGO_ENABLED": "0"})
    code = programs({"bootstrap": (tmp_path / "bootstrap").read_bytes()})
    create(restoring.client(), "go", code, Runtime="provided.al2023", **SNAP_START)
    restored(restoring, "go")


def test_ruby_is_restored(restoring):
    needs("ruby3.3")
    create(restoring.client(), "ruby", zipped(**{"app.rb": RUBY}), Runtime="ruby3.3", **SNAP_START)
    restored(restoring, "ruby")


def test_images_are_restored(restoring, place):
    client = restoring.client()
    create(client, "python", zipped(app_py=OF_IMAGE))  # for which AWS' client is installed
    config = {"Entrypoint": ENTRY, "Cmd": ["app.handler"], "Env": ["PYTHONPATH=/var/runtime"]}
    image = Image(
        *python_layers(), layer(("var/task/app.py", OF_IMAGE.encode())), WorkingDir="/var/task", **config
    )
    create_image(client, "image", image.archive(place / "image.tar"), **SNAP_START)
    restored(restoring, "image")
