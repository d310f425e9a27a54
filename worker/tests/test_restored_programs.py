"""Public libraries in functions that are restored a thousand times, while instances are killed: every answer
is right, and what must be unique is. scikit-learn, AWS' SDK for JavaScript and Java's collections.

Only with MAYFLY_SOAK, which may be the number of restored instances of each: their packages are large."""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from calls import PYTHON, invoke, killing, one_function, open_folder
from conftest import Worker

SOAK = os.environ.get("MAYFLY_SOAK")
RESTORED = int(SOAK) if SOAK and int(SOAK) > 1 else 1000
CALLERS = 6
SCIKIT_LEARN = """
import os, random, uuid
import numpy
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier

FLOWERS = load_iris()
MODEL = RandomForestClassifier(20, random_state=1).fit(FLOWERS.data, FLOWERS.target)

def handler(event, context):
    n = event["n"] % len(FLOWERS.data)
    return {"answer": bool(MODEL.predict(FLOWERS.data[n:n + 1])[0] == FLOWERS.target[n]) or n,
            "unique": [uuid.uuid4().hex, str(numpy.random.random()), str(random.random()),
                       str(numpy.random.default_rng().random())]}
"""
# Flowers that a forest of twenty trees takes for others.
AMBIGUOUS = {70, 77, 83, 106, 119, 129, 133, 134, 138}
SDK = """
import { randomUUID, createHash } from "node:crypto";
import { S3Client, PutObjectCommand } from "@aws-sdk/client-s3";

const table = new Map(Array.from({ length: 20_000 }, (_, n) => [String(n), n]));
const sent = [];
const client = new S3Client({
  requestHandler: { handle: async (request) => {
    sent.push(request);
    return { response: { statusCode: 200, headers: { etag: '"x"' }, body: undefined } };
  } },
});

export async function handler({ n }) {
  const body = "body " + n;
  await client.send(new PutObjectCommand({ Bucket: "bucket", Key: "key" + n, Body: body }));
  const { headers, path } = sent.pop();
  const signed = headers["x-amz-content-sha256"] === createHash("sha256").update(body).digest("hex");
  return {
    answer: (signed || headers["x-amz-content-sha256"]) && path.endsWith("/key" + n)
      && /Signature=[0-9a-f]{64}/.test(headers.authorization) && table.get(String(n)) === n
      || [path, headers],
    unique: [randomUUID(), headers["amz-sdk-invocation-id"], String(Math.random())],
  };
}
"""
JAVA = """
package pkg;
import com.amazonaws.services.lambda.runtime.*;
import java.security.SecureRandom;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;

public class App implements RequestHandler<Map<String, Object>, Map<String, Object>> {
    static final SecureRandom SECURE = new SecureRandom();
    static final Map<Integer, List<Integer>> DIVISORS = IntStream.rangeClosed(1, 5000).boxed().collect(
        Collectors.toConcurrentMap(n -> n, n -> IntStream.rangeClosed(1, n)
            .filter(d -> n % d == 0).boxed().toList()));
    static final ExecutorService POOL = Executors.newFixedThreadPool(2);

    public Map<String, Object> handleRequest(Map<String, Object> event, Context context) {
        int n = 1 + ((Number) event.get("n")).intValue() % 5000;
        try {
            int sum = POOL.submit(() -> DIVISORS.get(n).stream().mapToInt(Integer::intValue).sum()).get();
            int expected = IntStream.rangeClosed(1, n).filter(d -> n % d == 0).sum();
            return Map.of("answer", sum == expected ? true : List.of(n, sum, expected),
                "unique", List.of(UUID.randomUUID().toString(), "" + SECURE.nextLong()));
        } catch (InterruptedException | ExecutionException error) {
            throw new IllegalStateException(error);
        }
    }
}
"""

pytestmark = pytest.mark.skipif(not SOAK, reason="large packages and a thousand restores: set MAYFLY_SOAK")


def scikit_learn(code):
    (code / "app.py").write_text(SCIKIT_LEARN)
    install = [sys.executable, "-m", "pip", "install", "-q", "--only-binary", ":all:", "--target", code]
    subprocess.run([*install, "scikit-learn"], check=True)
    return PYTHON, "app.handler"


def javascript(code):
    (code / "app.mjs").write_text(SDK)
    return "nodejs20.x", "app.handler"


def java(code):
    if not shutil.which("javac"):
        pytest.skip("this host has no javac: apt install openjdk-17-jdk-headless")
    (code.parent / "App.java").write_text(JAVA)
    # The compiler takes the interfaces of AWS' library from here.
    interfaces = code.parent / "com/amazonaws/services/lambda/runtime"
    interfaces.mkdir(parents=True)
    package = "package com.amazonaws.services.lambda.runtime;"
    (interfaces / "Context.java").write_text(f"{package} public interface Context {{}}")
    (interfaces / "RequestHandler.java").write_text(
        f"{package} public interface RequestHandler<I, O> {{ O handleRequest(I input, Context context); }}"
    )
    built = code.parent / "built"
    sources = [code.parent / "App.java", *interfaces.iterdir()]
    subprocess.run(["javac", "--release", "17", "-d", built, *sources], check=True)
    shutil.copytree(built / "pkg", code / "pkg")
    return "java17", "pkg.App"


@pytest.mark.parametrize("make", [scikit_learn, javascript, java], ids=lambda make: make.__name__)
def test_a_thousand_restored_instances_under_kills(tmp_path_factory, make):
    place = open_folder(tmp_path_factory, "programs")
    (place / "code").mkdir()
    name = make.__name__.replace("_", "-")
    runtime, handler = make(place / "code")
    settings = {"metadata": {"Snapshot": True}, "MemorySize": 512, "Timeout": 60}
    arguments = [
        one_function(place, name, runtime, handler, **settings),
        "--memory",
        "5000",
        "--burst",
        str(CALLERS),
    ]
    with Worker(*arguments) as running:
        client, outcomes, unique = running.client(max_pool_connections=CALLERS), [], []
        first, error = invoke(client, name, {"n": 0})
        assert error is None and first["answer"] is True, json.dumps(first)
        running.wait_for(rf"\[{name}\] has a snapshot", 120)

        def restored():
            counts = re.findall(r"^mayfly_restore_seconds_count\S* (\d+)", running.get("/metrics"), re.M)
            return sum(map(int, counts))

        def calls(caller):
            n = caller
            while restored() < RESTORED and len(outcomes) < 100 * RESTORED:
                try:
                    answer, error = invoke(client, name, {"n": n})
                except client.exceptions.ClientError as failed:
                    answer, error = {}, failed.response["Error"]["Code"]
                if error is None and (answer["answer"] is True or answer["answer"] in AMBIGUOUS):
                    unique.append(answer["unique"])
                outcomes.append(error or (answer["answer"] in AMBIGUOUS or answer["answer"]))
                n += CALLERS

        with (
            killing(running.descendants, lambda: len(outcomes), 10, seed=11) as killed,
            concurrent.futures.ThreadPoolExecutor(CALLERS) as callers,
        ):
            list(callers.map(calls, range(CALLERS)))
        wrong = [outcome for outcome in outcomes if outcome not in (True, "Unhandled", "ServiceException")]
        answered = outcomes.count(True)
        print(f"{name}: {restored()} restored, {answered} of {len(outcomes)} answered, {len(killed)} kills")
        assert not wrong, wrong[:5]
        assert restored() >= RESTORED and answered >= RESTORED / 2
        for source in zip(*unique, strict=True):
            assert len(set(source)) == len(source), "the same number twice"
        assert "starts as ever" not in running.log(), re.findall(".*starts as ever.*", running.log())[:3]
        answer, error = invoke(client, name, {"n": 1})
        assert error is None and answer["answer"] is True
