"""A real browser for tests of pages: headless Chromium, spoken to through a pipe.

The protocol is Chrome's DevTools Protocol (https://chromedevtools.github.io/devtools-protocol/),
with `--remote-debugging-pipe`: JSON messages that end with a zero byte, on descriptors 3 and 4.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from grader.isolate import usage

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_DEADLINE_S = 120.0


def installed() -> str | None:
    """Return the browser's path, None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of one browser. `errors` are those since the last `show`, and `requests` what was
    loaded, without what the page's policy forbade."""

    def __init__(self, program: str) -> None:
        self._before = set(usage.descendants(os.getpid()))
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        command = [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
            "--no-first-run", f"--user-data-dir={self._folder.name}", "about:blank",
        ]  # fmt: skip
        # It stays in this session: the judge's reaper ends children in any other.
        shell = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, *command],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest, self._number = b"", 0
        self.errors: list[str] = []
        self.requests: dict[str, str] = {}
        pages = self._send("Target.getTargets")["targetInfos"]
        page = next(p["targetId"] for p in pages if p["type"] == "page")
        attached = self._send("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        """End the browser and all its processes: other tests look at what this one has started."""
        # Its crash handler is a daemon: it has become a child of ours, who adopts orphans.
        processes = set(usage.descendants(os.getpid())) - self._before
        with contextlib.suppress(AssertionError, OSError):
            self._send("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        for pid in processes:  # they may have become ours
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()

    def show(
        self, page: Path, *, width: int, height: int = 900, dark: bool = False, media: str = ""
    ) -> None:
        """Load a file in a window of `width` CSS pixels and wait until it is there."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.errors, self.requests = [], {}
        self.send("Page.navigate", url=page.absolute().as_uri())
        while self.run("document.readyState") != "complete" or self.run("location.href") == (
            "about:blank"
        ):
            time.sleep(0.01)

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page, as JSON carries it."""
        told = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in told:
            raise AssertionError(told["exceptionDetails"])
        return told["result"].get("value")

    def picture(self, path: Path) -> None:
        """Write the whole page as PNG."""
        told = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(told["data"]))

    def pdf(self, path: Path) -> None:
        """Write the page as it is printed."""
        told = self.send("Page.printToPDF", printBackground=False)
        path.write_bytes(base64.b64decode(told["data"]))

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command to the page and return its result."""
        return self._send(method, self._session, **parameters)

    def _send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + _DEADLINE_S
        while True:
            answer = self._receive(end)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _receive(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            chunk = os.read(self._from, 2**20) if ready else b""
            if not chunk:
                raise AssertionError("the browser does not answer")
            self._rest += chunk
        line, self._rest = self._rest.split(b"\0", 1)
        return json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        method, given = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests[given["requestId"]] = given["request"]["url"]
        elif method == "Network.loadingFailed" and given.get("blockedReason"):
            self.requests.pop(given["requestId"], None)
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(given["exceptionDetails"]))
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.errors.append(given["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.errors.append(str(given["args"]))
