"""How long a container takes to start, plainly and with heap and sharing, one after the other in turn.

By Podman, a whole `podman run --rm` of a program that ends at once; by containerd 2, from a kubelet's first
call of CRI to the started container. The program is linked to glibc: its loader can preload libraries.
"""

import statistics
import time
from collections.abc import Callable

from containerd2 import Containerd
from podman4 import Podman

PROGRAM = ["/bin/pages", "1", "1"]
AT_ONCE, LATER = "0", "600"  # when it ends


def podman(podman: Podman, count: int) -> dict:
    """Of `count` containers each."""

    def start(devices: list[str]) -> float:
        began = time.monotonic()
        assert "good" in podman.run("glibc", *PROGRAM, AT_ONCE, devices=devices)
        return time.monotonic() - began

    return in_turn(
        {"plain": lambda _: start([]), "given": lambda _: start(["heap=online", "share=web"])}, count
    )


def containerd(containerd: Containerd, count: int) -> dict:
    """Of `count` pods each, of one container."""

    def start(name: str, annotations: dict) -> float:
        began = time.monotonic()
        pod, _ = containerd.run(name, "bench", "glibc", *PROGRAM, LATER, annotations=annotations)
        took = time.monotonic() - began
        containerd.end(pod)
        return took

    asked = {"mayfly.dev/heap": "online", "mayfly.dev/share": "namespace"}
    ways = {"plain": lambda at: start(f"plain-{at}", {}), "given": lambda at: start(f"given-{at}", asked)}
    return in_turn(ways, count)


def in_turn(ways: dict[str, Callable[[int], float]], count: int) -> dict:
    """Medians and quartiles, and the ratio of the medians; the order alternates."""
    took = {kind: [] for kind in ways}
    for start in ways.values():
        start(-1)  # the first start has extra costs, and is not counted
    for at in range(count):
        for kind in list(ways) if at % 2 else list(ways)[::-1]:
            took[kind].append(1e3 * ways[kind](at))
    found = {"count": count}
    for kind, each in took.items():
        low, median, high = statistics.quantiles(each, n=4)
        found |= {f"{kind}.median_ms": median, f"{kind}.low_ms": low, f"{kind}.high_ms": high}
    found["ratio"] = found["given.median_ms"] / found["plain.median_ms"]
    return found
