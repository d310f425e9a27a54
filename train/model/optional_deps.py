"""What only networks and plots need is large, and installed when the first one is made: tables do without."""

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

from train.errors import TrainError

MODULES = ("jax", "matplotlib", "optax")


def install() -> None:
    """Installs it, unless it is there: minutes. Raises TrainError where that fails."""
    if all(importlib.util.find_spec(name) for name in MODULES):
        return
    command = [Path(__file__).parents[1] / "environment", "network"]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        raise TrainError("what networks need is not installed; a table needs less: --encoder table")
    importlib.invalidate_caches()


def networks() -> ModuleType:
    """`train.model.networks`, with what it needs. Raises TrainError where that cannot be installed."""
    install()
    from train.model import networks

    return networks
