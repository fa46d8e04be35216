"""A headless Chromium driven over a pipe: no driver, no port, standard library only."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-pipe", "--hide-scrollbars",
    "--enable-precise-memory-info", "--js-flags=--expose-gc",
)  # fmt: skip


class Chromium:
    """One browser with one page.

    Attributes:
        complaints: what the console was told that is a warning or worse, exceptions
            that nobody caught and breaches of the security policy among them.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", read: int, write: int):
        self._process, self._read, self._write = process, read, write
        self._pending = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        found = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Performance"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(60)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def open(self, address: str) -> None:
        self.ask("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """The value of an expression in the page, awaited if it is a promise."""
        found = self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait_for(self, script: str, *, timeout_s: float = 60) -> Any:
        """Poll an expression until its value is true."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            if found := self.run(script):
                return found
            time.sleep(0.05)
        raise TimeoutError(f"{script} was not true; the console: {self.complaints}")

    def press(self, key: str, *, shift: bool = False) -> None:
        text = {" ": " ", "Enter": "\r"}.get(key, "")
        code = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, " ": 32}
        same = {
            "key": key,
            "code": "Space" if key == " " else key,
            "windowsVirtualKeyCode": code.get(key, 0),
            "modifiers": 8 if shift else 0,
        }
        self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **same)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **same)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        for kind, (x, y) in (
            ("mouseMoved", start),
            ("mousePressed", start),
            ("mouseMoved", end),
            ("mouseReleased", end),
        ):
            held = {"button": "left", "buttons": 1, "clickCount": 1}
            rest = {} if kind == "mouseMoved" and (x, y) == start else held
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **rest)

    def size(self, width: int, height: int) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, **features: str) -> None:
        """Media features, such as prefers_color_scheme="dark"."""
        asked = [
            {"name": name.replace("_", "-"), "value": value}
            for name, value in features.items()
        ]
        self.ask("Emulation.setEmulatedMedia", features=asked)

    def metrics(self) -> dict[str, float]:
        found = self.ask("Performance.getMetrics")["metrics"]
        return {entry["name"]: entry["value"] for entry in found}

    def shoot(self, path: Path, *, whole: bool = True) -> None:
        import base64

        found = self.ask(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole
        )
        path.write_bytes(base64.b64decode(found["data"]))

    def _next(self, timeout_s: float) -> dict[str, Any]:
        until = time.monotonic() + timeout_s
        while b"\0" not in self._pending:
            left = max(0.0, until - time.monotonic())
            if not select.select([self._read], [], [], left)[0]:
                raise TimeoutError(f"Chromium said nothing for {timeout_s} s.")
            got = os.read(self._read, 1 << 20)
            if not got:
                raise RuntimeError("Chromium has ended.")
            self._pending += got
        text, _, self._pending = self._pending.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled":
            if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(params["args"])[:500])
        elif method == "Log.entryAdded":
            entry = params["entry"]
            if entry["level"] in ("error", "warning"):
                where = entry.get("url", "")
                self.complaints.append(f"{entry['text']} {where}"[:500])


@contextlib.contextmanager
def chromium() -> Iterator[Chromium]:
    """A browser that is gone afterwards, with all it wrote."""
    to_read, to_write = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            # It talks on its descriptors 3 and 4.
            ["/bin/bash", "-c", f'exec "$@" 3<&{to_write[0]} 4>&{to_read[1]}', "_",
             str(BROWSER), *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(to_write[0], to_read[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_write[0])
        os.close(to_read[1])
        try:
            yield Chromium(process, to_read[0], to_write[1])
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(to_read[0])
            os.close(to_write[1])
