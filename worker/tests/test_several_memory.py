"""The memory of several requests at once: the processes of an instance in Python keep equal pages once."""

import contextlib
import json
import pathlib
import re

from calls import create, provider, until, zipped
from conftest import Worker
from test_several import PYTHON_CODE, at_once

AT_ONCE, MIB = 4, 20
# More MiB of objects that point to one another: their pages are equal only if they lie at the same addresses.
TABLE = (
    PYTHON_CODE
    + """
TABLE = {number: {"id": number, "name": "item %d" % number} for number in range(60_000)}
"""
)


def mapped_mib(process):
    """What a process maps from memory files."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        status = pathlib.Path(f"/proc/{process}/status").read_text()
        return sum(int(kib) for kib in re.findall(r"^RssShmem:\s+(\d+)", status, re.M)) / 1024
    return 0


def test_processes_of_an_instance_share_the_pages_of_their_objects():
    with Worker("--keep-alive", "600") as running:
        client, name = running.client(), "table"
        settings = {"CapacityProviderConfig": provider(AT_ONCE), "MemorySize": 1024, "Timeout": 120}
        create(client, name, zipped(app_py=TABLE), **settings)
        client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=1)

        def meet(meeting, leaves=None):
            """A request for each process; one of them ends by it."""
            events = [
                {"meeting": meeting, "number": number, "of": AT_ONCE, "leave": number == leaves}
                for number in range(AT_ONCE)
            ]
            answers = at_once(client, name, events)
            failed = [number for number, (_, error, _) in enumerate(answers) if error]
            assert failed == ([] if leaves is None else [leaves]), answers
            return {answer["pid"] for answer, error, _ in answers if not error}

        def sharing():
            """The processes that map most of a table from the store: what they share since a fork stays."""
            return {one for one in running.descendants() if mapped_mib(one) > 0.75 * MIB}

        def stored_mib(before=frozenset()):
            """The size of the store, once every process maps its table from there, others than before."""
            until(lambda: len(found := sharing()) == AT_ONCE and found != before, running.state)
            seen = len(json.loads(running.get("/history"))["samples"])
            until(lambda: len(json.loads(running.get("/history"))["samples"]) > seen + 1, running.state)
            return running.sample()["store"]["bytes"] / (1 << 20)

        assert len(meet("first")) == AT_ONCE
        first = stored_mib()
        # One table, and what each process has written.
        assert first < 1.6 * MIB
        before = sharing()
        meet("leaves", leaves=2)
        until(lambda: len(sharing() & before) == AT_ONCE - 1, running.state)
        # So does a process that takes the place of another.
        assert len(meet("again")) == AT_ONCE
        again = stored_mib(before)
        print(f"{first:.1f} MiB in the store, then {again:.1f}")
        assert again < first + MIB / 4
