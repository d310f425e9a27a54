"""A bucket such as Amazon S3's, of the files of a folder, on this machine. It serves the part of the protocol
that reading needs (ListObjectsV2, HeadObject, GetObject with a range) to the real client."""

import contextlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

DATE = "Mon, 02 Jan 2006 15:04:05 GMT"


@contextlib.contextmanager
def served(folder: Path, monkeypatch) -> Iterator[str]:
    """The address of a bucket with the folder's files, for as long as the block lasts. The client reads it
    from its environment variables."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            asked = urlsplit(self.path)
            key = unquote(asked.path).removeprefix("/bucket").strip("/")
            options = parse_qs(asked.query)
            if "list-type" in options:
                return self._list(options.get("prefix", [""])[0])
            place = folder / key
            if not key or not place.is_file():
                code = "NoSuchKey"
                return self._answer(
                    404, f"<Error><Code>{code}</Code><Message>none</Message></Error>".encode()
                )
            if "denied" in key:
                return self._answer(403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>")
            content, status, more = place.read_bytes(), 200, {}
            if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                first, last = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
                more = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
                content, status = content[first : last + 1], 206
            return self._answer(status, content, more)

        do_HEAD = do_GET  # noqa: N815

        def _list(self, prefix: str) -> None:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            entries = [
                f"<Contents><Key>{escape(key)}</Key><Size>{path.stat().st_size}</Size>"
                "<LastModified>2006-01-02T15:04:05.000Z</LastModified></Contents>"
                for path in files
                if (key := str(path.relative_to(folder))).startswith(prefix)
            ]
            whole = f"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>{''.join(entries)}"
            self._answer(200, f"{whole}</ListBucketResult>".encode())

        def _answer(self, status: int, content: bytes, more: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {
                "Content-Length": str(len(content)),
                "Last-Modified": DATE,
                **(more or {}),
            }.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    try:
        yield "s3://bucket"
    finally:
        server.shutdown()
        server.server_close()
