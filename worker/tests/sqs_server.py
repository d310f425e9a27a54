"""A queue server that speaks SQS' JSON protocol, as far as boto3 in these tests and the worker need it."""

import contextlib
import hashlib
import http.server
import itertools
import json
import select
import socket
import threading
import time

import boto3


def has_closed(connection):
    """Whether the client has closed its end. It sends nothing while it waits for an answer."""
    readable, _, _ = select.select([connection], [], [], 0)
    with contextlib.suppress(ConnectionError):
        return bool(readable) and not connection.recv(1, socket.MSG_PEEK)
    return True


class Queues:
    """Queues by name. A message has a time from which it is visible; receiving it moves that time.

    A name that ends in .fifo is a FIFO queue: while a message of a group is received and not deleted, no
    later one of the group is, and a message with the deduplication id of an earlier one is dropped."""

    def __init__(self, visibility=1):
        self.visibility = visibility
        self.changed = threading.Condition()
        self.messages = {}
        self.numbers = itertools.count()
        # Sizes of the received batches, and names in GetQueueUrl calls.
        self.batch_sizes, self.looked_up = [], []
        self.deduplicated = set()

    def bodies(self, name):
        with self.changed:
            return sorted(message["Body"] for message in self.messages[name].values())

    def call(self, action, wanted, connection):
        if action == "ReceiveMessage":
            wanted["is_waited_for"] = lambda: not has_closed(connection)
        return getattr(self, action)(wanted.get("QueueUrl", "").rsplit("/", 1)[-1], wanted)

    def GetQueueUrl(self, _, wanted):
        name = wanted["QueueName"]
        self.looked_up.append(name)
        return {"QueueUrl": f"{self.url}/0/{name}"} if name in self.messages else None

    def SendMessage(self, name, wanted):
        with self.changed:
            identifier = str(next(self.numbers))
            digest = hashlib.md5(wanted["MessageBody"].encode()).hexdigest()
            seen = (name, wanted.get("MessageDeduplicationId", digest))
            is_fifo = name.endswith(".fifo")
            if is_fifo and seen in self.deduplicated:
                return {"MessageId": identifier, "MD5OfMessageBody": digest}
            self.deduplicated.add(seen)
            self.messages[name][identifier] = {
                "MessageId": identifier,
                "Body": wanted["MessageBody"],
                "MD5OfBody": digest,
                "MessageAttributes": wanted.get("MessageAttributes", {}),
                "group": wanted["MessageGroupId"] if is_fifo else None,
                "received": 0,
                "visible": 0,
            }
            self.changed.notify_all()
        return {"MessageId": identifier, "MD5OfMessageBody": digest}

    def ReceiveMessage(self, name, wanted):
        ends = time.monotonic() + wanted["WaitTimeSeconds"]
        with self.changed:
            while True:
                now = time.monotonic()
                # A worker that has ended must not take a message that its successor waits for.
                if not wanted["is_waited_for"]():
                    return {}
                ready = list(self.ready(self.messages[name].values(), now))
                if ready or now >= ends:
                    break
                self.changed.wait(min(0.05, ends - now))
            assert 1 <= wanted["MaxNumberOfMessages"] <= 10
            taken = ready[: wanted["MaxNumberOfMessages"]]
            for message in taken:
                message["visible"] = now + self.visibility
                message["received"] += 1
                message["ReceiptHandle"] = f"{message['MessageId']}/{message['received']}"
                message["Attributes"] = {"ApproximateReceiveCount": str(message["received"])}
                if message["group"]:
                    message["Attributes"]["MessageGroupId"] = message["group"]
            if taken:
                self.batch_sizes.append(len(taken))
            return {"Messages": [dict(message) for message in taken]} if taken else {}

    def ready(self, messages, now):
        """Those that are visible and come after no invisible one of their group."""
        waiting = set()
        for message in messages:
            if message["visible"] > now:
                waiting.add(message["group"])
            elif message["group"] is None or message["group"] not in waiting:
                yield message

    def DeleteMessageBatch(self, name, wanted):
        done = []
        with self.changed:
            assert 1 <= len(wanted["Entries"]) <= 10
            for entry in wanted["Entries"]:
                self.messages[name].pop(entry["ReceiptHandle"].split("/")[0], None)
                done.append({"Id": entry["Id"]})
        return {"Successful": done, "Failed": []}

    def client(self):
        return boto3.client(
            "sqs",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
        )

    def send(self, name, bodies, **more):
        """Sends by boto3, which checks the answers."""
        client = self.client()
        for body in bodies:
            client.send_message(QueueUrl=f"{self.url}/0/{name}", MessageBody=body, **more)


@contextlib.contextmanager
def served(*names, port=0, **settings):
    queues = Queues(**settings)
    queues.messages = {name: {} for name in names}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            action = self.headers["X-Amz-Target"].removeprefix("AmazonSQS.")
            wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = queues.call(action, wanted, self.connection)
            missing = {"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "there is no such queue"}
            text = json.dumps(missing if answer is None else answer).encode()
            with contextlib.suppress(ConnectionError):
                self.send_response(400 if answer is None else 200)
                self.send_header("Content-Type", "application/x-amz-json-1.0")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    queues.address = f"127.0.0.1:{server.server_port}"
    queues.url = f"http://{queues.address}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield queues
    finally:
        server.shutdown()
        server.server_close()
