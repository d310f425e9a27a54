"""Runtimes that the worker installs from Debian's suites, each in a root of its own: Python, Java, Ruby."""

import email.utils
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import time
import urllib.request

import pytest
from calls import PYTHON, create, invoke, open_folder, until, zipped
from conftest import MAYFLY, Worker
from test_runtimes import CACHE, fresh_cache
from test_small_templates import checked

MIRROR = "MAYFLY_DEBIAN_MIRROR"
NOWHERE = "http://127.0.0.1:1"
SUITES = {
    "python3.13": "trixie",
    "python3.14": "forky",
    "java17": "bookworm",
    "java21": "trixie",
    "java25": "trixie",
    "ruby3.3": "trixie",
}
ASKS = """
import os, ssl, sys
import boto3

def handler(event, context):
    try:
        open("/usr/lib/written", "w")
        written = None
    except OSError as error:
        written = error.errno
    return {
        "version": sys.version.split()[0], "program": sys.executable, "written": written,
        "compiled": sys.modules["json"].__cached__ if "json" in sys.modules else None,
        "boto3": bool(boto3.client("s3", region_name="us-east-1").meta.service_model),
        "trusted": len(ssl.create_default_context().get_ca_certs()) > 50,
        "shell": os.popen("echo $((6 * 7)); cat /etc/os-release").read(),
        "host": [path for path in event["host"] if os.path.exists(path)],
        "preloaded": os.environ.get("LD_PRELOAD", ""),
    }
"""
JAVA = """
package pkg;

import com.amazonaws.services.lambda.runtime.Context;
import com.amazonaws.services.lambda.runtime.RequestHandler;
import java.util.Map;

public class App implements RequestHandler<Map<String, String>, Map<String, Object>> {
    public Map<String, Object> handleRequest(Map<String, String> event, Context context) {
        return told(event, context, "handleRequest");
    }

    public Map<String, Object> other(Map<String, String> event, Context context) {
        return told(event, context, "other");
    }

    private static Map<String, Object> told(Map<String, String> event, Context context, String method) {
        if (event.containsKey("fails")) throw new IllegalStateException("as asked");
        int trusted = 0;
        try {
            var store = java.security.KeyStore.getInstance("JKS");
            var file = System.getProperty("java.home") + "/lib/security/cacerts";
            try (var input = new java.io.FileInputStream(file)) {
                store.load(input, "changeit".toCharArray());
            }
            trusted = store.size();
            javax.net.ssl.SSLContext.getDefault();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
        return Map.of(
            "version", System.getProperty("java.specification.version"), "method", method,
            "home", System.getProperty("java.home"), "trusted", trusted > 50,
            "heap", Runtime.getRuntime().maxMemory() >> 20, "name", context.getFunctionName(),
            "written", new java.io.File("/usr/lib").canWrite());
    }
}
"""
RUBY = """
require "aws-sdk-s3"
require "greeting"
require "json"
require "openssl"
require "socket"
require "stringio"

class Refused < StandardError; end

module Our
  class Calls
    def self.handle(event:, context:)
      { "method" => "Our::Calls.handle", "event" => event }
    end
  end
end

def handler(event:, context:)
  case event["does"]
  when "raises" then raise Refused, "as asked: ü"
  when "exits" then exit 3
  when "streams" then return StringIO.new("bytes, as they are")
  when "waits" then sleep event["seconds"]
  end
  puts "seen: #{event["text"]}"
  {
    "version" => RUBY_VERSION, "text" => event["text"], "greeting" => Greeting::TEXT,
    "arn" => context.invoked_function_arn, "name" => context.function_name,
    "memory" => context.memory_limit_in_mb,
    "request" => context.aws_request_id, "left" => context.get_remaining_time_in_millis,
    "sdk" => Aws::S3::Client.new(region: "us-east-1").config.region,
    "client" => context.client_context, "trace" => ENV["_X_AMZN_TRACE_ID"].to_s.start_with?("Root="),
    "trusted" => File.readable?(File.join(OpenSSL::X509::DEFAULT_CERT_DIR, "ca-certificates.crt")),
    "resolved" => Addrinfo.tcp("localhost", 80).ip_address,
    "written" => File.writable?("/usr/lib"), "folder" => Dir.pwd,
  }
end
"""


def is_of_host(runtime):
    """Whether the worker takes the host's own."""
    if not runtime.startswith("java"):
        return bool(shutil.which(runtime, path="/usr/bin:/usr/local/bin"))
    releases = [path.read_text() for path in pathlib.Path("/usr/lib/jvm").glob("*/release")]
    return any(f'JAVA_VERSION="{runtime.removeprefix("java")}.' in text for text in releases)


@functools.cache
def lacks(suite):
    """Why packages of a suite cannot be had here."""
    if not shutil.which("apt-get"):
        return "this host has no apt"
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Origin: Debian"]
    lines = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
    mirrors = [line.split()[0] for line in lines if "security" not in line]
    address = (mirrors or ["http://deb.debian.org/debian/"])[0].rstrip("/")
    try:
        with urllib.request.urlopen(f"{address}/dists/{suite}/InRelease", timeout=60) as answer:
            text = answer.read().decode()
    except OSError as error:
        return f"Debian's {suite} cannot be reached from here: {error}"
    ends = re.search(r"^Valid-Until: (.*)$", text, re.M)
    if ends and email.utils.parsedate_to_datetime(ends[1].replace("UTC", "+0000")).timestamp() < time.time():
        return f"the mirror's copy of Debian's {suite} is older than apt takes"
    return None


def needs(runtime):
    if not is_of_host(runtime) and lacks(SUITES[runtime]):
        pytest.skip(lacks(SUITES[runtime]))


def declared(place, functions):
    """A template of functions by their settings, and one in the host's own Python."""
    plain = {
        "InlineCode": "def handler(event, context): return 'plain'",
        "Handler": "index.handler",
        "Runtime": PYTHON,
    }
    made = {**functions, "Plain": plain}
    resources = {
        name: {
            "Type": "AWS::Serverless::Function",
            "Properties": {"MemorySize": 256, "Timeout": 60, **settings},
        }
        for name, settings in made.items()
    }
    (place / "template.yaml").write_text(json.dumps({"Resources": resources}))
    return str(place / "template.yaml")


@pytest.fixture(scope="module")
def classes(running, tmp_path_factory):
    """The compiled class, and the package that it needs, as `sam build` leaves them: a folder."""
    if not shutil.which("javac"):
        pytest.skip("this host has no javac: apt install openjdk-17-jdk-headless")
    core = list(
        pathlib.Path(CACHE, "mayfly/worker/runtimes").glob("java-client-*/lib/aws-lambda-java-core-*.jar")
    )
    if not core:
        pytest.skip("AWS' client for Java is not installed: Maven Central cannot be reached from here")
    place = open_folder(tmp_path_factory, "classes")
    (place / "App.java").write_text(JAVA)
    command = ["javac", "--release", "17", "-cp", core[0], "-d", place / "code", place / "App.java"]
    subprocess.run(command, check=True)
    return place / "code"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    place = open_folder(tmp_path_factory, "suites")
    (place / "code").mkdir()
    (place / "code/app.py").write_text(ASKS)
    settings = {"CodeUri": "code", "MemorySize": 256}
    functions = {
        # Their code comes later, by the API, and their runtime now.
        runtime.replace(".", ""): {**settings, "Handler": "app.handler", "Runtime": runtime}
        for runtime, suite in SUITES.items()
        if is_of_host(runtime) or not lacks(suite)
    }
    with Worker(declared(place, functions)) as worker:
        yield worker


@pytest.mark.parametrize("version", ["3.13", "3.14"])
def test_python_of_a_suite_runs_rests_and_merges(running, version):
    name, runtime = f"python{version.replace('.', '')}", f"python{version}"
    needs(runtime)
    client = running.client()
    host = [
        "/usr/bin/python3.11",
        "/usr/share/doc",
        "/usr/local/bin",
        "/root",
        "/usr/bin/apt-get",
        "/etc/machine-id",
    ]
    answer, error = invoke(client, name, {"host": host})
    assert error is None, answer
    assert answer["version"].startswith(f"{version}.")
    assert (answer["boto3"], answer["trusted"], answer["written"]) == (True, True, 30), answer
    assert answer["shell"].startswith("42\n") and "libmayfly_heap.so" in answer["preloaded"]
    if not is_of_host(runtime):
        assert answer["program"] == f"/var/lang/bin/{runtime}" and answer["host"] == [], answer
        assert answer["compiled"].endswith(".pyc") and "Debian" in answer["shell"]
    for kind in ("rest", "merge"):
        events = until(lambda kind=kind: running.events(kind, function=name), running.log)
        assert events[0].get("message") is None, events
    assert len(running.events("start", function=name)) == 1


@pytest.mark.parametrize("version", ["17", "21", "25"])
def test_java_runs_code_as_aws_takes_it(running, classes, tmp_path, version):
    needs(f"java{version}")
    client = running.client()
    (tmp_path / "lib").mkdir()
    subprocess.run(["jar", "--create", "--file", tmp_path / "lib/app.jar", "-C", classes, "."], check=True)
    jar = (tmp_path / "lib/app.jar").read_bytes()
    of_classes = {"pkg/App.class": (classes / "pkg/App.class").read_bytes()}
    forms = {
        "jar": (jar, "pkg.App", "handleRequest"),
        "zip": (zipped(**of_classes), "pkg.App::handleRequest", "handleRequest"),
        "lib": (zipped(**{"lib/app.jar": jar}), "pkg.App::other", "other"),
    }
    for form, (code, handler, method) in forms.items():
        name = f"java{version}-{form}"
        create(client, name, code, Runtime=f"java{version}", Handler=handler, MemorySize=256, Timeout=120)
        answer, error = invoke(client, name, {"a": "b"})
        assert error is None, answer
        home = answer.pop("home")
        assert 180 <= answer.pop("heap") <= 192
        wanted = {"version": version, "method": method, "name": name, "trusted": True, "written": False}
        assert answer == wanted, answer
        assert home.startswith("/usr/lib/jvm/")
    answer, error = invoke(client, f"java{version}-jar", {"fails": "yes"})
    assert error == "Unhandled" and answer["errorType"] == "java.lang.IllegalStateException", answer
    assert invoke(client, f"java{version}-jar", {})[1] is None, "the instance survives"
    assert len(running.events("start", function=f"java{version}-jar")) == 1
    assert "WARNING" not in running.log()


def test_ruby_runs_code_as_aws_takes_it(running):
    needs("ruby3.3")
    client = running.client()
    code = {"app.rb": RUBY, "parts/more.rb": RUBY, "broken.rb": "require 'absent'"}
    # As `sam build` leaves a gem.
    gem = "vendor/bundle/ruby/3.3.0/{}"
    code[gem.format("gems/greeting-1.0/lib/greeting.rb")] = "module Greeting; TEXT = 'of a gem'; end"
    code[gem.format("specifications/greeting-1.0.gemspec")] = (
        "Gem::Specification.new { |s| s.name, s.version, s.summary = 'greeting', '1.0', 'x'; "
        "s.authors = ['us']; s.files = ['lib/greeting.rb'] }"
    )
    settings = {"Runtime": "ruby3.3", "MemorySize": 128, "Timeout": 60}
    for name, handler in [
        ("Ruby", "app.handler"),
        ("RubyClass", "parts/more.Our::Calls.handle"),
        ("RubyBroken", "broken.handler"),
        ("RubyBad", "app"),
    ]:
        create(client, name, zipped(**code), Handler=handler, **settings)

    answer, error = invoke(client, "Ruby", {"text": "grün"})
    assert error is None, (answer, running.log())
    assert answer["version"].startswith("3.3.") and 0 < answer.pop("left") <= 60_000, answer
    assert answer["request"] in running.log() and "seen: grün" in running.log()
    assert answer["resolved"] in ("127.0.0.1", "::1")
    for name in ("version", "request", "resolved"):
        answer.pop(name)
    assert answer == {
        "text": "grün",
        "greeting": "of a gem",
        "arn": client.get_function(FunctionName="Ruby")["Configuration"]["FunctionArn"],
        "name": "Ruby",
        "memory": "128",
        "sdk": "us-east-1",
        "client": None,
        "trace": True,
        "trusted": True,
        "written": False,
        "folder": "/var/task",
    }
    # As AWS' runtime reports it, and the process goes on.
    answer, error = invoke(client, "Ruby", {"does": "raises"})
    assert error == "Unhandled" and answer["errorType"] == "Function<Refused>", answer
    assert answer["errorMessage"] == "as asked: ü" and re.match(
        r"/var/task/app.rb:\d+:in ", answer["stackTrace"][0]
    )
    assert not any("bootstrap" in frame for frame in answer["stackTrace"]), answer
    sent = client.invoke(FunctionName="Ruby", Payload='{"does": "streams"}')
    assert sent["Payload"].read() == b"bytes, as they are"
    # Longer than Ruby's client keeps a connection that it does not use.
    assert invoke(client, "Ruby", {"does": "waits", "seconds": 3})[1] is None
    assert len(running.events("start", function="Ruby")) == 1, running.log()
    answer, error = invoke(client, "Ruby", {"does": "exits"})
    assert error == "Unhandled" and answer["errorType"] == "Function<SystemExit>", answer
    assert invoke(client, "Ruby", {})[1] is None

    answer, error = invoke(client, "RubyClass", {"a": 1})
    assert (answer, error) == ({"method": "Our::Calls.handle", "event": {"a": 1}}, None), running.log()
    answer, error = invoke(client, "RubyBroken", {})
    assert (answer["errorType"], error) == ("Init<LoadError>", "Unhandled"), answer
    assert answer["errorMessage"] == "cannot load such file -- absent"
    answer, error = invoke(client, "RubyBad", {})
    assert (answer["errorType"], error) == ("Init<ArgumentError>", "Unhandled"), answer


def lacking():
    """A runtime that this host lacks."""
    return next(runtime for runtime in SUITES if not is_of_host(runtime))


def test_without_a_mirror_or_apt_these_functions_fail_alone(tmp_path):
    tmp_path.chmod(0o755)
    environment, runtimes = fresh_cache(tmp_path)
    runtime = lacking()
    template = declared(tmp_path, {"Far": {"InlineCode": "", "Handler": "index.handler", "Runtime": runtime}})
    (tmp_path / "empty").mkdir()
    reasons = {
        "mirror": (MIRROR, NOWHERE, r"where it cannot be reached, set MAYFLY_DEBIAN_MIRROR to a mirror"),
        "apt": ("PATH", str(tmp_path / "empty"), r"this host has no apt .*: use an image"),
    }
    for name, value, reason in reasons.values():
        with Worker(template, environment={**environment, name: value}) as worker:
            assert invoke(worker.client(), "Plain", {}) == ("plain", None)
            found = worker.client().get_function_configuration(FunctionName="Far")
            assert (found["State"], found["StateReasonCode"]) == ("Failed", "InvalidRuntime")
            assert re.search(rf"cannot install .* of Debian \w+: .*{reason}", found["StateReason"]), found
            assert "\n" not in found["StateReason"]
    assert not [path for path in runtimes.glob("*") if path.is_dir()]


def test_a_worker_killed_while_it_unpacks_leaves_nothing_half(tmp_path):
    needs("python3.13")
    if is_of_host("python3.13"):
        pytest.skip("this host has python3.13")
    tmp_path.chmod(0o755)
    environment, runtimes = fresh_cache(tmp_path)
    code = {"InlineCode": "def handler(event, context): return 13", "Handler": "index.handler"}
    template = declared(tmp_path, {"Far": {**code, "Runtime": "python3.13"}})
    command = [MAYFLY, "up", template, "--listen", "127.0.0.1:0"]
    worker = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
    try:
        until(
            lambda: list(runtimes.glob("new-*/made/usr/lib")) or worker.poll() is not None,
            "it does not unpack",
        )
    finally:
        worker.kill()
        worker.wait()
    assert list(runtimes.glob("new-*")) and not list(runtimes.glob("debian-*"))
    with Worker(template, environment=environment) as running:
        assert invoke(running.client(), "Far", {}) == (13, None)
    folders = [path.name for path in runtimes.iterdir() if path.is_dir()]
    assert len(folders) == 1 and folders[0].startswith("debian-trixie-python3.13-"), folders
    assert not list(runtimes.parent.glob("apt/*/archives/*.deb")), "archives are removed"


def test_check_names_the_way_out(tmp_path):
    inline = {"InlineCode": "x", "Handler": "index.handler"}
    (tmp_path / "src").mkdir()
    java = {"CodeUri": "src", "Handler": "pkg.App::handle", "Runtime": "java21", "Architectures": ["arm64"]}
    functions = {
        "Old": {**java, "Runtime": "java8.al2"},
        "Java": java,
        "Net": {"CodeUri": "src", "Handler": "A::B::C", "Runtime": "dotnet8"},
        "Ruby": {"CodeUri": "src", "Handler": "app.handler", "Runtime": "ruby2.6"},
        "New": {**inline, "Runtime": "python3.13"},
    }
    code, found = checked(declared(tmp_path, functions))
    assert code == 1
    of = {one["FunctionName"]: one for one in found["Functions"]}
    assert of["New"]["StateReason"] is None and of["Java"]["StateReason"] is None
    assert of["Java"]["Unbuilt"] == "Handler pkg.App::handle: the code has no pkg/App.class"
    assert any("Java" in note and "no arm64" in note for note in found["Notes"]), found["Notes"]
    assert "build the function as an image" in of["Net"]["StateReason"]
    assert "no Ruby 2.6, and none can be installed; --nearest-runtime" in of["Ruby"]["StateReason"]
    if not any("1.8" in path.read_text() for path in pathlib.Path("/usr/lib/jvm").glob("*/release")):
        assert "--nearest-runtime serves it with java" in of["Old"]["StateReason"]
        _, found = checked(declared(tmp_path, functions), "--nearest-runtime")
        of = {one["FunctionName"]: one for one in found["Functions"]}
        assert of["Old"]["StateReason"] is None
