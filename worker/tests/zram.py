"""Swap in compressed memory (zram), for the length of a `with` block."""

import contextlib
import os
import pathlib
import shutil
import subprocess

CONTROL = pathlib.Path("/sys/class/zram-control")


def missing():
    """Why this host cannot have it, or None."""
    if os.geteuid() != 0:
        return "swap needs root"
    return None if CONTROL.exists() and shutil.which("mkswap") else "this host has no zram, or no mkswap"


@contextlib.contextmanager
def compressed_swap(mib=512):
    """Yields the folder in /sys with the kernel's counters."""
    number = (CONTROL / "hot_add").read_text().strip()
    device, place = f"/dev/zram{number}", pathlib.Path(f"/sys/block/zram{number}")
    try:
        (place / "disksize").write_text(f"{mib}M")
        subprocess.run(["mkswap", device], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["swapon", device], check=True)
        try:
            yield place
        finally:
            subprocess.run(["swapoff", device], check=True)
    finally:
        (CONTROL / "hot_remove").write_text(number)
