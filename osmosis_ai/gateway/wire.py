"""The raw ASGI part: request bodies in, responses and streams out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from osmosis_ai.gateway.call import Refusal
from osmosis_ai.gateway.dialects.base import Dialect

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 64 * 2**20

_JSON = (b"content-type", b"application/json")
_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_FINAL = (b"x-should-retry", b"false")  # the official clients retry 409 and some others unless told not to


class ClientGoneError(Exception):
    """The client went away before its request was whole."""


async def read_body(receive: Receive) -> bytes:
    """Raises Refusal (413) and ClientGoneError."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        return _within_limit(message.get("body", b""))
    chunks, size = [message.get("body", b"")], 0
    while message["type"] == "http.request" and message.get("more_body"):
        message = await receive()
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > MAX_BODY_BYTES:
            break
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return _within_limit(b"".join(chunks))


def _within_limit(body: bytes) -> bytes:
    if len(body) > MAX_BODY_BYTES:
        raise Refusal(413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="request_too_large")
    return body


async def send_refusal(send: Send, refusal: Refusal, dialect: Dialect) -> None:
    retryable = refusal.status == 429 or refusal.status >= 500
    await send_json(send, refusal.status, dialect.error_body(refusal), [] if retryable else [_FINAL])


async def send_json(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send(
        {"type": "http.response.start", "status": status, "headers": [_JSON, length, *(headers or [])]}
    )
    await send({"type": "http.response.body", "body": body})


class StreamedBody:
    """A response that begins with its first bytes."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def send(self, data: bytes) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes) -> None:
        await self.send(data)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
