"""Both sides as one program under QEMU: libmemento.so's jumps cost the baseline nothing, and Memento's
instruction takes the place of the call."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/libmemento.so"
TURNS = 20_000
# It marks its own region: so many turns, each a malloc and a free.
SOURCE = """
#include <stdlib.h>
#include <unistd.h>
extern void *_Znwm(size_t);
extern void _ZdlPv(void *);
static void turn(size_t size) { char *object = NEW(size); *object = 1; DELETE(object); }
int main(int many, char **words) {
    size_t size = atoi(words[1]);
    for (int i = 0; i < 100; i++) turn(size);
    getpgid(0x4d4d0003), getpgid(0x4d4d0001);
    for (int i = 0; i < TURNS; i++) turn(size);
    getpgid(0x4d4d0002);
}
"""


@pytest.fixture(scope="module")
def measured(folder, sim, image):
    """The statistics of turns with objects of a size, by Memento's allocator or by the C library's."""
    subprocess.run([ROOT / "sim/shim/build"], check=True)
    shutil.copy(LIBRARY, folder)
    (folder / "turns_of.c").write_text(SOURCE)
    flags = ["-O1", "-fno-builtin", f"-DTURNS={TURNS}"]
    for name, new, delete, library in (
        ("turns_of", "malloc", "free", []),
        ("turns_of_new", "_Znwm", "_ZdlPv", ["./libmemento.so"]),
    ):
        command = ["gcc", *flags, f"-DNEW={new}", f"-DDELETE={delete}", "-o", name, "turns_of.c", *library]
        subprocess.run(command, cwd=folder, check=True)

    def measured(size, *words, memento=None, program="turns_of"):
        side = (
            []
            if memento is None
            else ["--env", f"MEMENTO={memento}", "--env", "LD_PRELOAD=/tmp/libmemento.so"]
        )
        machine = ["--machine", "memento"] if memento else []
        options = ["--json", "--image", image, "--env", "MAYFLY_REGION=first", *machine, *side, *words]
        done = sim(*map(str, options), "--file", "libmemento.so", "--", f"./{program}", str(size))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return measured


def program_cycles(one):
    """Without the kernel's, which depend on when its timer ticks."""
    return sum(one[f"cycles_by_owner.{owner}"] for owner in ("user", "allocate", "free"))


def test_the_jump_to_the_chosen_allocator_costs_the_baseline_nothing(measured):
    plain, redirected = measured(64), measured(64, memento=0)
    # Beside the turns: the marks' system calls.
    assert abs(redirected["user_instructions"] - plain["user_instructions"]) < 100
    assert redirected["uncharged_instructions"] >= 2 * TURNS, "the jumps"
    assert abs(program_cycles(redirected) / program_cycles(plain) - 1) < 0.002
    assert redirected["made_with.program"] == plain["made_with.program"]


def test_an_instruction_takes_the_place_of_a_call(measured):
    replaced = measured(64, memento=1)
    wrapped = measured(64, "--set", "memento.replaces_calls=false", memento=1)
    for one in (replaced, wrapped):
        assert (one["memento.allocations"], one["memento.frees"]) == (TURNS, TURNS)
    more = (wrapped["user_instructions"] - replaced["user_instructions"]) / TURNS
    # Of each of the two: the call, the jump to another file, a comparison and the return.
    assert more >= 8, more
    assert program_cycles(replaced) < program_cycles(wrapped)


@pytest.mark.parametrize("program", ["turns_of", "turns_of_new"])
def test_large_objects_cost_as_much_as_on_the_baseline(measured, program):
    baseline, memento = (measured(1000, memento=side, program=program) for side in (0, 1))
    assert memento["memento.allocations"] == 0
    assert abs(memento["user_instructions"] - baseline["user_instructions"]) < 100
    assert memento["branch.returns_mispredicted"] < baseline["branch.returns_mispredicted"] + 100
