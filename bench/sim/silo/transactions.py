"""Silo's own benchmarks (§5) on the baseline and on Memento: the same transactions, in how many cycles."""

import json
import lzma
import os
import subprocess

from bench.outcome import RESULTS, ROOT, figure, table, write
from bench.sim.collect import program
from bench.sim.ratios import part
from bench.sim.simulate import commit, run

# Half of each is measured. In each second of the guest's time Silo keeps the first overwritten version of a
# row, for readers of the last second's state.
BENCHMARKS = {
    "ycsb": ("ycsb", "400000", "30"),
    "tpcc": ("tpcc", "4000", "1"),
}
SIDES = ("native", "memento")


def benchmark(words: tuple[str, ...], side: str, image: str) -> dict:
    arguments = ["--image", image, "--env", "MAYFLY_REGION=warm", "--allocator", side, "--", "./silo", *words]
    found = run(arguments, where=ROOT / "target/silo")
    # The line before has the throughput by the guest's clock, which does not follow the cycles.
    found["output"] = found["output"].splitlines()[-1]
    if f"{words[1]} of {words[1]} transactions" not in found["output"]:
        raise SystemExit(f"bench/sim/silo: {found['output']}")
    return found


def causes(native: dict, memento: dict) -> dict:
    """The gain by owner and cause, in percent of the baseline's cycles."""
    flat = {}
    for key in native:
        if key.startswith(("cycles_of.", "cycles_by_owner.")) and native[key] != memento[key]:
            name = key.removeprefix("cycles_of.").removeprefix("cycles_by_owner.")
            flat[f"gain_of.{name}_percent"] = part(native[key] - memento[key], native["cycles"])
    return flat


def rows(flat: dict) -> list[list[str]]:
    columns = ("speedup", "management.of_cycles", "traffic_saved", "pages_saved", "hot.allocation_hits")
    lines = [["percent", *columns, "mallocs in 1000 instructions"]]
    for name in BENCHMARKS:
        numbers = [flat.get(f"{name}.{key}_percent") for key in columns]
        lines.append([name, *map(figure, numbers), figure(flat.get(f"{name}.malloc_pki"), 2)])
    return lines


def main() -> None:
    image = os.environ.get("MAYFLY_SIM_IMAGE")
    if image is None:
        image = subprocess.run(
            [ROOT / "sim/image/build"], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip()
    flat, raw = {"made_with.commit": commit()}, {}
    for name, words in BENCHMARKS.items():
        runs = raw[name] = {side: benchmark(words, side, image) for side in SIDES}
        found = program(runs) | causes(runs["native"], runs["memento"])
        flat |= {f"{name}.{key}": value for key, value in found.items()}
    (RESULTS / "sim/silo.json.xz").write_bytes(lzma.compress(json.dumps(raw, indent=1).encode()))
    write(RESULTS / "sim-silo.json", flat)
    table(rows(flat))


if __name__ == "__main__":
    main()
