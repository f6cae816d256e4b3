"""GET and POST over HTTP/1.1, and nothing else: what calls to models need, at a tenth of a library's CPU.

A rollout makes four calls of its own (two to the model, two callbacks). With a general client they cost as
much as all the rest of it; `bench/rollouts.py` has the figures. Not here: redirects, cookies, proxies,
retries, compression, HTTP/2. A response is read whole, or by who asks for its pieces as they come.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any
from urllib.parse import urlsplit

import httptools
import orjson

CONNECT_SECONDS = 10.0
# Below the 5 s after which uvicorn closes an idle connection: a call must not meet a closing one.
KEEP_ALIVE_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole response; names of headers in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


# Gets the pieces of a body as they come; true when it has all that it wants. What it raises ends the call.
Read = Callable[[bytes], bool]
# Status and headers -> who reads the body, or None: it comes whole, in the `Reply`.
Reader = Callable[[int, dict[bytes, bytes]], Read | None]


class BrokenOffError(ConnectionError):
    """The request was sent, and the connection ended before the whole response had come."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A URL, read once."""

    origin: tuple[str, str, int]  # scheme, host, port
    head: bytes  # the request line after the method, and Host


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
    return _Target((parts.scheme, parts.hostname, port), f"{path} HTTP/1.1\r\nHost: {host}\r\n".encode())


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def json_bytes(value: Any) -> bytes:
    """JSON. Raises TypeError for what is none."""
    try:
        return orjson.dumps(value)
    except TypeError:  # integers beyond 64 bits, half characters, keys that are no text
        return json.dumps(value).encode()


class HttpPool:
    """Connections of one event loop, each lent to one call at a time and kept for a moment after it.

    pool = HttpPool()
    reply = await pool.post("http://127.0.0.1:8000/v1/x", {"Content-Type": "application/json"}, b"{}")
    await pool.close()
    """

    def __init__(
        self, *, keep_alive_seconds: float | None = None, connect_seconds: float = CONNECT_SECONDS
    ) -> None:
        self._idle: dict[tuple[str, str, int], list[_Connection]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._keep_alive_seconds = keep_alive_seconds or KEEP_ALIVE_SECONDS
        self._connect_seconds = connect_seconds

    async def post(
        self,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        reader: Reader | None = None,
        *,
        seconds: float | None = None,
    ) -> Reply:
        """The response, whatever its status. Raises OSError when there is none, and sends nothing twice.

        `BrokenOffError` is the OSError of a request that had been sent; TimeoutError is one, too, when there
        is no connection in time, or not the whole response within `seconds` after the request was sent
        (None: however long it takes). Cancelling the call closes its connection.
        """
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        target = _target(url)
        request = b"POST " + target.head + _header_lines(headers) + length + body
        return await self._exchange(target, request, reader, seconds)

    async def get(self, url: str, headers: Mapping[str, str]) -> Reply:
        """As `post`."""
        target = _target(url)
        return await self._exchange(target, b"GET " + target.head + _header_lines(headers) + b"\r\n")

    async def _exchange(
        self, target: _Target, request: bytes, reader: Reader | None = None, seconds: float | None = None
    ) -> Reply:
        connection = self._take(target.origin) or await _connect(target.origin, self._connect_seconds)
        reply = await connection.exchange(request, reader, seconds)
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
        oldest = asyncio.get_running_loop().time() - self._keep_alive_seconds
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
            self._sweeping = loop.call_later(self._keep_alive_seconds, self._sweep)

    def _sweep(self) -> None:
        """Close what nobody has taken again; goes on as long as something is idle."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._keep_alive_seconds
        for origin, connections in list(self._idle.items()):
            for connection in [c for c in connections if c.idle_since <= oldest]:
                connections.remove(connection)
                connection.close()
            if not connections:
                del self._idle[origin]
        self._sweeping = loop.call_later(self._keep_alive_seconds, self._sweep) if self._idle else None


async def _connect(origin: tuple[str, str, int], connect_seconds: float) -> _Connection:
    scheme, host, port = origin
    loop = asyncio.get_running_loop()
    tls = _tls() if scheme == "https" else None
    try:
        async with asyncio.timeout(connect_seconds):
            _, connection = await loop.create_connection(_Connection, host, port, ssl=tls)
    except TimeoutError as error:
        raise TimeoutError(f"no connection to {host}:{port} within {connect_seconds:g} s") from error
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
        self._reader: Reader | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._headers_read = False
        self._read: Read | None = None
        self._has_all = False

    async def exchange(self, request: bytes, reader: Reader | None, seconds: float | None) -> Reply:
        loop = asyncio.get_running_loop()
        self.reusable = False
        self._reader = reader
        self._waiting = loop.create_future()
        self._transport.write(request)
        # Not `asyncio.timeout`, which costs two to three times as much as this.
        deadline = None if seconds is None else loop.call_later(seconds, self._late, seconds)
        try:
            return await self._waiting
        except BaseException:
            self._transport.abort()  # an answer that comes later must not meet the next request
            raise
        finally:
            self._waiting = None
            if deadline is not None:
                deadline.cancel()

    def _late(self, seconds: float) -> None:
        self._fail(TimeoutError(f"no whole response within {seconds:g} s"))

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
        except httptools.HttpParserCallbackError as error:  # the reader's
            self._fail(error.__context__ or error)
        except httptools.HttpParserError as error:
            self._fail(BrokenOffError(f"the response is not HTTP: {error}"))
        if self._has_all and self._waiting is not None:  # what comes behind is not waited for
            self._answer()

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        if self._headers_read and not {b"content-length", b"transfer-encoding"} & self._headers.keys():
            self._answer()  # a body that ends with the connection
        self._fail(BrokenOffError(str(error or "") or "the connection was closed before the whole response"))

    # --- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._headers_read = True
        if self._reader is not None:
            self._read = self._reader(self._parser.get_status_code(), self._headers)

    def on_body(self, body: bytes) -> None:
        if self._read is None:
            self._body.append(body)
        elif self._read(body):
            self._has_all = True

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

    def _fail(self, error: BaseException) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
