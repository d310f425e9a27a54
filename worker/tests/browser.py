"""A real browser for the tests: headless Chromium, driven by its DevTools protocol over two pipes."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PATIENCE_S = 60


class Browser:
    """One window with one page."""

    def __init__(self):
        program = shutil.which("chromium")
        assert program, "chromium is not installed: run 'make setup'"
        self.profile = tempfile.mkdtemp(prefix="mayfly-browser-")
        to_browser, self.output = os.pipe()
        self.input, from_browser = os.pipe()

        def descriptors():  # it reads from 3 and writes to 4
            reads, writes = os.dup(to_browser), os.dup(from_browser)
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        self.process = subprocess.Popen(
            [
                program,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--remote-debugging-pipe",
                f"--user-data-dir={self.profile}",
                "about:blank",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=descriptors,
            close_fds=False,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.numbers, self.rest, self.session = itertools.count(1), b"", None
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.input)
        os.close(self.output)
        shutil.rmtree(self.profile, ignore_errors=True)

    def message(self, deadline):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.input], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            read = os.read(self.input, 1 << 20)
            assert read, "the browser has ended"
            self.rest += read
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        number = next(self.numbers)
        request = {"id": number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.output, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            message = self.message(deadline)
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self.events.append(message)

    def open(self, url):
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def value(self, expression):
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, expression):
        deadline = time.monotonic() + PATIENCE_S
        while not self.value(expression):
            assert time.monotonic() < deadline, f"never true in the page: {expression}"
            time.sleep(0.05)

    def resize(self, width, height):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def point(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def console(self):
        """Console messages of the page or the browser: errors of scripts, refused content."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self.events if event.get("method") in kinds]

    def requested(self):
        """Every address that the page has requested."""
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]
