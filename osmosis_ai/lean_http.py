"""POST over HTTP/1.1, and nothing else: what calls to models need, at a tenth of a library's CPU.

A rollout makes four calls of its own (two to the model, two callbacks). With a general client they cost as
much as all the rest of it; `bench/rollouts.py` has the figures. Not here: redirects, cookies, proxies,
retries, compression, HTTP/2. Every response is read whole.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any
from urllib.parse import urlsplit

import httptools

CONNECT_SECONDS = 10.0
# Below the 5 s after which uvicorn closes an idle connection: a call must not meet a closing one.
KEEP_ALIVE_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole response; names of headers in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


@dataclass(frozen=True, slots=True)
class _Target:
    """A URL, read once."""

    origin: tuple[str, str, int]  # scheme, host, port
    head: bytes  # request line and Host


@lru_cache(maxsize=1024)
def _target(url: str) -> _Target:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no http:// or https:// URL")
    host = parts.netloc.rpartition("@")[2]
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not (path.isascii() and host.isascii() and path.isprintable()) or " " in path:
        raise ValueError(f"{url!r} must be written in ASCII, with other characters as %..")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return _Target((parts.scheme, parts.hostname, port), f"POST {path} HTTP/1.1\r\nHost: {host}\r\n".encode())


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


class HttpPool:
    """Connections of one event loop, each lent to one call at a time and kept for a moment after it.

    pool = HttpPool()
    reply = await pool.post("http://127.0.0.1:8000/v1/x", {"Content-Type": "application/json"}, b"{}")
    await pool.close()
    """

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str, int], list[_Connection]] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """The response, whatever its status. Raises OSError when there is none, and sends nothing twice.

        There is no limit of time but that of connecting; cancelling the call closes its connection.
        """
        target = _target(url)
        request = target.head + _header_lines(headers) + b"Content-Length: %d\r\n\r\n" % len(body) + body
        connection = self._take(target.origin) or await _connect(target.origin)
        reply = await connection.exchange(request)
        if connection.reusable:
            self._give_back(target.origin, connection)
        else:
            connection.close()
        return reply

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # the transports say goodbye in the next round of the loop

    def _take(self, origin: tuple[str, str, int]) -> _Connection | None:
        idle = self._idle.get(origin)
        oldest = asyncio.get_running_loop().time() - KEEP_ALIVE_SECONDS
        while idle:
            connection = idle.pop()
            if connection.reusable and connection.idle_since > oldest:
                return connection
            connection.close()
        return None

    def _give_back(self, origin: tuple[str, str, int], connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.setdefault(origin, []).append(connection)
        if self._sweeping is None:
            self._sweeping = loop.call_later(KEEP_ALIVE_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Close what nobody has taken again; goes on as long as something is idle."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - KEEP_ALIVE_SECONDS
        for origin, connections in list(self._idle.items()):
            for connection in [c for c in connections if c.idle_since <= oldest]:
                connections.remove(connection)
                connection.close()
            if not connections:
                del self._idle[origin]
        self._sweeping = loop.call_later(KEEP_ALIVE_SECONDS, self._sweep) if self._idle else None


async def _connect(origin: tuple[str, str, int]) -> _Connection:
    scheme, host, port = origin
    loop = asyncio.get_running_loop()
    tls = _tls() if scheme == "https" else None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, connection = await loop.create_connection(_Connection, host, port, ssl=tls)
    except TimeoutError as error:
        raise TimeoutError(f"no connection to {host}:{port} within {CONNECT_SECONDS:g} s") from error
    return connection


def _header_lines(headers: Mapping[str, str]) -> bytes:
    text = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if text.count("\n") != len(headers) or text.count("\r") != len(headers) or "\0" in text:
        bad = next(n for n, v in headers.items() if not set(n + v).isdisjoint("\r\n\0"))
        raise ValueError(f"header {bad!r} holds a line break or a zero")
    return text.encode()


class _Connection(asyncio.Protocol):
    """One connection: a request, its response, and so on."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.reusable = False  # open, with nothing on the way
        self._transport: Any = None
        self._waiting: asyncio.Future[Reply] | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._headers_read = False

    async def exchange(self, request: bytes) -> Reply:
        self.reusable = False
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._waiting
        except BaseException:
            self._transport.abort()  # an answer that comes later must not meet the next request
            raise
        finally:
            self._waiting = None

    def close(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.close()

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:  # nobody asked: whatever it is, it is not the answer to the next request
            return self.close()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"the response is not HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        if self._headers_read and not {b"content-length", b"transfer-encoding"} & self._headers.keys():
            self._answer()  # a body that ends with the connection
        self._fail(ConnectionError(str(error or "") or "the connection was closed before the whole response"))

    # --- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._headers_read = True

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # 100 Continue, 103 Early Hints: the response comes after
            self._headers, self._headers_read = {}, False
            return
        self.reusable = bool(self._parser.should_keep_alive())
        self._answer()

    def _answer(self) -> None:
        reply = Reply(self._parser.get_status_code(), self._headers, b"".join(self._body))
        self._begin()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(reply)

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
