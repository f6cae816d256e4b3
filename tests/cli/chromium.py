"""A real headless Chromium, spoken to in its DevTools protocol: nothing is simulated."""

import asyncio
import base64
import itertools
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(BINARY is None, reason="Chromium is not installed")
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--remote-debugging-port=0",
)  # fmt: skip


class Page:
    """One tab. `requests` are the URLs it asked for, `dialogs` what `alert` said."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._ids = socket, itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for frame in self._socket:
            event = frame.json()
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event)
            elif event["method"] == "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])
            elif event["method"] == "Page.javascriptDialogOpening":
                self.dialogs.append(event["params"]["message"])
            elif event["method"] == "Page.loadEventFired":
                self._loaded.set()

    async def command(self, method: str, **params: Any) -> Any:
        number = next(self._ids)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        answer = await asyncio.wait_for(self._answers[number], 30)
        assert "error" not in answer, answer
        return answer["result"]

    async def open(self, path: Path, *, width: int = 1200, height: int = 1000) -> None:
        for domain in ("Page", "Network", "Runtime"):
            await self.command(f"{domain}.enable")
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.command("Emulation.setDeviceMetricsOverride", **screen)
        self._loaded.clear()
        await self.command("Page.navigate", url=path.as_uri())
        await asyncio.wait_for(self._loaded.wait(), 60)

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = await self.command(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression: str, seconds: float = 15.0) -> None:
        """Wait until the expression is true."""
        async with asyncio.timeout(seconds):
            while not await self.evaluate(expression):  # noqa: ASYNC110 (the page sends no event)
                await asyncio.sleep(0.03)

    async def screenshot(self) -> bytes:
        """A PNG of what is on the screen."""
        return base64.b64decode((await self.command("Page.captureScreenshot"))["data"])


@asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Page]:
    """A browser with an empty profile; ended when the block is."""
    assert BINARY is not None
    process = await asyncio.create_subprocess_exec(
        BINARY, *QUIET, f"--user-data-dir={profile}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        port = await asyncio.wait_for(_port(process), 60)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                tabs = [tab for tab in await answer.json() if tab["type"] == "page"]
            async with session.ws_connect(tabs[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                yield page
                page._reading.cancel()
    finally:
        process.kill()
        await process.wait()


async def _port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    async for line in process.stderr:
        if b"DevTools listening on" in line:
            return int(line.split(b"127.0.0.1:")[1].split(b"/")[0])
    raise RuntimeError("Chromium ended before it listened")
