"""The HotMem series: partitions are plugged and unplugged while programs (hotmem.c) get them, fork, exec,
swap, overflow and try to get out; then all of that at random. A complaint of the kernel, a page in the wrong
place or memory that does not come back is a failure."""

import random
import time
from pathlib import Path

import pytest
from guest import MIB
from partitions import FIRST, SHARED, SIZE, Partitions, Ranges, disk, until

CASES = Path(__file__).resolve().parent / "hotmem.c"


@pytest.fixture(scope="session", params=[Partitions, Ranges], ids=["devices", "ranges"])
def boot(request, kernel, compiled, tmp_path_factory, pytestconfig):
    flags = ["-Wall", "-Werror", "-static", "-pthread", f"-I{kernel}/include"]
    programs = [
        compiled("hotmem", [CASES], "-O1", "-Wextra", *flags),
        compiled("hotmem_test", [kernel / "selftests/hotmem/hotmem_test.c"], *flags),
    ]
    image = disk(tmp_path_factory.mktemp("disk"))
    option = pytestconfig.option
    return lambda: request.param(kernel, programs, image, option.partitions, option.append)


@pytest.fixture(scope="session")
def left(boot):
    """The previous test's VM, if that left it as it was; else a new one."""
    vms = []
    yield vms
    for vm in vms:
        vm.end()


@pytest.fixture
def vm(boot, left, request):
    """A VM whose partitions are all absent, before and after the test."""
    running = left.pop() if left else boot()
    failed = request.session.testsfailed
    try:
        yield running
        if request.session.testsfailed == failed:
            running.check_as_it_was()
            left.append(running)
    finally:
        if running not in left:
            running.end()


@pytest.fixture
def chance(pytestconfig):
    return random.Random(pytestconfig.option.seed)


def test_absent(vm):
    for node in vm.nodes:
        assert vm.partitions()[node] == ("absent", 0, 0, 0, 0)
    vm.case("wait", FIRST)


def test_ranges_chosen_by_the_kernel(vm):
    """The lowest absent range is plugged, the highest unused one unplugged; a range with a user stays."""
    if not isinstance(vm, Ranges):
        pytest.skip("each partition has a device")
    vm.guest.run("echo -1 > /sys/kernel/mm/hotmem/range_node")
    first, second, third = vm.nodes[:3]
    for plugged in (1, 2, 3):
        vm.guest.resize("all", (SHARED + plugged * SIZE) * MIB)
        vm.state(vm.nodes[plugged - 1], "ready")
    pid = vm.hold(third, 20)
    vm.guest.resize("all", (SHARED + 2 * SIZE) * MIB)
    assert [vm.partitions()[node][0] for node in (first, second, third)] == ["ready", "absent", "used"]
    vm.guest.resize("all", (SHARED + 3 * SIZE) * MIB)
    vm.state(second, "ready")
    vm.kill(pid)
    # Half a partition is none.
    vm.guest.request("all", (SHARED + SIZE // 2) * MIB)
    until("the others are gone", lambda: vm.guest.size("all") == (SHARED + SIZE) * MIB)
    assert [vm.partitions()[node][0] for node in (first, second, third)] == ["ready", "absent", "absent"]
    vm.guest.resize("all", SHARED * MIB)
    assert "nvalid" in vm.guest.run("echo 77 > /sys/kernel/mm/hotmem/range_node", check=False)


def test_selftest(vm):
    """The kernel's own test of the series (tools/testing/selftests/hotmem)."""
    vm.plug(FIRST)
    assert "# Totals: pass:9 fail:0" in vm.guest.run("hotmem_test | cat")
    vm.unplug(FIRST)


@pytest.fixture
def swap(vm):
    vm.guest.run("echo 200M > /sys/block/zram0/disksize; mkswap /dev/zram0; swapon /dev/zram0")
    yield
    vm.guest.run("swapoff /dev/zram0; echo 1 > /sys/block/zram0/reset")


def test_places(vm, swap, chance):
    """The pages of an instance lie in its partition, whatever it does."""
    vm.guest.run("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
    for name in ("anon", "fork", "exec", "thp", "file", "escape", "swap"):
        node = chance.choice(vm.nodes)
        vm.plug(node)
        vm.case(name, node)
        vm.state(node, "ready")
        vm.unplug(node)


def test_zero(vm):
    """Pages are zeroed, also with init_on_free, with which plugged memory counts as zeroed."""
    for _ in range(2):
        vm.plug(FIRST)
        vm.case("zero", FIRST)
        vm.case("zero", FIRST)
        vm.unplug(FIRST)


def test_disk(vm):
    vm.plug(FIRST)
    vm.guest.run("mkdir -p /disk; mount -t ext2 -o ro /dev/vda /disk")
    vm.case("disk", FIRST, "/disk/file")
    # Another instance finds the file in the page cache, and so does a process without a partition.
    vm.case("disk", FIRST, "/disk/file")
    vm.guest.run("cat /disk/file > /dev/null")
    vm.unplug(FIRST)


def test_used(vm):
    """A used partition refuses an unplug; it is unplugged once its user has ended."""
    vm.plug(FIRST)
    pid = vm.hold(FIRST, 200)
    state, users, used, _, _ = vm.partitions()[FIRST]
    assert (state, users) == ("used", 1) and used >= 200 * 256
    vm.refuse_to_unplug(FIRST)
    blocks = vm.guest.run(f"ls -d /sys/devices/system/node/node{FIRST}/memory*").split()
    assert "busy" in vm.guest.run(f"echo offline > {blocks[0]}/state", check=False)
    assert vm.partitions()[FIRST][2] >= 200 * 256
    vm.case("wait", FIRST)
    vm.kill(pid)
    vm.state(FIRST, "ready")
    vm.unplug(FIRST)


def test_by_hand(vm):
    """A free partition works as before after it was taken offline and online through sysfs."""
    vm.plug(FIRST)
    blocks = vm.guest.run(f"ls -d /sys/devices/system/node/node{FIRST}/memory[0-9]*").split()
    for block in blocks:
        vm.guest.run(f"echo offline > {block}/state")
    assert vm.partitions()[FIRST][3] == 0
    assert "nvalid" in vm.guest.run(f"echo online_kernel > {blocks[0]}/state", check=False)
    for block in blocks:
        vm.guest.run(f"echo online > {block}/state")
        assert vm.guest.run(f"cat {block}/valid_zones").strip() == "Movable"
    vm.state(FIRST, "ready")
    assert vm.partitions()[FIRST][3] == SIZE * MIB // 4096
    vm.case("anon", FIRST)
    vm.unplug(FIRST)


def test_sleepers(vm):
    """Processes that wait for a partition are woken by a plug and by a release; one of them gets it."""
    vm.start("sleep", FIRST)
    time.sleep(0.3)
    vm.plug(FIRST)
    vm.wait_out(FIRST, "awake")
    vm.state(FIRST, "ready")
    pid = vm.hold(FIRST, 1)
    vm.guest.run(f"for i in 1 2 3; do hotmem sleep {FIRST} 2>&1 | cat > /tmp/out9$i & done")
    time.sleep(0.3)
    vm.kill(pid)
    for i in (91, 92, 93):
        vm.wait_out(i, "awake")
    vm.state(FIRST, "ready")
    vm.unplug(FIRST)


def test_overflow(vm):
    """An overflow kills the offender, not its neighbour, and no process outside partitions."""
    first, second = vm.nodes[:2]
    vm.plug(first)
    vm.plug(second)
    pid = vm.hold(second, 200)
    before = [vm.partitions()[node][4] for node in (first, second)]
    vm.case("overflow", first, 400)
    assert [vm.partitions()[node][4] for node in (first, second)] == [before[0] + 1, before[1]]
    assert vm.guest.run(f"ls -d /proc/{pid}").strip() == f"/proc/{pid}"
    # A process that is exempt from the OOM killer is not exempt from a partition's overflow.
    vm.guest.run(f"(echo -1000 > /proc/self/oom_score_adj; exec hotmem overflow {first} 400)")
    assert vm.partitions()[first][4] == before[0] + 2
    vm.kill(pid)
    for node in (first, second):
        vm.state(node, "ready")
        vm.unplug(node)


def test_kept(vm):
    """A file in a tmpfs holds its partition until it is removed (or swapped out)."""
    vm.plug(FIRST)
    pid = vm.start("keep", FIRST, "/tmp/kept")
    vm.wait_out(FIRST, "holding")
    vm.kill(pid)
    vm.state(FIRST, "ready")
    # Other pages of the process may lie in per-CPU batches: this flushes them.
    vm.guest.run("echo 1 > /proc/sys/vm/drop_caches")
    assert vm.partitions()[FIRST][2] == 512
    vm.refuse_to_unplug(FIRST)
    vm.guest.run("rm /tmp/kept")
    vm.unplug(FIRST)


def test_reuse(vm):
    """The next user gets all of the partition at once, also on another CPU than the last user."""
    vm.plug(FIRST)
    overflows = vm.partitions()[FIRST][4]
    fill = f"hotmem fill {FIRST} {SIZE - 2}"
    vm.guest.run(f"for cpu in 1 2 1; do taskset $cpu {fill} || exit 1; done")
    assert vm.partitions()[FIRST][4] == overflows
    vm.unplug(FIRST)


def test_pressure(vm):
    """Boot memory runs out: nothing spills into a partition."""
    vm.plug(FIRST)
    vm.guest.run("mount -o remount,size=64G /tmp")
    vm.guest.run(f"fallocate -l {(vm.boot_memory_free_mib() - 40) * MIB} /tmp/fill")
    assert vm.partitions()[FIRST][2] == 0
    vm.guest.run("rm -f /tmp/fill")
    vm.unplug(FIRST)


def test_at_random(vm, chance, pytestconfig):
    """Partitions are plugged and unplugged at random while their users allocate and fork at random."""
    users, absent, ready = {}, set(vm.nodes), set()
    for _ in range(pytestconfig.option.rounds):
        node = chance.choice(vm.nodes)
        if node in absent:
            vm.plug(node)
            absent.remove(node)
            ready.add(node)
        elif node in users:
            if chance.random() < 0.3:
                vm.refuse_to_unplug(node)
                time.sleep(0.05)
            vm.kill(users.pop(node))
            vm.state(node, "ready")
            ready.add(node)
        elif chance.random() < 0.5:
            vm.unplug(node)
            ready.remove(node)
            absent.add(node)
        elif chance.random() < 0.4:
            users[node] = vm.hold(node, chance.randrange(1, 64))
            ready.remove(node)
        else:
            vm.case(chance.choice(["anon", "fork", "exec", "thp", "file", "escape"]), node)
            vm.state(node, "ready")
    for node, pid in users.items():
        vm.kill(pid)
        vm.state(node, "ready")
    for node in {*users, *ready}:
        vm.unplug(node)
