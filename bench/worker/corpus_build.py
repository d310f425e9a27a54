"""Builds templates of the corpus with `sam build`, on this host and without containers.

What came of each is kept in a file of its own, so that a run that is ended goes on where it was.
"""

import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SECONDS = 300
TOO_LONG = f"it takes more than {SECONDS} s"

# Why `sam build` fails: how its error begins, which names sam's builder, and the cause in the table.
CAUSES = [
    (TOO_LONG, "it takes longer than five minutes"),
    (r"[^\n]*container runtime", "a container is asked for"),
    (r"Error: Dotnet", "no .NET here"),
    (r"[^\n]*(Binary validation failed|not on your PATH|valid executable)", "no such compiler here"),
    (r"Error: \w+Workflow:(.|\n)*(invalid target release|release version)", "a newer JDK is asked for"),
    (r"Error: JavaGradle", "Gradle fails, whose wrapper fetches Gradle from its own server"),
    (r"Error: JavaMaven", "Maven fails"),
    (r"Error: (NodejsNpm|Npm|Esbuild)", "npm or esbuild fails"),
    (r"Error: PythonPip", "pip fails"),
    (r"Error: Ruby", "Bundler fails"),
    (r"Error: CustomMake|make:", "the template's Makefile fails or is not there"),
    (r"Error: Rust", "Cargo fails"),
    (r"Error: GoModules", "Go fails"),
    (r"", "another cause"),
]


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def cause_of(reason: str) -> str:
    return next(cause for words, cause in CAUSES if re.match(words, reason))


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
            return TOO_LONG
        if done.returncode:
            # The compiler's own lines follow sam's.
            text = done.stdout + done.stderr
            return text[max(text.rfind("Error: "), 0) :].strip()[:600] or "no reason given"
        return check(Path(folder, "built/template.yaml"))


class Builds:
    """What came of builds: `folder` has a file of each. None begins later than `minutes` from now."""

    def __init__(self, folder: Path, minutes: float):
        self.folder = folder
        self.deadline = time.monotonic() + 60 * minutes
        folder.mkdir(parents=True, exist_ok=True)

    def of(self, name: str, build: Callable[[], dict | str]) -> dict | str | None:
        """As `built` has it; none where there was no time for it."""
        kept = self.folder / f"{digest(name)}.json"
        if kept.exists():
            return json.loads(kept.read_text())["found"]
        if time.monotonic() > self.deadline:
            return None
        begin = time.monotonic()
        found = build()
        if found == TOO_LONG:
            return found  # by chance of a busy host: the next run tries it again
        shown = {"template": name, "seconds": round(time.monotonic() - begin, 1), "found": found}
        kept.with_suffix(".new").write_text(json.dumps(shown))
        kept.with_suffix(".new").rename(kept)
        return found
