"""One instance of a model server: INSTANCE NETWORK METHOD MODEL_FILE SEED.

Starts cold, answers one request and prints a line of JSON with the times of each step; then answers as many
requests as each line on standard input says. The methods:

  nothing     torch.load
  mmap        torch.load(mmap=True): weights stay in the file's page cache, which all instances share
  advise      torch.load, then mayfly.advise(model)
  pack        torch.load(mmap=True; not in PyTorch 1), mayfly.pack(model), mayfly.advise(model)
  all         as pack, and the memory that importing PyTorch has allocated is advised as well
  process     as pack, but all memory of the process is advised, after the first answer
  upm         torch.load, and the kernel merges the parameters where they lie (madvise MADV_UPM)
  upm_all     torch.load, and the kernel merges all private memory, after the first answer
  ksm         torch.load, and the whole process is given to KSM (prctl PR_SET_MEMORY_MERGE)

For ONNX Runtime, which loads weights by itself, `all` and `pack` are `with mayfly.advising(heap=True)`
around the session.
"""

import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Callable

from bench.merge.model import kernel_advice

MERGING = ("advise", "pack", "all", "process")
ADVISING = ("advise", "pack", "all")  # before the first answer
LARGE = (
    32 << 20
)  # only the libraries' large tables: smaller mappings are mostly Python's objects, equal nowhere


class Clock:
    """Milliseconds of each step."""

    def __init__(self):
        self.steps_ms: dict[str, float] = {}

    @contextlib.contextmanager
    def step(self, name: str):
        start = time.perf_counter()
        yield
        self.steps_ms[name] = self.steps_ms.get(name, 0) + 1000 * (time.perf_counter() - start)


def load_torch(name: str, method: str, file: str, clock: Clock) -> Callable[[int], bytes]:
    mayfly = imported_mayfly(method)
    growth = mayfly.advising(min_bytes=LARGE) if method == "all" else contextlib.nullcontext()
    with clock.step("import"):
        entered = growth.__enter__()
        import torch

        from bench.merge.model import networks

        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
    if entered is not None:
        with clock.step("advise"):
            growth.__exit__(None, None, None)
    with clock.step("load"):
        if torch.__version__.startswith("1."):
            model = networks.NETWORKS[name]().eval()
            model.load_state_dict(torch.load(file))
        else:
            with torch.device(
                "meta"
            ):  # the weights come from the file: no time, no earlier memory for others
                model = networks.NETWORKS[name]().eval()
            state = torch.load(file, mmap=method in ("mmap", "pack", "all", "process"), weights_only=True)
            model.load_state_dict(state, assign=True)
            del state
    if method in ("pack", "all", "process"):
        with clock.step("pack"):
            mayfly.pack(model)
    if method in ADVISING:
        with clock.step("advise"):
            mayfly.advise(model)
    elif method == "upm":
        with clock.step("advise"):
            kernel_advice.advise(kernel_advice.of_parameters(model))

    def answer(seed: int) -> bytes:
        return model(networks.request(name, seed)).numpy().tobytes()

    return answer


def load_onnx(method: str, file: str, clock: Clock) -> Callable[[int], bytes]:
    mayfly = imported_mayfly(method)
    with clock.step("import"):
        import numpy
        import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    growth = mayfly.advising(heap=True) if method in ADVISING else contextlib.nullcontext()
    growth.__enter__()
    with clock.step("load"):
        session = onnxruntime.InferenceSession(file, settings)
    with clock.step("advise"):
        growth.__exit__(None, None, None)
    name = session.get_inputs()[0].name

    def answer(seed: int) -> bytes:
        image = numpy.random.default_rng(seed).random((1, 224, 224, 3), dtype=numpy.float32)
        return session.run(None, {name: image})[0].tobytes()

    return answer


def imported_mayfly(method: str):
    if method not in MERGING:
        return None
    import mayfly

    return mayfly


def main() -> None:
    name, method, file, seed = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    if method == "ksm":
        kernel_advice.give_to_ksm()
    clock = Clock()
    answer = load_onnx(method, file, clock) if name == "opennsfw" else load_torch(name, method, file, clock)
    with clock.step("first_answer"):
        first = answer(0)
    report = {f"{step}_ms": took for step, took in clock.steps_ms.items()}
    report["cpu_ms"] = 1000 * time.process_time()  # since the process began, all threads
    report["answer"] = hashlib.sha256(first).hexdigest()
    if method in MERGING:
        report |= {f"stats.{key}": value for key, value in sys.modules["mayfly"].stats().items()}
    print(json.dumps(report), flush=True)
    if method == "process":
        with clock.step("advise_process"):
            sys.modules["mayfly"].advise_process()
    elif method == "upm_all":
        with clock.step("advise_process"):
            kernel_advice.advise(kernel_advice.of_process())
    for line in sys.stdin:
        requests = int(line)
        with clock.step("warm"):
            for number in range(requests):
                answer(1 + seed * 5 + number)
        warm = {"answer": hashlib.sha256(answer(0)).hexdigest(), "warm_ms": clock.steps_ms["warm"] / requests}
        warm["advise_process_ms"] = clock.steps_ms.get("advise_process", 0)
        print(json.dumps(warm), flush=True)


main()
