"""OpenFaaS' operations up, deploy and invoke (§5) on the baseline and on Memento."""

import json
import subprocess

from bench.outcome import RESULTS, ROOT, figure, table, write
from sim.figures.ratios import compared, pages, part, saved
from sim.figures.simulate import MAYFLY, commit

TIMES = {"up": (), "deploy": ("50",), "invoke": ("50",)}
SIDES = {"native": ("table3", "openfaas-go"), "memento": ("memento", "openfaas-go-memento")}


def run(operation: str, side: str) -> dict:
    machine, program = SIDES[side]
    words = [MAYFLY, "sim", "--json", "--env", "MAYFLY_REGION=warm", "--machine", machine]
    words += ["--", f"./{program}", operation, *TIMES[operation]]
    done = subprocess.run(words, cwd=ROOT / "target/platform", capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"sim/platform: {operation}, {side}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def main() -> None:
    flat = {"made_with.commit": commit()}
    rows = [["", "instructions", "speed-up, %", "traffic saved, %", "pages saved, %", "HOT hits, %"]]
    for operation in TIMES:
        native, memento = (run(operation, side) for side in SIDES)
        before, after = pages(native), pages(memento)
        kernel = native["cycles_by_owner.page_fault"] + native["cycles_by_owner.memory_call"]
        found = compared(native, memento) | {
            "instructions": native["instructions"],
            "pages_saved_percent": saved(sum(before), sum(after)),
            "native.pages": sum(before),
            "memento.pages": sum(after),
            "management.kernel_of_cycles_percent": part(kernel, native["cycles"]),
            "hot.allocation_hits_percent": 100 * memento["memento.allocation_hit_rate"],
            "memento.allocations": memento["memento.allocations"],
            "malloc_pki": 1000 * memento["memento.allocations"] / native["instructions"],
        }
        flat |= {f"{operation}.{key}": value for key, value in found.items()}
        rows.append(
            [
                operation,
                f"{native['instructions']:,}",
                *(
                    figure(found[key])
                    for key in ("speedup_percent", "traffic_saved_percent", "pages_saved_percent")
                ),
                figure(found["hot.allocation_hits_percent"], 2),
            ]
        )
    write(RESULTS / "sim-platform.json", flat)
    table(rows)


if __name__ == "__main__":
    main()
