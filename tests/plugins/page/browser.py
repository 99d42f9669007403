"""A headless Chromium that a test drives by the DevTools protocol over two pipes; nothing else is needed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


class Browser:
    """One tab: it opens pages, runs scripts in them, and remembers requests, console messages and errors."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._count, self._rest, self._session = 0, b"", ""
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "Performance"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a command; events before it are kept."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            block = os.read(self._read, 1 << 20)
            assert block, "Chromium has ended"
            self._rest += block
        text, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(text)
        params = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            url = params["request"]["url"]
            self.requests += [] if url.startswith("data:") else [url]  # what lies in the page itself is no request
        elif message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("text", "") + str(params["exceptionDetails"])[:500])
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif message.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(" ".join(str(item.get("value", item.get("description"))) for item in params["args"]))
        return message

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page, awaited if it is a promise."""
        result = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def open(self, page: Path, width: int = 1280, height: int = 900, *, dark: bool = False) -> float:
        """Open a page and return the seconds until all charts near its beginning are drawn."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        began = time.monotonic()
        self.send("Page.navigate", url=page.resolve().as_uri())
        while not self.run(_DRAWN):
            assert time.monotonic() - began < 60, "the charts were not drawn"
            time.sleep(0.02)
        return time.monotonic() - began

    def heap(self) -> float:
        """Return the bytes of JavaScript's heap after a collection."""
        self.send("HeapProfiler.collectGarbage")
        metrics = {item["name"]: item["value"] for item in self.send("Performance.getMetrics")["metrics"]}
        return float(metrics["JSHeapUsedSize"])

    def screenshot(self, out: Path, *, full: bool = True) -> None:
        """Write what the page looks like as PNG."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        out.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, out: Path) -> None:
        """Print the page."""
        out.write_bytes(
            base64.b64decode(self.send("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])
        )


_DRAWN = """document.readyState === "complete" && [...document.querySelectorAll("figure[data-chart]")].every(
  (figure) => figure.classList.contains("live") || figure.getBoundingClientRect().top > innerHeight)"""


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium in a profile of its own, and end it."""
    assert CHROMIUM is not None
    # Numbers of 20 and more, as Chromium reads commands from file 3 and answers to file 4.
    to_child, from_parent, from_child, to_parent = (
        fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (*os.pipe(), *os.pipe())
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *_FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        shell = [
            "bash",
            "-c",
            f'exec "$@" 3<&{to_child} 4>&{to_parent} {to_child}<&- {to_parent}>&- ',
            "bash",
            *command,
        ]
        process = subprocess.Popen(
            shell, pass_fds=(to_child, to_parent), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        os.close(to_child)
        os.close(to_parent)
        try:
            yield Browser(from_child, from_parent)
        finally:
            process.terminate()
            process.wait()
            os.close(from_parent)
            os.close(from_child)
