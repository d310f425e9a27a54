"""A revision of server.cc, for tests and bench/lifetime."""

from pathlib import Path

SOURCE = Path(__file__).parent / "server.cc"
# A function has another argument, one is new, a class another member, one is renamed.
CHANGES = {
    "static Record header(int seed) {": "static Record header(int seed, long = 7) {",
    "namespace text {": "namespace text {\nFUNCTION size_t twice(size_t size) { return size * 2; }",
    "std::unique_ptr<int[]> numbers;": "std::unique_ptr<int[]> numbers;\n    long checksum = 0;",
    "static void enroll": "static void registerForEver",
    "enroll(seed);": "registerForEver(seed);",
}


def changed(changes: dict[str, str]) -> str:
    """The server's source with these changes."""
    source = SOURCE.read_text()
    for before, after in changes.items():
        assert before in source, before
        source = source.replace(before, after)
    return source
