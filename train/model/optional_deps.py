"""Packages that only networks and plots need: they are large, and installed when the first one is made."""

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

from train.errors import TrainError

MODULES = ("jax", "matplotlib", "optax")


def install() -> None:
    """Installs them, unless they are there: minutes. Raises TrainError where that fails."""
    if all(importlib.util.find_spec(name) for name in MODULES):
        return
    command = [Path(__file__).parents[1] / "environment", "network"]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        raise TrainError(
            "the packages that networks need are not installed; a table needs less: --encoder table"
        )
    importlib.invalidate_caches()


def networks() -> ModuleType:
    """`train.model.networks`, with the packages it needs. Raises TrainError where they cannot be
    installed."""
    install()
    from train.model import networks

    return networks
