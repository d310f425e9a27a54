"""What lies behind the API of `firecracker_peer`: Firecracker's virtio-mem device, Mayfly's driver in mode
`ranges` (kernel/hotmem/*/0018-*), and an agent (vm/protocol) that connects as through Firecracker's vsock."""

import base64
import json
import os
import socket
import struct
import sys
import threading
import time

MIB = 1 << 20
BLOCK = 128 * MIB
# Of vm/protocol.
VERSION, PORT = 10, 5201
# The words of the kernel's command line.
WORDS: dict[str, str] = {}
LINES: list[str] = []
LOGGING = threading.Lock()


def log(*what):
    """Adds a line to the log, which is named after the first requests."""
    with LOGGING:
        LINES.append(json.dumps(what) + "\n")
        if path := WORDS.get("peer.log"):
            with open(path, "a") as file:
                file.writelines(LINES)
            LINES.clear()


class Fault(Exception):
    """A refusal, with the text of `fault_message`."""


class Memory:
    """The virtio-mem device, and the driver in the guest."""

    def __init__(self, config, words):
        self.total = config["total_size_mib"] * MIB
        self.config = config
        self.requested = self.usable = 0
        self.plugged: set[int] = set()  # offsets of blocks
        self.is_active = self.is_broken = False
        self.named = None
        self.changed = threading.Condition()
        self.slow_s = int(words.get("peer.slow_ms", 0)) / 1000
        self.quick = int(words.get("peer.quick", 0))  # so many blocks, and then slow ones
        shared, size = int(words.get("hotmem.shared_range", 0)), int(words.get("hotmem.range", 0))
        # Offsets and sizes by node: the shared partition is None.
        self.ranges = {None: (0, shared)} if shared else {}
        for number in range(int(words.get("hotmem.partitions", 0))):
            self.ranges[number] = (shared + number * size, size)
        # Other kernels plug from the first block on.
        self.ranges = self.ranges or {n: (n * BLOCK, BLOCK) for n in range(self.total // BLOCK)}

    def status(self):
        return {
            "block_size_mib": self.config.get("block_size_mib", 2),
            "total_size_mib": self.total // MIB,
            "slot_size_mib": self.config.get("slot_size_mib", 128),
            "plugged_size_mib": len(self.plugged) * BLOCK // MIB,
            "requested_size_mib": self.requested // MIB,
        }

    def request(self, mib):
        failed = "Memory hotplug update error: Failed to create memory hotplug device: "
        size = mib * MIB
        with self.changed:
            if not self.is_active:
                raise Fault(failed + "Device is not active")
            if mib % self.config.get("block_size_mib", 2) or size > self.total:
                what = "it must be a multiple of block size and less than the total size"
                raise Fault(f"{failed}Size {size} is invalid: {what}")
            # It is never lowered, unless the guest unplugs all.
            if self.usable < size:
                self.usable = -(-size // BLOCK) * BLOCK
            self.requested = size
            self.changed.notify_all()

    def plug(self, offset):
        """The device's side of the driver's request to plug a block."""
        too_big = len(self.plugged) * BLOCK + BLOCK > self.requested
        if too_big or offset + BLOCK > self.usable or offset in self.plugged:
            # The answer is VIRTIO_MEM_RESP_ERROR, never NACK. To Linux the device is broken from then on.
            self.is_broken = True
            log("device", "broken", offset // MIB, self.requested // MIB)
            return
        self.plugged.add(offset)
        log("device", "plugged", offset // MIB)

    def blocks(self, node):
        offset, size = self.ranges[node]
        return range(offset, offset + size, BLOCK)

    def drive(self):
        """The driver: plugs and unplugs until the size is the requested one, or nothing is left to do."""
        with self.changed:
            self.is_active = True
            while True:
                wanted = [node for node in self.ranges if self.named in (None, node)]
                count = self.requested // BLOCK
                absent = [
                    offset for node in wanted for offset in self.blocks(node) if offset not in self.plugged
                ]
                there = [node for node in reversed(wanted) if node is not None and self.has(node)]
                if not self.is_broken and count > len(self.plugged) and absent:
                    # The request is under way: the host may lower the size meanwhile.
                    self.changed.release()
                    self.quick -= 1
                    time.sleep(0 if self.quick >= 0 else self.slow_s)
                    self.changed.acquire()
                    self.plug(absent[0])
                elif not self.is_broken and count < len(self.plugged) and there:
                    self.plugged -= set(self.blocks(there[0]))
                    log("device", "unplugged", self.ranges[there[0]][0] // MIB)
                else:
                    self.changed.wait(1)
                    continue
                self.changed.notify_all()

    def has(self, node):
        return any(offset in self.plugged for offset in self.blocks(node))

    def online(self, node):
        if node not in self.ranges:
            return len(self.plugged) * BLOCK
        return sum(BLOCK for offset in self.blocks(node) if offset in self.plugged)


class Agent:
    """The guest's agent, which connects to the host. `kill` in its place: it dies, and the next one comes."""

    def __init__(self, path, memory):
        self.path, self.memory, self.number = path, memory, 0
        self.instances: dict[str, int | None] = {}

    def live(self):
        while True:
            self.number += 1
            self.instances = {}
            self.about = {"version": VERSION, "agent_id": self.number, "kernel": "peer", "hotmem": True}
            self.about["boot_ns"] = 1
            with socket.socket(socket.AF_UNIX) as self.stream:
                self.stream.connect(self.path)
                self.send({"event": "ready", **self.about})
                buffer = b""
                while part := self.stream.recv(1 << 16):
                    buffer += part
                    while len(buffer) >= 4 and len(buffer) >= 4 + struct.unpack("<I", buffer[:4])[0]:
                        end = 4 + struct.unpack("<I", buffer[:4])[0]
                        request, buffer = json.loads(buffer[4:end]), buffer[end:]
                        threading.Thread(target=self.answer, args=[request], daemon=True).start()
            time.sleep(0.1)

    def send(self, message):
        text = json.dumps(message).encode()
        self.stream.sendall(struct.pack("<I", len(text)) + text)

    def answer(self, request):
        answer = getattr(self, request["op"], self.unknown)(request)
        outcome = {"error": answer} if "kind" in answer else {"ok": answer}
        self.send({"id": request["id"], **outcome})

    def unknown(self, request):
        return {"kind": "malformed", "message": f"not a request that this agent knows: {request['op']}"}

    def hello(self, request):
        log("agent", "hello", request["layout"]["mode"])
        with self.memory.changed:
            self.memory.named = None
        return {"answer": "hello", **self.about}

    def name_range(self, request):
        with self.memory.changed:
            self.memory.named = request["partition"]
        return {"answer": "done"}

    def prepare_unplug(self, request):
        if request["partition"] in self.instances.values():
            return {"kind": "busy", "message": "an instance is in it"}
        return {"answer": "prepared", "dropped_pages": 0}

    def cancel_unplug(self, request):
        return {"answer": "done"}

    def plug_confirm(self, request):
        return self.confirm(request, lambda online: online >= request["bytes"])

    def unplug_confirm(self, request):
        return self.confirm(request, lambda online: online <= request["bytes"])

    def confirm(self, request, is_done):
        node = request["partition"]
        with self.memory.changed:
            done = self.memory.changed.wait_for(
                lambda: is_done(self.memory.online(node)), request["timeout_ms"] / 1000
            )
            online = self.memory.online(node)
        if not done:
            return {"kind": "timed_out", "message": f"{online} bytes are online"}
        return {"answer": "confirmed", "online_bytes": online, "waited_ns": 1}

    def spawn(self, request):
        if request["argv"] == ["kill", "agent"]:
            self.stream.shutdown(socket.SHUT_RDWR)
            sys.exit()  # this thread
        self.instances[request["instance"]] = request["partition"]
        return {"answer": "spawned", "pid": 7}

    def stop(self, request):
        instance = request["instance"]
        if instance not in self.instances:
            return {"kind": "no_such_instance", "message": "no such instance"}
        reason, partition = {"kind": "signal", "signal": 15}, self.instances.pop(instance)
        self.send({"event": "exited", "instance": instance, "partition": partition, "reason": reason})
        return {"answer": "stopped", "reason": reason}

    def output(self, request):
        text = base64.b64encode(b"filled\n").decode()
        return {"answer": "output", "bytes": text, "from": 0, "next": 7, "ended": False}

    def shutdown(self, request):
        # A reset by the keyboard controller, which the kernel uses with this word, ends Firecracker.
        if WORDS.get("reboot") == "k":
            threading.Timer(0.05, lambda: os._exit(0)).start()
        return {"answer": "done"}
