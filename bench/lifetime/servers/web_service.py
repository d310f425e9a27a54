"""A small web service in Python, of the standard library alone: JSON in and out, orders in SQLite, sessions
that expire, reports that are built whole in memory.

web_service.py SOCKET
"""

import json
import signal
import socketserver
import sqlite3
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler

SESSION_S = 2.0


class Store:
    """Orders for good, the sessions of customers until they have ordered nothing for a while."""

    def __init__(self):
        self.lock = threading.Lock()
        self.database = sqlite3.connect(":memory:", check_same_thread=False)
        self.database.execute("CREATE TABLE orders (day INTEGER, customer TEXT, item TEXT, cents INTEGER)")
        self.database.execute("CREATE INDEX of_day ON orders (day)")
        self.sessions: dict[str, dict] = {}
        threading.Thread(target=self.expire, daemon=True).start()

    def order(self, order: dict) -> dict:
        rows = [(order["day"], order["customer"], one["item"], one["cents"]) for one in order["items"]]
        with self.lock:
            self.database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", rows)
            session = self.sessions.setdefault(order["customer"], {"orders": []})
            session["orders"].append(order)
            session["used"] = time.monotonic()
        return {"count": len(rows), "cents": sum(row[3] for row in rows)}

    def report(self, day: int) -> dict:
        with self.lock:
            rows = self.database.execute("SELECT customer, item, cents FROM orders WHERE day = ?", (day,))
            rows = rows.fetchall()
        customers: dict[str, list] = {}
        for customer, item, cents in rows:
            customers.setdefault(customer, []).append({"item": item, "cents": cents})
        return {"day": day, "cents": sum(row[2] for row in rows), "customers": customers}

    def expire(self) -> None:
        while True:
            time.sleep(SESSION_S / 4)
            old = time.monotonic() - SESSION_S
            with self.lock:
                self.sessions = {name: one for name, one in self.sessions.items() if one["used"] > old}


STORE = Store()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(STORE.order(json.loads(body)))

    def do_GET(self) -> None:
        self.answer(STORE.report(int(self.path.rpartition("/")[2])))

    def answer(self, value: dict) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_) -> None:
        """A Unix socket's client has no address to log."""


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 256


if __name__ == "__main__":
    # An exit writes the heap's statistics.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with Server(sys.argv[1], Handler) as server:
        server.serve_forever()
