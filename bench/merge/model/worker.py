"""One worker of a model server: WORKER MODEL METHOD FOLDER.

Loads the model as users of its library do, answers one request and prints a line of JSON. Then it answers
lines on standard input: `share` shares as docs/share-servers.md advises (METHOD `advise`: the packed model;
`process`: that, and all memory of the process; `plain`: nothing), `ask FIRST COUNT` answers so many requests.

  resnet50    torch.load of a state_dict
  bert        transformers' from_pretrained of a folder, a tokenizer with it
"""

import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch


def resnet50(folder: Path) -> tuple[torch.nn.Module, Callable[[int], bytes]]:
    from bench.merge.model import networks

    model = networks.NETWORKS["resnet50"]().eval()
    model.load_state_dict(torch.load(folder / "resnet50.pt", weights_only=True))
    return model, lambda seed: model(networks.request("resnet50", seed)).numpy().tobytes()


def bert(folder: Path) -> tuple[torch.nn.Module, Callable[[int], bytes]]:
    from bench.merge.model import bert

    model, tokenizer = bert.load(folder / "bert")
    return model, lambda seed: bert.answer(model, tokenizer, seed)


LOAD = {"resnet50": resnet50, "bert": bert}


def share(method: str, model: torch.nn.Module) -> None:
    """Returns once it has shared. `later` calls on a thread of its own, and prints what that raises."""
    import mayfly

    done, shares = threading.Event(), []

    def in_turn() -> None:
        try:
            mayfly.pack(model)
            shares.append(mayfly.advise_process() if method == "process" else mayfly.advise(model))
        finally:
            done.set()

    mayfly.later(in_turn)
    done.wait()
    if not shares:
        sys.exit(f"worker: {method}: sharing has failed")


def digest(answer: bytes) -> str:
    return hashlib.sha256(answer).hexdigest()


def milliseconds(since: float) -> float:
    return 1000 * (time.perf_counter() - since)


def main() -> None:
    name, method, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    begun = time.perf_counter()
    model, answer = LOAD[name](folder)
    loaded = milliseconds(begun)
    print(json.dumps({"answer": digest(answer(0)), "load_ms": loaded}), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["share"]:
                begun = time.perf_counter()
                if method != "plain":
                    share(method, model)
                print(json.dumps({"share_ms": milliseconds(begun)}), flush=True)
            case ["ask", first, count]:
                digests, times = [], []
                for seed in range(int(first), int(first) + int(count)):
                    begun = time.perf_counter()
                    given = answer(seed)
                    times.append(milliseconds(begun))
                    digests.append(digest(given))
                print(json.dumps({"answers": digests, "ms": times}), flush=True)
            case _:
                sys.exit(f"worker: no such command: {line.strip()}")


if __name__ == "__main__":
    main()
