"""Builds a template of the corpus with `sam build`, on this host and without containers."""

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

SECONDS = 300


def built(path: Path, sam: Path, check: Callable[[Path], dict]) -> dict | str:
    """What `check` says of the template that sam writes, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            sam,
            "build",
            "--template",
            path,
            "--build-dir",
            f"{folder}/built",
            "--cache-dir",
            f"{folder}/cache",
        ]
        environment = {
            **os.environ,
            "PATH": f"{sam.parent}:{os.environ['PATH']}",
            "SAM_CLI_TELEMETRY": "0",
            "SAM_CLI_BETA_FEATURES": "1",  # Rust
        }
        try:
            done = subprocess.run(
                words,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"it takes more than {SECONDS} s"
        if done.returncode:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if "rror" in line]
            return (lines or done.stderr.splitlines() or ["no reason given"])[-1][:200]
        return check(Path(folder, "built/template.yaml"))
