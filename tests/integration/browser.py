"""Headless Chromium for tests, driven through chromedriver's HTTP interface (W3C WebDriver). Both come as Debian packages."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.integration.processes import wait_until

SECONDS = 90
FLAGS = (
    "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking", "disable-component-update",
    "disable-sync", "disable-dev-shm-usage", "disable-default-apps", "no-proxy-server",
)  # fmt: skip
needs_chromium = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="chromium or chromedriver is not installed (Debian: apt-get install chromium chromium-driver)",
)


class Browser:
    """One window of a browser with a fresh profile; ``foreign`` is a name that leads to 127.0.0.1, as a hostile DNS server has it."""

    def __init__(self, folder: Path, *, foreign: str) -> None:
        self._folder = folder
        log = folder / "chromedriver.log"
        with log.open("wb") as out:
            self._process = subprocess.Popen(["chromedriver", "--port=0"], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        started = "started successfully on port "
        wait_until(lambda: started in log.read_text(), SECONDS, "chromedriver")
        self._base = f"http://127.0.0.1:{log.read_text().split(started)[1].split()[0].rstrip('.')}"
        flags = [f"--{flag}" for flag in (*FLAGS, f"user-data-dir={folder / 'profile'}", f"host-resolver-rules=MAP {foreign} 127.0.0.1")]
        options = {"binary": shutil.which("chromium"), "args": flags}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "timeouts": {"script": 60_000, "pageLoad": 60_000}}
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._base += f"/session/{made['sessionId']}"

    def go(self, url: str) -> None:
        """Load a page in the window's top level, as somebody who types its address.

        Chromium gives up what it is loading when an interface comes or goes on the host, as other tests let them.
        """
        try:
            self._call("POST", "/url", {"url": url})
        except urllib.error.HTTPError as error:
            if "ERR_NETWORK_CHANGED" not in error.reason:
                raise
            self._call("POST", "/url", {"url": url})

    @property
    def url(self) -> str:
        """Of the page that is shown."""
        return str(self._call("GET", "/url"))

    @property
    def text(self) -> str:
        """What the page shows; "" while another page is being loaded."""
        try:
            return str(self.run("done(document.body ? document.body.innerText : '')"))
        except urllib.error.HTTPError:  # the page that was asked has gone
            return ""

    @property
    def cookies(self) -> list[dict[str, Any]]:
        """Those of the page that is shown, the ones hidden from scripts included."""
        return list(self._call("GET", "/cookie"))

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page, with its rights; it calls ``done(value)``, and finds what it was given in ``given``."""
        body = f"const done = arguments[arguments.length - 1], given = Array.from(arguments).slice(0, -1); {script}"
        return self._call("POST", "/execute/async", {"script": body, "args": list(arguments)})

    def click(self, text: str) -> None:
        """Press the link or button that says this; the page may put another one in its place meanwhile."""
        where = f"//*[self::a or self::button][normalize-space()={json.dumps(text, ensure_ascii=False)}]"

        def pressed() -> bool:
            try:
                self._call("POST", f"/element/{self._find(where)}/click", {})
            except urllib.error.HTTPError:
                return False
            return True

        wait_until(pressed, 20, f"{text} to be pressed")

    def fill(self, label: str, text: str) -> None:
        """Write into the field of a label that begins so."""
        field = self._find(f"//label[starts-with(normalize-space(), {json.dumps(label)})]//*[self::input or self::textarea]")
        self._call("POST", f"/element/{field}/clear", {})
        self._call("POST", f"/element/{field}/value", {"text": text})

    def click_at(self, label: str) -> None:
        """Press what a label that begins so belongs to, such as a box to tick."""
        box = self._find(f"//label[starts-with(normalize-space(), {json.dumps(label)})]//input")
        self._call("POST", f"/element/{box}/click", {})

    def choose(self, label: str, option: str) -> None:
        """Choose from the list of a label that begins so."""
        at = f"//label[starts-with(normalize-space(), {json.dumps(label)})]//option[normalize-space()={json.dumps(option)}]"
        self._call("POST", f"/element/{self._find(at)}/click", {})

    def press(self, key: str) -> None:
        """A key of the keyboard, for whatever has the focus."""
        keys = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": keys}]})

    def resize(self, width: int, height: int) -> None:
        """What the page has, as on a screen of that size."""
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def picture(self, name: str) -> None:
        """Save what the window shows as NAME.png: among the test's files, or in the folder that MIRROR_PICTURES names."""
        shown = self.command("Page.captureScreenshot", format="png")
        (Path(os.environ.get("MIRROR_PICTURES") or self._folder) / f"{name}.png").write_bytes(base64.b64decode(shown["data"]))

    def command(self, name: str, **parameters: Any) -> Any:
        """One of the browser's DevTools protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def _find(self, xpath: str) -> str:
        return str(next(iter(self._call("POST", "/element", {"using": "xpath", "value": xpath}).values())))

    def end(self) -> None:
        """Close the window and end both processes."""
        try:
            if "/session/" in self._base:
                self._call("DELETE", "")
        finally:
            self._process.terminate()
            self._process.wait(30)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._base + path, data, kind, method=method)  # noqa: S310 - chromedriver on loopback
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=SECONDS) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            said = error.read().decode("utf-8", "replace")
            raise urllib.error.HTTPError(error.url, error.code, said[:600], error.headers, None) from None
