"""What merged memory keeps of the properties of anonymous memory: docs/merge.md has the table. Guards are in
test_anonymous_semantics.py."""

import re

import pytest
from store import check

# Case of programs/properties.c -> what it prints.
RESULTS = {
    "wipe on fork": r"refused: 95 .*MADV_WIPEONFORK",
    "not forked later": r"refused: 95 .*MADV_DONTFORK",
    "not forked": r"refused: 95 .*MADV_DONTFORK",
    "not dumped": r"refused: 95 .*MADV_DONTDUMP",
    "not dumped later": r"refused: 95 .*MADV_DONTDUMP",
    "protection key": r"refused: 95 .*protection key",
    "protection": "kept",
    "locked": r"refused: 95 .*munlock",
    "sealed": r"refused: 95 .*mseal",
    "userfaultfd": r"refused: 16 .*userfaultfd of the program",
    "policy": "lost",
    "name": "lost",
    "huge pages": "lost",
    "no huge pages": "lost",
    "mergeable": "lost",
}


@pytest.mark.parametrize("case", RESULTS)
def test_property(built, store, case):
    said = built.run(store.socket, "properties", case).stdout.strip()
    if said.startswith("skip: "):
        pytest.skip(said[6:])
    check(re.match(RESULTS[case] + "$" if RESULTS[case] in ("lost", "kept") else RESULTS[case], said), said)
    store.rested(case)
