"""Headless Chromium by its DevTools protocol: what a person would see of a page, without a driver to install."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""
SECONDS = 30.0


class Browser:
    """One page of a browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.messages: list[str] = []
        """What the page wrote to its console, errors and violations of its policy among them."""

    async def call(self, method: str, **parameters: Any) -> Any:
        """Send a command; answers its result."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            answer = await self._socket.receive_json(timeout=SECONDS)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            if answer.get("method") == "Log.entryAdded":
                self.messages.append(answer["params"]["entry"]["text"])
            elif answer.get("method") == "Runtime.exceptionThrown":
                self.messages.append(str(answer["params"]["exceptionDetails"]))

    async def run(self, expression: str) -> Any:
        """Evaluate JavaScript in the page."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Wait until JavaScript is true in the page; answers its value."""
        async with asyncio.timeout(SECONDS):
            while not (value := await self.run(expression)):  # noqa: ASYNC110 - the page has no event for it
                await asyncio.sleep(0.05)
        return value

    async def open(self, url: str) -> None:
        """Go to a page."""
        await self.call("Page.navigate", url=url)

    async def press(self, key: str, *, shift: bool = False) -> None:
        """Press and release Tab or Enter."""
        code, text = {"Tab": (9, ""), "Enter": (13, "\r")}[key]
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    async def resize(self, width: int, height: int, *, dark: bool = False, still: bool = False) -> None:
        """Choose the size of the window, and which colours and how much motion its user prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        colours = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        motion = {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"}
        await self.call("Emulation.setEmulatedMedia", features=[colours, motion])

    async def stop_clock(self, moment: datetime) -> None:
        """Let it be this moment in all pages that are opened from now on."""
        source = f"Date.now = () => {int(moment.timestamp() * 1000)};"
        await self.call("Page.addScriptToEvaluateOnNewDocument", source=source)

    async def picture(self, file: Path, *, whole: bool = False) -> None:
        """Write what is to be seen as PNG or WebP; the whole page, however long it is, on request."""
        kind = file.suffix.removeprefix(".")
        result = await self.call("Page.captureScreenshot", format=kind, captureBeyondViewport=whole)
        await asyncio.to_thread(file.write_bytes, base64.b64decode(result["data"]))


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Browser]:
    """Start a browser with a profile in a folder; it ends with the block."""
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
    profile = (f"--user-data-dir={folder}", "--remote-debugging-port=0", "--no-first-run", "about:blank")
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(PROGRAM, *options, *profile, stdout=quiet, stderr=quiet)
    try:
        port = await _port(folder / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                page = next(each for each in await answer.json() if each["type"] == "page")
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                shown = Browser(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await shown.call(f"{domain}.enable")
                yield shown
    finally:
        process.terminate()
        await process.wait()


async def _port(file: Path) -> int:
    def written() -> list[str]:
        text = file.read_text() if file.exists() else ""
        return text.splitlines() if "\n" in text else []

    async with asyncio.timeout(SECONDS):
        while not (lines := await asyncio.to_thread(written)):  # noqa: ASYNC110 - another program writes it
            await asyncio.sleep(0.05)
    return int(lines[0])
