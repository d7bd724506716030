"""A headless Chromium, driven through its debugging pipe (Chrome DevTools Protocol): no package is needed beside the browser."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["BROWSER", "Tab", "open_browser"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
BROWSER = os.environ.get("TLAOT_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)

_PATIENCE = 60.0


class Browser:
    """The process and its pipe."""

    def __init__(self, profile: Path) -> None:
        assert BROWSER is not None
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}"]

        def place_pipe() -> None:
            # The browser reads commands from 3 and answers on 4; where ours have these numbers they are moved away first.
            commands, answers = os.dup(read_commands), os.dup(write_answers)
            while commands < 5:
                commands = os.dup(commands)
            while answers < 5:
                answers = os.dup(answers)
            os.dup2(commands, 3)
            os.dup2(answers, 4)

        self._process = subprocess.Popen(
            [BROWSER, *flags, "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=place_pipe,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._number, self._rest = 0, b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        body = {"id": self._number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self._commands, json.dumps(body).encode() + b"\0")
        for message in self._messages(time.monotonic() + _PATIENCE):
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)
        raise AssertionError(f"Chromium did not answer {method}")

    def _messages(self, until: float) -> Iterator[dict[str, Any]]:
        while True:
            while b"\0" in self._rest:
                first, self._rest = self._rest.split(b"\0", 1)
                yield json.loads(first)
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                return
            data = os.read(self._answers, 1 << 20)
            assert data, "Chromium has ended"
            self._rest += data

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)


class Tab:
    """A page in the browser, with what it said and asked for."""

    def __init__(self, browser: Browser, width: int, height: int, dark: bool) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def open(self, path: Path) -> None:
        self._call("Page.navigate", url=path.as_uri())
        self.run("document.readyState === 'complete' || await new Promise((go) => addEventListener('load', go))")

    def run(self, code: str) -> Any:
        """Run JavaScript that may await; what ``return`` gives comes back."""
        body = code if "return" in code else f"return {code}"
        answer = self._call(
            "Runtime.evaluate", expression=f"(async () => {{ {body} }})()", awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key, as from a keyboard."""
        keys = {"key": key, "code": key, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, **keys)

    def shoot(self, path: Path) -> None:
        """A picture of what is to be seen."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    @property
    def complaints(self) -> list[str]:
        """Everything on the console, uncaught errors, and requests to anything but files and data."""
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.consoleAPICalled":
                found.append(f"{params['type']}: {[one.get('value') for one in params['args']]}")
            elif method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"].get("exception", {}).get("description")))
            elif method == "Log.entryAdded":
                found.append(params["entry"]["text"])
            elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
                ("file:", "data:", "about:")
            ):
                found.append(f"asks for {params['request']['url']}")
        return found


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.close()
