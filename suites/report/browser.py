"""A headless Chromium, spoken to over two pipes (its DevTools protocol), so that no driver has to be installed."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 60.0  # seconds for an answer, on a machine that does other things too
LAUNCH = """
import os, sys
commands, answers = (os.dup(int(number)) for number in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.set_inheritable(3, True)  # what was there already, dup2 leaves as it was
os.set_inheritable(4, True)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The protocol is spoken on descriptors 3 and 4."""
KEYS = {"Enter": 13, "Escape": 27, "PageDown": 34, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def executable() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class PageError(AssertionError):
    """The page's own code raised, or did not answer."""


class Browser:
    """One page of one browser process. What its code raises or logs as an error is in `complaints`, what it asks for in `asked`."""

    def __init__(self, profile: Path) -> None:
        found = executable()
        assert found is not None
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--disable-extensions",
                 "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]  # fmt: skip
        line = [sys.executable, "-c", LAUNCH, str(commands), str(answers), found, *flags]
        self._process = subprocess.Popen(line, pass_fds=(commands, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self._session = ""
        self._loaded = False
        try:
            page = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._out)  # with its pipe the browser ends
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def open(self, path: Path, *, theme: str = "light", width: int = 1400, height: int = 1000) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.prefer(theme)
        self.complaints, self.asked = [], []
        self._load("Page.navigate", url=path.as_uri())

    def reload(self) -> None:
        self.asked = []
        self._load("Page.reload")

    def _load(self, method: str, **params: Any) -> None:
        self._loaded = False
        self.call(method, **params)
        self._until(lambda: self._loaded)
        self.settle()

    def prefer(self, theme: str) -> None:
        """Of the system: light or dark; and no motion, so that what is clicked stands still."""
        wishes = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
        self.call("Emulation.setEmulatedMedia", features=[{"name": name, "value": value} for name, value in wishes.items()])

    def value(self, code: str) -> Any:
        """What an expression comes to, as JSON."""
        result = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise PageError(result["exceptionDetails"].get("exception", {}).get("description", "?"))
        return result["result"].get("value")

    def settle(self) -> None:
        """Two frames later, when what a listener asked to be drawn has been."""
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def place(self, selector: str) -> list[float]:
        """[x, y, width, height] of an element, brought into view."""
        return list(
            self.value(
                f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center', behavior: 'instant'}});"
                " const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
            )
        )

    def click(self, selector: str) -> None:
        x, y, width, height = self.place(selector)
        self.press(x + width / 2, y + height / 2)

    def press(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="none" if kind == "mouseMoved" else "left", clickCount=1)
        self.settle()

    def key(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        code = {"windowsVirtualKeyCode": KEYS[key]} if key in KEYS else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **code, **(text if kind == "keyDown" else {}))
        self.settle()

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)
        self.settle()

    def picture(self, path: Path, *, whole: bool = False) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]))

    def printed(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answer: dict[str, Any] = {}
        self._until(lambda: bool(answer), number, answer)
        if "error" in answer:
            raise PageError(f"{method}: {answer['error']['message']}")
        return dict(answer["result"])

    def _until(self, done: Any, number: int = 0, answer: dict[str, Any] | None = None) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            if not select.select([self._in], [], [], max(0.0, end - time.monotonic()))[0]:
                raise PageError(f"the browser did not answer within {PATIENCE:.0f} s")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise PageError("the browser ended")
            *messages, self._buffer = (self._buffer + part).split(b"\0")
            for message in map(json.loads, messages):
                if answer is not None and message.get("id") == number:
                    answer |= message
                else:
                    self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        kind, said = message.get("method", ""), message.get("params", {})
        if kind == "Page.loadEventFired":
            self._loaded = True
        elif kind == "Runtime.exceptionThrown":
            self.complaints.append(said["exceptionDetails"].get("exception", {}).get("description", said["exceptionDetails"]["text"]))
        elif kind == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.complaints.append(said["entry"]["text"])
        elif kind == "Network.requestWillBeSent":
            self.asked.append(said["request"]["url"])
