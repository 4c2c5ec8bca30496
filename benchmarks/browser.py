"""A real browser without a screen: Chromium, where it is installed, driven by its DevTools.

Browser and program speak over a pair of pipes: no port is open, and the browser may run in a
network namespace.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # root has no sandbox, and the browser opens our page only
    "--no-zygote",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-breakpad",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
)
_START_S = 30.0
_END_S = 5.0


@cache
def why_impossible() -> str | None:
    """Say why there is no browser; None if there is one, which has shown an empty page."""
    if not shutil.which("chromium"):
        return "no browser: apt-get install chromium"
    with tempfile.TemporaryDirectory(prefix="hoplite-", ignore_cleanup_errors=True) as profile:
        command = ["chromium", *_OPTIONS, f"--user-data-dir={profile}", "--dump-dom", "about:blank"]
        command.remove("--remote-debugging-pipe")
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_START_S)
        except (OSError, subprocess.SubprocessError) as error:
            return f"no browser: chromium is installed and does not start ({error})"
    return None


class Browser:
    """One page of a browser that runs for as long as the block takes. A context manager."""

    def __init__(self, *, before: Sequence[str] = (), width: int = 1280) -> None:
        self._before = before
        self._width = width
        self._session = ""
        self._calls = 0

    def __enter__(self) -> Self:
        self._profile = tempfile.TemporaryDirectory(prefix="hoplite-", ignore_cleanup_errors=True)
        asks, self._to = os.pipe()
        self._from, answers = os.pipe()
        # Chromium expects its ends of the pipes at descriptors 3 and 4.
        pipes = f'exec "$@" 3<&{asks} 4>&{answers}'
        options = (*_OPTIONS, f"--user-data-dir={self._profile.name}")
        command = [*self._before, "bash", "-c", pipes, "bash", "chromium", *options, "about:blank"]
        self._process = subprocess.Popen(
            command,
            pass_fds=(asks, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that all of its processes can be ended
        )
        os.close(asks)
        os.close(answers)
        self._answers = os.fdopen(self._from, "rb")
        self._left = b""
        try:
            target = self._call("Target.createTarget", url="about:blank")["targetId"]
            attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            self._resize(800)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session = ""
        with suppress(OSError, EOFError):
            self._call("Browser.close")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._to)
        self._answers.close()
        self._profile.cleanup()

    def open(self, url: str) -> None:
        """Go to a page; return before the page is complete."""
        self._call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        done = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"]["exception"]["description"])
        return done["result"].get("value")

    def text(self) -> str:
        """Return the text of the page."""
        return str(self.run("document.body ? document.body.innerText : ''"))

    def picture(self, file: Path) -> None:
        """Write all of the page as a PNG, however long it is."""
        self._resize(self.run("document.documentElement.scrollHeight"))
        shot = self._call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(shot["data"]))

    def _resize(self, height: int) -> None:
        shape = {"width": self._width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **shape)

    def _call(self, method: str, **parameters: Any) -> Any:
        self._calls += 1
        asked = {"id": self._calls, "method": method, "params": parameters}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._to, json.dumps(asked).encode() + b"\0")
        while True:
            told = json.loads(self._message())
            if told.get("id") == self._calls:  # what else it tells are events
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']['message']}")
                return told["result"]

    def _message(self) -> bytes:
        while b"\0" not in self._left:
            came = os.read(self._from, 1 << 20)
            if not came:
                raise EOFError("the browser has ended")
            self._left += came
        message, _, self._left = self._left.partition(b"\0")
        return message
