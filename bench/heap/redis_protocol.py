"""A small pipelining Redis client, enough to load a server with known data and to check every answer."""

import socket
from collections.abc import Iterable
from pathlib import Path

from bench.outcome import BenchError

PIPELINE = 200


class Client:
    def __init__(self, path: Path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        self.input = self.socket.makefile("rb", buffering=1 << 16)

    def close(self) -> None:
        self.input.close()
        self.socket.close()

    def reply(self):
        line = self.input.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            length = int(rest)
            return None if length < 0 else self.input.read(length + 2)[:-2]
        if kind == b":":
            return int(rest)
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        if kind == b"+":
            return rest
        raise BenchError(f"redis answered {line!r}")

    def pipeline(self, commands: Iterable[tuple]) -> list:
        """Sends all commands, PIPELINE at a time, and gives their answers in order."""
        answers, waiting, parts = [], 0, []
        for command in commands:
            parts.append(encode(command))
            waiting += 1
            if waiting == PIPELINE:
                answers += self._flush(parts, waiting)
                waiting, parts = 0, []
        return answers + self._flush(parts, waiting)

    def _flush(self, parts: list[bytes], waiting: int) -> list:
        self.socket.sendall(b"".join(parts))
        return [self.reply() for _ in range(waiting)]

    def info(self, name: str) -> int:
        """A number out of INFO."""
        (text,) = self.pipeline([("INFO", "everything")])
        for line in text.decode().splitlines():
            if line.startswith(name + ":"):
                return int(line.split(":")[1])
        raise BenchError(f"INFO has no {name}")


def encode(command: tuple) -> bytes:
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
