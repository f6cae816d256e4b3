"""The routes of a rollout server behind `lean_server`: what a controller's child process listens with.

It brings no web framework: FastAPI and uvicorn take a quarter of a second to import, and more of each
rollout's CPU time.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket

import orjson

from osmosis_ai.lean_server import JSON, Connection, HttpServer, Request
from osmosis_ai.rollout.server.routes import ROUTES, Answer, Asked, Routes

logger = logging.getLogger(__name__)

_PLAIN = {path for path in ROUTES if "{" not in path}
_OF_A_ROLLOUT = re.compile(r"/rollout/([^/]+)/(status|result)")


class LeanServer:
    """Answers with `routes` on a socket."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._server = HttpServer(self._handle)
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self, listener: socket.socket) -> None:
        await self._server.start(listener)

    async def stop(self) -> None:
        """Answers on their way get a second."""
        await self._server.stop()
        for task in self._answering:
            task.cancel()

    def _handle(self, request: Request, connection: Connection) -> None:
        if request.problem:
            return _say(connection, request.problem, "the request cannot be read, or is too large")
        route, rollout_id = _route_of(request.path)
        if not route:
            return _say(connection, 404, "Not Found")
        if request.method != ROUTES[route]:
            return _say(connection, 405, "Method Not Allowed")
        task = asyncio.get_running_loop().create_task(self._answer(route, rollout_id, request, connection))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, route: str, rollout_id: str, request: Request, connection: Connection) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()}
        query = request.target.partition(b"?")[2].decode("latin-1")
        try:
            answer = await self._routes.answer(route, Asked(headers, query, request.body, rollout_id))
        except Exception:  # a fault of ours, of this request alone: its client must not wait for ever
            logger.exception("%s %s failed", request.method, request.path)
            return _say(connection, 500, "Internal Server Error")
        connection.answer(answer.status, answer.body, _lines(answer))


def _route_of(path: str) -> tuple[str, str]:
    """("/rollout/17/status") -> ("/rollout/{rollout_id}/status", "17"); ("", "") where there is none."""
    if path in _PLAIN:
        return path, ""
    found = _OF_A_ROLLOUT.fullmatch(path)
    return ("", "") if found is None else (f"/rollout/{{rollout_id}}/{found[2]}", found[1])


def _lines(answer: Answer) -> bytes:
    return JSON + b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in answer.headers.items())


def _say(connection: Connection, status: int, detail: str) -> None:
    connection.answer(status, orjson.dumps({"detail": detail}))
