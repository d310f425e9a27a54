"""Swap that is compressed memory (zram), for as long as somebody wants some."""

import contextlib
import os
import pathlib
import shutil
import subprocess

CONTROL = pathlib.Path("/sys/class/zram-control")


def missing():
    """Why there can be none, if so."""
    if os.geteuid() != 0:
        return "swap needs root"
    return None if CONTROL.exists() and shutil.which("mkswap") else "this host has no zram, or no mkswap"


@contextlib.contextmanager
def compressed_swap(mib=512):
    """Gives the folder in which the kernel tells of it."""
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
