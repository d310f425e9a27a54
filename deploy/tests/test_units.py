"""The systemd units are locked down, as `systemd-analyze security` has it; each exemption has its reason."""

import json
import pathlib
import re
import shutil
import subprocess

import pytest

DEPLOY = pathlib.Path(__file__).resolve().parents[1]
# The agent is not locked down yet: what containers need of it has to be tried under its unit first.
UNITS = ["mayfly-share.service", "mayfly-worker.service"]
WORST = 4.0
# What the worker has beyond that for snapshots, by lines of their own, and what it may cost.
FOR_SNAPSHOTS = {"CapabilityBoundingSet=CAP_SYS_PTRACE", "SystemCallFilter=ptrace"}
SNAPSHOTS_COST = 0.5

pytestmark = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")


def analyze(*words):
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def security(unit, *options):
    return analyze("security", "--offline=yes", "--no-pager", *options, str(DEPLOY / unit))


def lines(unit):
    return (DEPLOY / unit).read_text().splitlines()


def reasons(unit):
    return "\n".join(line for line in lines(unit) if line.startswith("#"))


def setting(unit, name):
    """The words of a setting's lines, those of a first ~ left out."""
    found = [line.split("=", 1)[1] for line in lines(unit) if line.startswith(f"{name}=")]
    return [word for words in found if not words.startswith("~") for word in words.split()]


def wanted(unit, name):
    """What the unit's comments must name for what `systemd-analyze` lists: any one of these."""
    option, _, rest = name.partition("=")
    if option == "CapabilityBoundingSet":
        prefix, _, group = rest.removeprefix("~CAP_").partition("(")
        ends = group.rstrip(")").split("|") if group else [""]
        patterns = [re.escape(f"CAP_{prefix}{end}").replace(r"\*", ".*") for end in ends]
        granted = setting(unit, option)
        return [word for word in granted if any(re.fullmatch(pattern, word) for pattern in patterns)]
    if option == "SystemCallFilter":
        return [rest.removeprefix("~")]
    if option == "RestrictAddressFamilies":
        return [word for word in setting(unit, option) if word in rest.replace("(", "").replace("|", " AF_")]
    return [f"{option}="]


def exposure(path):
    done = analyze("security", "--offline=yes", "--no-pager", str(path))
    return float(re.search(r"exposure level for \S+: ([0-9.]+)", done).group(1))


@pytest.mark.parametrize("unit", UNITS)
def test_exposure_is_low_and_each_exemption_has_its_reason(unit):
    extra = SNAPSHOTS_COST if unit == "mayfly-worker.service" else 0
    assert exposure(DEPLOY / unit) <= WORST + extra, security(unit)
    listed = [
        one["name"] for one in json.loads(security(unit, "--json=short")) if float(one["exposure"] or 0)
    ]
    assert len(listed) > 5
    without = [name for name in listed if not any(word in reasons(unit) for word in wanted(unit, name))]
    assert without == []


def test_only_snapshots_take_the_worker_above_the_limit(tmp_path):
    without = tmp_path / "mayfly-worker.service"
    kept = [line for line in lines("mayfly-worker.service") if line not in FOR_SNAPSHOTS]
    assert len(kept) == len(lines("mayfly-worker.service")) - len(FOR_SNAPSHOTS)
    without.write_text("\n".join(kept))
    assert exposure(without) <= WORST


def test_a_service_without_settings_is_exposed(tmp_path):
    """That the measure measures: the same worker as one plain command."""
    plain = tmp_path / "mayfly-worker.service"
    plain.write_text("[Service]\nExecStart=/usr/bin/mayfly up\n")
    assert exposure(plain) > 9


def calls_of(*sets):
    """All system calls of systemd's sets, which name one another."""
    text = analyze("syscall-filter", "--no-pager")
    groups, group = {}, None
    for line in text.splitlines():
        if line.startswith(("@", "#")):
            group = groups.setdefault(line.strip(), [])
        elif line.strip() and not line.strip().startswith("#"):
            group.append(line.strip())
    found, left = set(), list(sets)
    while left:
        name = left.pop()
        if name.startswith("@"):
            left += groups[name]
        else:
            found.add(name)
    return found


def calls_in(*files):
    """System calls that these sources name, without those that only their tests name."""
    sources = [file.read_text().partition("#[cfg(test)]")[0] for file in files]
    return {call for source in sources for call in re.findall(r"\bSYS_(\w+)", source)}


def test_functions_and_snapshots_have_every_system_call_that_they_make():
    root = DEPLOY.parent
    sandbox = calls_in(root / "vm/sandbox/src/syscalls.rs")
    taken = calls_in(*(root / "worker/snapshot/src").glob("*.rs")) | {"ptrace"}
    assert len(sandbox) > 200 and {"execveat", "rseq"} <= taken
    unit = "mayfly-worker.service"
    refused = [line for line in lines(unit) if line.startswith("SystemCallFilter=~")]
    refused = " ".join(refused).replace("SystemCallFilter=~", "").split()
    # The last line adds one of @debug again.
    allowed = calls_of(*setting(unit, "SystemCallFilter")) - (calls_of(*refused) - {"ptrace"})
    # Calls that are newer than this systemd fail with ENOSYS there, as they do on an older kernel.
    assert (sandbox | taken) & calls_of("@known") - allowed == set()
