"""OpenFaaS' operations up, deploy and invoke (§5) on the baseline and on Memento."""

from bench.outcome import RESULTS, ROOT, figure, table, write
from bench.sim.ratios import compared, counts_held, held, part, saved
from bench.sim.simulate import commit, run

TIMES = {"up": (), "deploy": ("50",), "invoke": ("50",)}
SIDES = {"native": ("table3", "0"), "memento": ("memento", "1")}


def operation(name: str, side: str) -> dict:
    machine, chosen = SIDES[side]
    words = ["--env", "MAYFLY_REGION=warm", "--env", f"MEMENTO={chosen}", "--machine", machine]
    words += ["--", "./openfaas-go", name, *TIMES[name]]
    return run(words, where=ROOT / "target/platform")


def main() -> None:
    flat = {"made_with.commit": commit()}
    rows = [["", "instructions", "speed-up, %", "traffic saved, %", "pages saved, %", "HOT hits, %"]]
    for name in TIMES:
        native, memento = (operation(name, side) for side in SIDES)
        before, after = held(native), held(memento)
        kernel = native["cycles_by_owner.page_fault"] + native["cycles_by_owner.memory_call"]
        found = compared(native, memento) | {
            "instructions": native["instructions"],
            "pages_saved_percent": saved(sum(before), sum(after)),
            "pages_held": int(counts_held(native) and counts_held(memento)),
            "native.pages": sum(before),
            "memento.pages": sum(after),
            "management.kernel_of_cycles_percent": part(kernel, native["cycles"]),
            "hot.allocation_hits_percent": 100 * memento["memento.allocation_hit_rate"],
            "memento.allocations": memento["memento.allocations"],
            "malloc_pki": 1000 * memento["memento.allocations"] / native["instructions"],
        }
        flat |= {f"{name}.{key}": value for key, value in found.items()}
        rows.append(
            [
                name,
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
