"""A headless Chromium, driven through the W3C WebDriver protocol with nothing but `urllib`.

https://www.w3.org/TR/webdriver2/ names the commands; `/se/log` and `/goog/cdp/execute` are
chromedriver's own.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import pytest

ARGUMENTS = (
    "--headless",
    "--no-sandbox",  # which root must not use
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
SECONDS = 60


class Browser:
    """One session of a browser."""

    def __init__(self, address: str, capabilities: dict[str, Any]) -> None:
        self._open = build_opener(ProxyHandler({})).open  # the driver is on this machine
        self._address = f"{address}/session"
        answer = self._post("", {"capabilities": {"alwaysMatch": capabilities}})
        self._address += f"/{answer['sessionId']}"

    def go(self, path: Path) -> None:
        """Open a file, and forget the messages of the pages before it."""
        self.console()
        self.run("window.isLeft = true")
        self._post("/url", {"url": path.resolve().as_uri()})
        # The driver may answer while the page before, which may be the same, is still there.
        until = time.monotonic() + SECONDS
        while not self.run("return document.readyState === 'complete' && !window.isLeft"):
            assert time.monotonic() < until, f"{path} is not loaded"
            time.sleep(0.01)

    def run(self, script: str) -> Any:
        """What a JavaScript function with this body returns on the page."""
        return self._post("/execute/sync", {"script": script, "args": []})

    def console(self) -> list[dict[str, Any]]:
        """The console's messages since they were last asked for: level, message, source."""
        return self._post("/se/log", {"type": "browser"})

    def resize(self, width: int, height: int = 900) -> None:
        """Show pages as a screen of this size does."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def prefer(self, scheme: str, medium: str = "screen") -> None:
        """Show pages as to one who prefers "light" or "dark", on "screen" or in "print"."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", {"media": medium, "features": features})

    def picture(self, path: Path) -> Path:
        """Write the whole page as it looks, as PNG."""
        options = {"format": "png", "captureBeyondViewport": True}
        path.write_bytes(base64.b64decode(self.devtools("Page.captureScreenshot", options)["data"]))
        return path

    def devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        """What a command of the Chrome DevTools Protocol returns."""
        return self._post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def close(self) -> None:
        """End the session, and the browser with it."""
        self._send(Request(self._address, method="DELETE"))

    def _post(self, command: str, body: dict[str, Any]) -> Any:
        header = {"Content-Type": "application/json; charset=utf-8"}
        return self._send(Request(self._address + command, json.dumps(body).encode(), header))

    def _send(self, request: Request) -> Any:
        with self._open(request, timeout=SECONDS) as answer:
            return json.load(answer)["value"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for as long as the block lasts; the test is skipped where there is none."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs Chromium and its driver: apt install chromium chromium-driver")
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with folder as profile, _driver(driver) as address:
        options = {"binary": browser, "args": [*ARGUMENTS, f"--user-data-dir={profile}"]}
        session = Browser(
            address, {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        )
        try:
            yield session
        finally:
            session.close()


@contextmanager
def _driver(program: str) -> Iterator[str]:
    """The address of a running chromedriver, which chooses a free port and prints it."""
    with subprocess.Popen(
        [program, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if port := re.search(r"started successfully on port (\d+)", line):
                    yield f"http://127.0.0.1:{port[1]}"
                    return
            raise RuntimeError(f"{program} did not start:\n{''.join(lines)}")
        finally:
            process.terminate()
