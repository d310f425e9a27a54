"""Ranges of code, from profiles, which hold addresses, and from whole files."""

from train.data.symbols import _seen_first


def test_addresses_in_profiles_have_the_names_of_their_stacks():
    rows = [
        (2, 3, "before"),
        (10, 20, "f"),
        (10, 12, "also f"),
        (10, 11, "f;begin"),
        (15, 16, "g;f"),
        (20, 30, "h"),
    ]
    rows += [(29, 30, "end"), (35, 36, "gap"), (40, 50, "i")]
    assert _seen_first(rows) == [
        (2, 3, "before"),
        (10, 11, "f;begin"),
        (11, 15, "f"),
        (15, 16, "g;f"),
        (16, 20, "f"),
        (20, 29, "h"),
        (29, 30, "end"),
        (35, 36, "gap"),
        (40, 50, "i"),
    ]
    assert _seen_first([(7, 8, "alone")]) == [(7, 8, "alone")]
