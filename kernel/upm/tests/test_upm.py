"""The UPM series: the promises of madvise(MADV_UPM), random operations against a model of the content,
HotMem beside it, and the kernel's own KSM tests. A warning of the kernel is a failure, and so is a counter
that does not return to its start."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from guest import MIB, Guest, partition_args, run_script

HERE = Path(__file__).resolve().parent
KERNEL = HERE.parents[1]
SELFTESTS = "tools/testing/selftests"
# Two nodes, memory that can be taken offline, and as little else as possible.
QEMU = ["-smp", "2", "-m", "1G"]
for node in (0, 1):
    QEMU += ["-object", f"memory-backend-ram,id=ram{node},size=512M"]
    QEMU += ["-numa", f"node,nodeid={node},memdev=ram{node}"]
SWAP = "echo 256M > /sys/block/zram0/disksize && mkswap /dev/zram0 >/dev/null && swapon /dev/zram0 && "
# As tools/testing/selftests/mm/run_vmtests.sh runs them, but for 8 MiB instead of 100: emulation is slow.
KSM_TESTS = ["-H -s 8", "-P -s 8", "-M -p 10", "-U", "-Z -p 10 -z 0", "-Z -p 10 -z 1", "-N -m 1", "-N -m 0"]
STATIC = ["-static", "-pthread"]
MINUTES_10 = 600


def printed(*command):
    """The lines that a command prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def boot(kernel, script, programs, timeout, append=""):
    files = {program.name: program for program in programs}
    return run_script(kernel / "bzImage", script, files, QEMU, timeout, append)


@pytest.fixture(scope="session")
def selftests(tmp_path_factory, linux):
    """The kernel's selftests, unpacked, with the one that the series adds."""
    at = tmp_path_factory.mktemp("linux")
    names = ["tools/include/uapi", "include/vdso/time64.h", f"{SELFTESTS}/kselftest.h", f"{SELFTESTS}/mm"]
    tarball = printed(KERNEL / "source", linux)[0]
    command = ["tar", "-x", "-J", "-f", tarball, "-C", str(at), "--strip-components", "1"]
    subprocess.run(command + [f"linux-source-{linux}/{name}" for name in names], check=True)
    for patch in printed(KERNEL / "build", "--kernel", linux, "--series", "upm", "--list"):
        command = ["git", "apply", "--whitespace=nowarn", f"--include={SELFTESTS}/mm/*", patch]
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(at.parent)}
        subprocess.run(command, cwd=at, check=True, env=environment)
    return at


def test_promises(kernel, compiled, selftests):
    mm, include = selftests / SELFTESTS / "mm", [f"-I{kernel}/include", f"-I{selftests}/tools/include/uapi"]
    include += [f"-I{selftests / SELFTESTS}"]
    sources = [mm / "upm_functional_tests.c", mm / "vm_util.c"]
    program = compiled("upm_functional_tests", sources, *STATIC, *include)
    console = boot(kernel, SWAP + "/upm_functional_tests", [program], 1800)
    assert any(line.startswith("# Totals") for line in console)


# First without ksmd, whose entries only ksmd removes; then with it.
@pytest.mark.parametrize("words", ["", "--ksmd"], ids=["alone", "ksmd"])
def test_random_operations(kernel, compiled, pytestconfig, words):
    ops, seed = pytestconfig.option.ops // 2, pytestconfig.option.seed
    program = compiled("random", [HERE / "random.c"], *STATIC)
    script = f"{SWAP} /random --ops {ops} --seed {seed} --swap --offline {words}"
    console = boot(kernel, script, [program], 1800 + ops / 2.5, "movablecore=512M")
    assert any(line.startswith("random: ok") for line in console)


@pytest.mark.soak
def test_ksm(kernel, compiled, selftests, pytestconfig):
    """The kernel's own tests of KSM, on the patched kernel and on that of --stock."""
    mm, include = selftests / SELFTESTS / "mm", [*STATIC, f"-I{kernel}/include", f"-I{selftests}"]
    include += [f"-I{selftests / SELFTESTS}"]
    common = [mm / "vm_util.c", *mm.glob("*_settings.c")]
    ksm_tests = compiled("ksm_tests", [mm / "ksm_tests.c", *common], *include, "-lnuma")
    functional = compiled("ksm_functional_tests", [mm / "ksm_functional_tests.c", *common], *include)
    child = functional.with_name("ksm_fork_exec_child")
    child.write_bytes(functional.read_bytes())
    # -U writes while ksmd may be half way through the scan that it then waits for: one run in seven fails,
    # also on the kernel without the series. So each test has five attempts.
    tries = "for i in 1 2 3 4 5; do /ksm_tests {} >/out 2>&1 && break; done; grep -E '^(not )?ok' /out\n"
    script = "".join(tries.format(words) for words in KSM_TESTS)
    script += "/ksm_functional_tests 2>&1 | grep -E '^(not )?ok'\nexit 0"
    results = []
    for which in filter(None, [kernel, pytestconfig.option.stock]):
        console = boot(which, script, [ksm_tests, functional, child], 1800)
        results.append([line for line in console if line.startswith(("ok", "not ok"))])
        assert not any(line.startswith("not ok") for line in results[-1])
        assert len(results[-1]) >= len(KSM_TESTS) + 8
    assert results[0] == results[-1]


@pytest.fixture
def advisors(kernel, compiled):
    """A VM in whose two partitions a process each has advised the same 8 MiB: the guest, and their ids."""
    program = compiled("partitions", [HERE / "partitions.c"], *STATIC, f"-I{kernel}/include")
    qemu = partition_args(2, 256, 256, 512, 2)
    files = {"bin/partitions": program}
    with Guest(kernel / "bzImage", b"", files, qemu, "hotmem.partitions=2", drive=True) as guest:
        ids = {}
        for node in (2, 3):
            guest.resize(f"part{node}", 256 * MIB)
            # Data written to a file in memory would stay in its partition.
            guest.run(f"mkfifo /tmp/pipe{node}; cat /tmp/pipe{node} >/tmp/out{node} 2>&1 &")
            ids[node] = int(guest.run(f"partitions {node} > /tmp/pipe{node} 2>&1 & echo $!"))
            output, end = "", time.monotonic() + MINUTES_10
            while not output and time.monotonic() < end:
                time.sleep(0.1)
                output = guest.run(f"cat /tmp/out{node}", check=False).strip()
            assert output == "ready", f"node {node}"
        yield guest, ids
        assert not guest.splats


def test_partition_of_the_first_advisor_unplugs(advisors):
    """It unplugs while an instance in another partition uses the stable pages."""
    guest, ids = advisors
    assert int(guest.run("cat /sys/kernel/mm/ksm/pages_sharing")) >= 2040
    for node in (2, 3):
        guest.run(f"kill -9 {ids[node]}; while [ -d /proc/{ids[node]} ]; do sleep 0.05; done")
        guest.resize(f"part{node}", 0)
        if node == 2:
            time.sleep(0.5)
            assert guest.run("cat /tmp/out3").strip() == "ready"
    end = time.monotonic() + MINUTES_10
    while (stable := guest.run("cat /sys/kernel/mm/upm/stable_pages").strip()) != "0":
        assert time.monotonic() < end, f"{stable} stable pages are left"
        time.sleep(0.1)
