"""The recipes of python/README.md, read from there, in real servers: the workers share the model, give the
same answers as without, and start without a store."""

import concurrent.futures
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from bench.merge.machine import MAYFLY
from bench.merge.store import running

pytest.importorskip("gunicorn")

ROOT = Path(__file__).resolve().parents[2]
MODEL_MIB = 32
WORKERS = 2

APP = f"""
import os

import numpy


def load_model():
    return {{"weights": numpy.random.default_rng(1).random({MODEL_MIB} << 17), "names": ["a", "b"]}}


model = load_model()


def answer(of=None):
    return f"{{(of or model)['weights'].sum():.6f}} {{os.getpid()}}"


def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [answer().encode()]


async def respond(send):
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": answer().encode()}})


def celery():
    import celery
    folder = os.path.dirname(__file__)
    made = celery.Celery("tasks", broker="filesystem://", backend=f"file://{{folder}}/results")
    made.conf.broker_transport_options = {{
        "data_folder_in": f"{{folder}}/queue", "data_folder_out": f"{{folder}}/queue",
        "control_folder": f"{{folder}}/control",
    }}
    return made
"""


def recipe(name):
    """The block of the README that begins with this file's name."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "python" / "README.md").read_text(), re.S)
    (found,) = [block for block in blocks if block.startswith(f"# {name}")]
    return found


@pytest.fixture
def project(tmp_path):
    """A folder with the application and the recipe, and the path for the store's socket."""
    folder = tmp_path / "project"
    for name in ("", "results", "queue", "control"):
        (folder / name).mkdir()
    (folder / "app.py").write_text(APP)
    for name in ("gunicorn.conf.py", "asgi.py", "tasks.py", "serve.py"):
        (folder / name).write_text(recipe(name))
    return folder


@contextlib.contextmanager
def ended(process):
    """Ends a process and all its descendants."""
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def until(what, right, process, log, seconds=120):
    end = time.monotonic() + seconds
    while not (value := right()):
        assert process.poll() is None and time.monotonic() < end, f"{what}:\n{log.read_text()[-3000:]}"
        time.sleep(0.05)
    return value


def store(project):
    return running(project / "share.socket")


@contextlib.contextmanager
def server(project, *command, launcher=()):
    """A module of Python's as a server; with a launcher before it the store is the launcher's."""
    log = project / "server.log"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAYFLY_")} | {
        "PYTHONPATH": os.pathsep.join([str(project), str(ROOT / "python")]),
        "MAYFLY_MERGE_PATH": "engine",
        "PYTHONUNBUFFERED": "1",
    }
    environment |= {"TMPDIR": project} if launcher else {"MAYFLY_SHARE_SOCKET": project / "share.socket"}
    with log.open("w") as file:
        process = subprocess.Popen(
            [*launcher, sys.executable, "-m", *command], cwd=project, env=environment, stdout=file,
            stderr=file, start_new_session=True,
        )  # fmt: skip
    with ended(process):
        yield process, log


def shared_mib(pid):
    """Its mappings of the store's segments whose pages are in its page table."""
    total, inside = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-", line):
            inside = "mayfly-pages" in line
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) / 1024
        elif inside and line.startswith("Anonymous:"):
            total -= int(line.split()[1]) / 1024
    return total


def family(pid):
    """A process and all its descendants."""
    found = [pid]
    for one in found:
        with contextlib.suppress(FileNotFoundError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def sharing(pid):
    """The processes of a server that share all of the model through the store."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [one for one in family(pid) if shared_mib(one) > 0.98 * MODEL_MIB]
    return []


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetch_many(port):
    """So many requests at once that each worker gets one, after which it may share."""
    with concurrent.futures.ThreadPoolExecutor(2 * WORKERS) as clients:
        return all(clients.map(fetch, [port] * 2 * WORKERS))


def fetch(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
            return answer.read().decode()
    except OSError:
        return None


def right_answer():
    import numpy

    return f"{numpy.random.default_rng(1).random(MODEL_MIB << 17).sum():.6f}"


# No worker is replaced because the machine is slow: these tests count them.
WEB = {
    "gunicorn": lambda port: [
        "gunicorn",
        "--workers",
        str(WORKERS),
        "--bind",
        f"127.0.0.1:{port}",
        "--timeout",
        "300",
        "app:application",
    ],
    "uvicorn": lambda port: [
        "uvicorn",
        "--workers",
        str(WORKERS),
        "--port",
        str(port),
        "--timeout-worker-healthcheck",
        "300",
        "asgi:application",
    ],
}


@pytest.mark.parametrize("name", WEB)
def test_a_web_server_shares_its_model(name, project):
    port = free_port()
    with store(project), server(project, *WEB[name](port)) as (process, log):
        answer = until("it answers", lambda: fetch(port), process, log)
        assert answer.split()[0] == right_answer()
        workers = until(
            "its workers share",
            lambda: fetch_many(port) and len(w := sharing(process.pid)) >= WORKERS and w,
            process,
            log,
        )
        assert int(answer.split()[1]) in workers and process.pid not in workers
        assert "nothing is shared" not in log.read_text()
        assert fetch(port).split()[0] == right_answer()


def pss_mib(pids):
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(int(text.split("Pss:")[1].split()[0]) for text in texts) / 1024


def test_gunicorns_master_shares_before_it_forks(project):
    """With --preload: all processes together have the model once."""
    port = free_port()
    words = ["gunicorn", "--preload", *WEB["gunicorn"](port)[1:]]
    with store(project), server(project, *words) as (process, log):
        # A worker has the pages in its page table once it has answered.
        everyone = until(
            "all share",
            lambda: fetch_many(port) and len(all_of := family(process.pid)) > WORKERS
            and set(sharing(process.pid)) == set(all_of) and all_of,
            process,
            log,
        )  # fmt: skip
        assert fetch(port).split()[0] == right_answer()
        with_store = pss_mib(everyone)
    (project / "gunicorn.conf.py").write_text("")
    with server(project, *words) as (process, log):
        plain = until(
            "all are there and it answers",
            lambda: len(all_of := family(process.pid)) > WORKERS and fetch_many(port) and all_of,
            process,
            log,
        )
        assert with_store < pss_mib(plain) + MODEL_MIB / 4


@pytest.mark.parametrize("name", WEB)
def test_a_web_server_starts_without_a_store(name, project):
    port = free_port()
    with server(project, *WEB[name](port)) as (process, log):
        answer = until("it answers", lambda: fetch(port), process, log)
        assert answer.split()[0] == right_answer()
        until(
            "it logs the reason",
            lambda: fetch_many(port) and log.read_text().count("nothing is shared") == WORKERS,
            process,
            log,
        )
        assert "mayfly share" in log.read_text() and sharing(process.pid) == []


def test_uvicorn_under_share_run(project):
    """One command brings the store, which ends with it."""
    port = free_port()
    launcher = (MAYFLY, "share", "run", "--")
    with server(project, *WEB["uvicorn"](port), launcher=launcher) as (process, log):
        until("it answers", lambda: fetch(port), process, log)
        workers = until(
            "its workers share",
            lambda: fetch_many(port) and len(w := sharing(process.pid)) >= WORKERS and w,
            process,
            log,
        )
        value, pid = fetch(port).split()
        assert value == right_answer() and int(pid) in workers
        assert list(project.glob("mayfly-share-*"))
        assert not re.search("mayfly:|mayfly-merge:|nothing is shared", log.read_text())
    end = time.monotonic() + 20
    while list(project.glob("mayfly-share-*")):
        assert time.monotonic() < end, "the store has not ended with the command"
        time.sleep(0.05)


ASK = "import tasks; print(tasks.answer.delay().get(timeout=120))"


@pytest.mark.parametrize("has_store", [True, False])
def test_celery(has_store, project):
    pytest.importorskip("celery")
    words = ["celery", "-A", "tasks", "worker", "--pool", "prefork", "--concurrency", str(WORKERS),
             "--without-gossip", "--without-mingle", "--without-heartbeat"]  # fmt: skip
    with contextlib.ExitStack() as stack:
        if has_store:
            stack.enter_context(store(project))
        process, log = stack.enter_context(server(project, *words))
        if has_store:
            until("the parent shares", lambda: process.pid in sharing(process.pid), process, log)
        else:
            # Its parent, before it forks.
            until(
                "it logs the reason",
                lambda: log.read_text().count("nothing is shared") == 1,
                process,
                log,
            )
        asked = subprocess.run(
            [sys.executable, "-c", ASK],
            cwd=project,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(project), str(ROOT / "python")])},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert asked.returncode == 0, asked.stderr[-2000:] + log.read_text()[-2000:]
        value, pid = asked.stdout.split()
        assert value == right_answer()
        assert int(pid) != process.pid and (int(pid) in sharing(process.pid)) == has_store


RAY = """
import pathlib, signal
import ray, serve

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
replicas = [serve.Replica.remote() for _ in range(2)]
answers = ray.get([replica.answer.remote() for replica in replicas])
pathlib.Path("answers.new").write_text(" ".join(answers))
pathlib.Path("answers.new").rename("answers")
signal.pause()  # Ray ends with its driver
"""


@pytest.mark.parametrize("has_store", [True, False])
def test_ray(has_store, project, monkeypatch):
    pytest.importorskip("ray", reason="Ray is not in the environment: on a busy machine it does not start")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    (project / "driver.py").write_text(RAY)
    answers = project / "answers"
    with contextlib.ExitStack() as stack:
        if has_store:
            stack.enter_context(store(project))
        process, log = stack.enter_context(server(project, "driver"))
        until("it answers", answers.exists, process, log)
        words = answers.read_text().split()
        assert words[0] == words[2] == right_answer()
        for pid in (words[1], words[3]):
            assert (shared_mib(int(pid)) > 0.98 * MODEL_MIB) == has_store
