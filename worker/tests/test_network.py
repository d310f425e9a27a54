"""The network outside: what a function with `Network: outside` reaches, what it cannot reach, and what the
worker removes after it, in a container and in a VM."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest
from calls import PYTHON, in_shell, invoke
from conftest import HERE, MAYFLY, TEMPLATE, Worker
from test_vm import PATIENT

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nft"), reason="interfaces and rules need root and nftables"
)
NAMESPACE = f"mayfly-test-{os.getpid()}"
HOST, SERVER = "10.231.77.1", "10.231.77.2"
PORT = 8099
INSIDE = ["ip", "netns", "exec", NAMESPACE]
FORWARDING = pathlib.Path("/proc/sys/net/ipv4/ip_forward")


def run(*words):
    subprocess.run(words, check=True)


def tables():
    return subprocess.run(["nft", "list", "tables"], capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def server():
    """A server in a network namespace of its own, which plays the network outside."""
    with contextlib.ExitStack() as stack:
        stack.callback(FORWARDING.write_text, FORWARDING.read_text())
        run("ip", "netns", "add", NAMESPACE)
        stack.callback(run, "ip", "netns", "del", NAMESPACE)
        name = f"mt{os.getpid()}"
        run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", NAMESPACE)
        run("ip", "addr", "add", f"{HOST}/30", "dev", name)
        run("ip", "link", "set", name, "up")
        run("ip", "-n", NAMESPACE, "addr", "add", f"{SERVER}/30", "dev", "eth0")
        run("ip", "-n", NAMESPACE, "link", "set", "eth0", "up")
        # A route back to instances, so that only the worker's rules can stop incoming packets.
        run("ip", "-n", NAMESPACE, "route", "add", "100.64.0.0/10", "via", HOST)
        serving = subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                NAMESPACE,
                sys.executable,
                "-m",
                "http.server",
                str(PORT),
                "-d",
                str(HERE),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        stack.callback(serving.wait)
        stack.callback(serving.kill)
        for _ in range(100):
            with contextlib.suppress(OSError):
                socket.create_connection((SERVER, PORT), 1).close()
                break
        yield f"http://{SERVER}:{PORT}/{pathlib.Path(__file__).name}"


# Functions of one VM must be as isolated from one another as those of two.
FUNCTIONS = [("reaches", "outside", ""), ("other", "outside", ""), ("closed", "none", "")]
APART = ("apart", "outside", ", Vm: apart")


@pytest.fixture(scope="module", params=["process", "vm"])
def outside(request, tmp_path_factory, server):
    in_vm = request.param == "vm"
    if in_vm:
        subprocess.run([MAYFLY, "vm", "image"], check=True, stdout=subprocess.DEVNULL)
    template = tmp_path_factory.mktemp("network") / "template.yaml"
    function = """
  {name}:
    Type: AWS::Serverless::Function
    Metadata: {{ Mayfly: {{ Network: {network}{vm} }} }}
    Properties: {{ CodeUri: {code}, Handler: app.handler, Runtime: python3.11, Timeout: 600 }}""".replace(
        "python3.11", PYTHON
    )
    functions = [*FUNCTIONS, APART] if in_vm else FUNCTIONS
    code = HERE / "functions/probe"
    text = [function.format(name=name, network=network, vm=vm, code=code) for name, network, vm in functions]
    template.write_text("Resources:" + "".join(text))
    sandbox = [*PATIENT, "--without", "heap,merge", "--partitions", "4"] if in_vm else []
    with Worker(str(template), *sandbox) as running:
        running.others = [name for name, network, _ in functions if network == "outside"][1:]
        yield running
    assert "mayfly_worker" not in tables()


def shell(client, command, name="reaches"):
    return in_shell(client, command, name)["out"].strip()


def connects(client, address, port, name="reaches"):
    code = f"import socket; socket.create_connection(('{address}', {port}), 2); print('yes')"
    return shell(client, f'{PYTHON} -c "{code}" 2>/dev/null', name) == "yes"


def test_host_forwards_until_the_last_worker_exits(server):
    FORWARDING.write_text("0")
    template = TEMPLATE

    def ask(running):
        assert invoke(running.client(), "probe", {"do": "count"})[1] is None
        return FORWARDING.read_text().strip()

    with Worker(template, "--network", "outside") as first:
        assert ask(first) == "1"
        with Worker(template, "--network", "outside") as second:
            assert ask(second) == "1"
            assert first.stop() == 0 and FORWARDING.read_text().strip() == "1", "the second needs it"
            assert second.stop() == 0 and FORWARDING.read_text().strip() == "0"


def test_function_reaches_an_outside_server(outside, server):
    client = outside.client()
    # More than one packet holds.
    fetch = f"import urllib.request; print(len(urllib.request.urlopen('{server}', timeout=10).read()))"
    assert shell(client, f'{PYTHON} -c "{fetch}"') == str(pathlib.Path(__file__).stat().st_size)
    assert not connects(client, SERVER, PORT, "closed")
    assert shell(client, "cat /proc/net/dev | grep -c :", "closed") == "1"


def test_host_and_other_instances_are_unreachable(outside):
    client = outside.client()
    for other in outside.others:
        assert_apart(outside, client, other)


def assert_apart(outside, client, other):
    own = f'{PYTHON} -c "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); '
    own += f"s.connect(('{SERVER}', 1)); print(s.getsockname()[0])\""
    address = shell(client, own, other)
    assert address.startswith("100.") and address != shell(client, own)
    gateway = address.rsplit(".", 1)[0] + f".{int(address.rsplit('.', 1)[1]) - 1}"
    with socket.create_server(("0.0.0.0", 0)) as listening:
        port = listening.getsockname()[1]
        socket.create_connection((HOST, port), 2).close()  # it is there
        for place in [HOST, gateway, "127.0.0.1"]:
            assert not connects(client, place, port), place
        assert not connects(client, "127.0.0.1", outside.port), "nor the API"
    # Neither the other instance's Runtime API, which listens on its loopback only, nor any other port of it.
    assert connects(client, "127.0.0.1", 9001) and not connects(client, address, 9001)
    listen = "import socket; s = socket.create_server(('0.0.0.0', 7777)); s.settimeout(60); s.accept()"
    listens = "until grep -q :1E61 /proc/net/tcp; do sleep 0.1; done"
    shell(client, f'nohup {PYTHON} -c "{listen}" >/dev/null 2>&1 & {listens}', other)
    assert not connects(client, address, 7777)
    # No host outside reaches it either.
    code = f"import socket; socket.create_connection(('{address}', 7777), 2)"
    connecting = subprocess.run([*INSIDE, sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    assert connecting.returncode != 0


def test_worker_removes_its_rules_and_no_interface_of_others(outside):
    client = outside.client()
    assert invoke(client, "reaches", {"do": "count"})[1] is None
    links = {path.name for path in pathlib.Path("/sys/class/net").glob("mf*-*")}
    assert links
    with Worker(TEMPLATE, "--network", "outside") as first:
        assert invoke(first.client(), "probe", {"do": "count"})[1] is None
        table = f"mayfly_worker_{first.process.pid}_"
        assert table in tables()
    with Worker(TEMPLATE, "--network", "outside") as second:
        assert invoke(second.client(), "probe", {"do": "count"})[1] is None
        assert table not in tables()
    assert links <= {path.name for path in pathlib.Path("/sys/class/net").glob("mf*-*")}


CALLS = """
import boto3, json, os
answer = boto3.client('lambda').invoke(FunctionName='NAME', Payload=json.dumps({'do': 'count'}))
print(json.load(answer['Payload'])['calls'], 'AWS_ENDPOINT_URL' in os.environ)
"""


def test_functions_call_one_another_with_and_without_the_network(outside):
    client = outside.client()
    for caller, called, leads_here in [("reaches", "closed", "False"), ("closed", "reaches", "True")]:
        code = CALLS.replace("NAME", called)
        number, has_endpoint = shell(client, f'{PYTHON} -c "{code}"', caller).split()
        assert int(number) > 0 and has_endpoint == leads_here, caller
