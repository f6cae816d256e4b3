"""What the gateway does not answer itself goes to another ASGI application on the same port."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from osmosis_ai.lean_server import JSON, Connection, Request

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)


async def pass_on(app: ASGIApp, request: Request, connection: Connection) -> None:
    """One request to the application, its answer back, whole. The client may go away meanwhile."""
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    connection.on_gone = lambda: gone.set_result(None)
    begun = False
    head: dict[str, Any] = {}
    pieces: list[bytes] = []

    async def receive() -> dict[str, Any]:
        nonlocal begun
        if not begun:
            begun = True
            return {"type": "http.request", "body": request.body, "more_body": False}
        await gone
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            head.update(message)
            return
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            lines = [b"%b: %b\r\n" % (n, v) for n, v in head["headers"] if n.lower() != b"content-length"]
            connection.answer(head["status"], b"".join(pieces), b"".join(lines))

    try:
        await app(_scope(request), receive, send)
    except Exception:  # whatever it raises is its own, and its client must not wait for ever
        logger.exception("%s %s failed", request.method, request.path)
        connection.answer(500, orjson.dumps({"error": "internal error; the log says more"}), JSON)


def _scope(request: Request) -> Scope:
    path, _, query = request.target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": list(request.headers.items()),
        "client": None,
        "server": None,
    }
