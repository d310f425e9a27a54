"""Programs that must succeed, and fresh systems in folders of their own, in which packages are installed."""

import contextlib
import subprocess


def run(*words, **more):
    more = {"timeout": 900} | more
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def inside(system, *words, **more):
    return run("chroot", system, *words, **more)


@contextlib.contextmanager
def mounted(folder):
    places = [("proc", "proc"), ("tmpfs", "run"), ("tmpfs", "dev/shm")]
    try:
        for kind, place in places:
            run("mount", "-t", kind, kind, folder / place)
        yield
    finally:
        for _, place in reversed(places):
            subprocess.run(["umount", "--lazy", str(folder / place)], check=False)


def installed(system):
    """Mayfly's paths, without the records of apt, dpkg and rpm."""
    found = inside(system, "find", "/", "-xdev", "-iname", "*mayfly*", "-not", "-path", "/proc/*").split()
    records = ("/var/lib/dpkg", "/var/lib/rpm", "/var/cache/apt", "/tmp")
    return [path for path in found if not path.startswith(records)]
