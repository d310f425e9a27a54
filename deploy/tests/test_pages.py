"""Commands of the pages, run as they stand there."""

import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def blocks(page, mark, kind="sh"):
    """The blocks of a page that begin with ```KIND MARK."""
    found = re.findall(rf"^```{kind} {mark}\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.M | re.S)
    assert found, f"{page} has no block marked {mark}"
    return found


@pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="needs QEMU")
def test_vms_qemu_makes_partitions_of_the_pages_options():
    [block] = blocks("node-vms.md", "qemu")
    command, monitor = re.fullmatch(r"(.*-monitor stdio\n)(.*)", block, re.S).groups()
    done = subprocess.run(["sh", "-c", command], input=monitor, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "requested-size: 268435456" in said and said.count("virtio-mem") == 2, said
    assert "node: 1" in said and "node: 2" in said
