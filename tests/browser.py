"""A headless Chromium without network, driven through a pipe: no library is needed, and no port is open."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


class Browser:
    """One page of a browser. ``messages``: everything that the page wrote to the console, and every failure of it."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._numbers, self._rest = read, write, itertools.count(1), b""
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self.messages: list[str] = []

    def start(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """The answer to a command of the DevTools protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def _next(self) -> Any:
        while b"\0" not in self._rest:
            more = os.read(self._read, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        kind, content = event.get("method"), event.get("params", {})
        if kind == "Runtime.consoleAPICalled":
            self.messages.append(" ".join(str(a.get("value", a.get("description"))) for a in content["args"]))
        elif kind == "Runtime.exceptionThrown":
            self.messages.append(str(content["exceptionDetails"]))
        elif kind == "Log.entryAdded":
            self.messages.append(content["entry"]["text"])

    def open(self, address: str, *, width: int = 1400, dark: bool = False, offline: bool = True) -> None:
        """Load a page and wait until it has loaded."""
        speed = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.call("Network.emulateNetworkConditions", offline=offline, **speed)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.messages.clear()
        self.call("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._note(self._next())

    def value(self, script: str) -> Any:
        """The value of an expression in the page, which may be a promise."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """Write a picture of the page."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        file.write_bytes(base64.b64decode(answer["data"]))


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser that has just started."""
    assert CHROMIUM is not None
    to_browser, from_us = os.pipe()
    from_browser, to_us = os.pipe()
    # The browser's other processes may outlive it for a moment, and write.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        arguments = [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
            "--disable-dev-shm-usage", "--disable-background-networking", f"--user-data-dir={profile}",
        ]  # fmt: skip

        def give_pipes() -> None:  # the protocol's ends are the descriptors 3 and 4
            ends = os.dup(to_browser), os.dup(to_us)
            for end, number in zip(ends, (3, 4), strict=True):
                os.dup2(end, number)

        process = subprocess.Popen(
            arguments, preexec_fn=give_pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(to_us)
        try:
            page = Browser(from_browser, from_us)
            page.start()
            yield page
        finally:
            process.kill()
            process.wait()
            os.close(from_us)
            os.close(from_browser)
