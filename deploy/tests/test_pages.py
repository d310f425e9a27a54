"""Commands of the pages, run exactly as they are there."""

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
def test_qemu_makes_partitions_with_the_options_of_node_vms():
    [block] = blocks("node-vms.md", "qemu")
    command, monitor = re.fullmatch(r"(.*-monitor stdio\n)(.*)", block, re.S).groups()
    done = subprocess.run(["sh", "-c", command], input=monitor, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    output = done.stdout
    assert "requested-size: 268435456" in output and output.count("virtio-mem") == 2, output
    assert "node: 1" in output and "node: 2" in output
