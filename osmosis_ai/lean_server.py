"""HTTP/1.1 as the gateway and the rollout server need it: whole requests in, whole answers or streams out.

The parser is httptools' (llhttp). A general server makes a task, a scope and several dictionaries for each
request, and a second task to learn that the client went away. Here a request is handed on as soon as it is
whole, in the very call that received it, and a client that goes away is a callback:

    bytes -> Connection -> handle(request, connection)  ...  connection.answer(200, body) -> bytes

A connection has one request at a time; what a client sends behind it waits until it has been answered.
Bodies have at most `MAX_BODY_BYTES`; of what is no body, heads above all, at most `MAX_HEAD_BYTES` come in a
row; connections may be quiet for `QUIET_SECONDS`. Not here: TLS, HTTP/2, WebSockets, compression.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from time import monotonic, time
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools

MAX_BODY_BYTES = 64 * 2**20
MAX_HEAD_BYTES = 64 * 2**10
MAX_AHEAD = 2  # requests that a client may send before the one in hand is answered
BACKLOG = 4096  # connections that wait to be accepted: thousands of rollouts begin in one moment
QUIET_SECONDS = 120.0  # longer than the agents' pools keep a connection, so that they close first
SWEEP_SECONDS = 5.0
GRACE_SECONDS = 1.0  # for answers on their way at the end

JSON = b"content-type: application/json\r\n"
_EVENTS = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
logger = logging.getLogger(__name__)

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(slots=True)
class Request:
    """A request, whole."""

    method: str
    target: bytes  # path and query
    headers: dict[bytes, bytes]  # names in lower case; of two with one name the latter
    keep_alive: bool
    chunked: bool  # whether its client reads a body in chunks: HTTP/1.1
    body: bytes = b""
    problem: int = 0  # 413, 431, 400: the status that it must be answered with

    @property
    def path(self) -> str:
        """Without the query, decoded."""
        path = self.target.partition(b"?")[0]
        return (unquote_to_bytes(path) if b"%" in path else path).decode("utf-8", "replace")


Handle = Callable[[Request, "Connection"], None]


@dataclass(eq=False, slots=True)
class _Arriving:
    """The request of which parts have come."""

    headers: dict[bytes, bytes] = field(default_factory=dict)
    target: bytes = b""
    pieces: list[bytes] = field(default_factory=list)
    num_bytes: int = 0


class Connection(asyncio.Protocol):
    """One client. `on_gone` is called once if it goes away before its request has been answered."""

    def __init__(self, server: HttpServer) -> None:
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self._server = server
        self._parser: Any = httptools.HttpRequestParser(self)
        self._arriving = _Arriving()
        # received in a row that are no body: of a head, of what is behind the last chunk
        self._beside_bytes = 0
        self._in_head = True
        self._ahead: deque[Request] = deque()
        self._request: Request | None = None  # in hand
        self._streaming = False
        self._deaf = False  # nothing that comes is read any more
        self._full = False  # the client does not read what it gets
        self.quiet_since = monotonic()

    # --- for the handler

    def answer(self, status: int, body: bytes, headers: bytes = JSON) -> None:
        """A whole response; `headers` are lines, each with its end."""
        request = self._request
        if request is None or self.gone:
            return
        head = b"HTTP/1.1 %d %b\r\n%b%bcontent-length: %d\r\n\r\n" % (
            status,
            _REASONS.get(status, b""),
            self._common(request),
            headers,
            len(body),
        )
        self._transport.write(head if request.method == "HEAD" else head + body)
        self._answered(request)

    def stream(self, data: bytes) -> None:
        """A piece of a response of server-sent events; the first one begins it."""
        request = self._request
        if request is None or self.gone:
            return
        data = b"%x\r\n%b\r\n" % (len(data), data) if request.chunked else data
        self._transport.write(data if self._streaming else self._stream_head(request) + data)
        self._streaming = True

    def end(self, data: bytes) -> None:
        """The last piece."""
        request = self._request
        if request is None or self.gone:
            return
        self.stream(data)
        if request.chunked:
            self._transport.write(b"0\r\n\r\n")
        self._streaming = False
        self._answered(request)

    def _common(self, request: Request) -> bytes:
        """The lines that every response has."""
        line = b"" if request.keep_alive and not self._server.closing else b"connection: close\r\n"
        return self._server.date_line() + line

    def _stream_head(self, request: Request) -> bytes:
        request.keep_alive = request.keep_alive and request.chunked  # else its end is the connection's
        framing = b"transfer-encoding: chunked\r\n" if request.chunked else b""
        return b"HTTP/1.1 200 OK\r\n%b%b%b\r\n" % (self._common(request), _EVENTS, framing)

    def _answered(self, request: Request) -> None:
        self._request = self.on_gone = None
        self.quiet_since = monotonic()
        if request.problem:
            self._linger()
        elif not request.keep_alive or self._server.closing:
            self._transport.close()
        elif self._ahead:
            asyncio.get_running_loop().call_soon(self._next)

    def _linger(self) -> None:
        """The client may still be sending: that is thrown away, so that it comes to read the answer."""
        self._deaf = True
        self._ahead.clear()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    # --- asyncio

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self.quiet_since = monotonic()
        self._beside_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._stay(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(400)
        if self._beside_bytes > MAX_HEAD_BYTES:
            self._refuse(431)

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True
        self._server.connections.discard(self)
        self._ahead.clear()
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            on_gone()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._next()

    def close_if_idle(self, quiet_before: float) -> None:
        """Close when nothing is in hand and nothing has come since."""
        if self._request is None and self.quiet_since <= quiet_before:
            self._transport.close()

    def abort_if_closing(self, quiet_before: float) -> None:
        """A client that does not read what it was sent is not waited for for ever."""
        if self._transport.is_closing() and self.quiet_since <= quiet_before:
            self._transport.abort()

    def abort(self) -> None:
        self._transport.abort()

    # --- httptools

    def on_url(self, url: bytes) -> None:
        self._arriving.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # not from behind a body in chunks
            self._arriving.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._in_head, self._beside_bytes = False, 0
        headers, version = self._arriving.headers, self._parser.get_http_version()
        in_chunks_only = headers.get(b"transfer-encoding", b"chunked").lower() == b"chunked"
        if version not in ("1.1", "1.0") or not in_chunks_only or self._parser.get_method() == b"CONNECT":
            return self._refuse(400)
        if self._parser.should_upgrade():
            return  # it is read again: `_stay`
        if int(headers.get(b"content-length", 0)) > MAX_BODY_BYTES:
            return self._refuse(413)
        waits = headers.get(b"expect", b"").lower() == b"100-continue"
        if waits and version == "1.1" and self._request is None:
            self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        arriving = self._arriving
        self._beside_bytes = 0
        arriving.pieces.append(body)
        arriving.num_bytes += len(body)
        if arriving.num_bytes > MAX_BODY_BYTES:
            self._refuse(413)

    def on_message_complete(self) -> None:
        if not (self._deaf or self._parser.should_upgrade()):
            self._take(0)

    def _stay(self, rest: bytes) -> None:
        """Another protocol is asked for, which a server need not take up: read again, without that wish."""
        if self._deaf:
            return
        parser, arriving = self._parser, self._arriving
        self._parser, self._arriving, self._in_head = httptools.HttpRequestParser(self), _Arriving(), True
        lines = [
            b"%b %b HTTP/%b" % (parser.get_method(), arriving.target, parser.get_http_version().encode())
        ]
        lines += [b"%b: %b" % header for header in arriving.headers.items() if header[0] != b"upgrade"]
        self.data_received(b"\r\n".join([*lines, b"", rest]))

    # --- one request after the other

    def _refuse(self, status: int) -> None:
        if not self._deaf:
            self._deaf = True
            self._take(status)

    def _take(self, problem: int) -> None:
        arriving, parser = self._arriving, self._parser
        self._arriving, self._in_head, self._beside_bytes = _Arriving(), True, 0
        http_1_1 = parser.get_http_version() == "1.1"
        request = Request(
            "" if problem == 400 else parser.get_method().decode("ascii"),
            arriving.target if arriving.target[:1] == b"/" else _origin_form(arriving.target),
            arriving.headers,
            keep_alive=not problem and http_1_1 and parser.should_keep_alive(),
            chunked=problem == 400 or http_1_1,
            body=b"" if problem else b"".join(arriving.pieces),
            problem=problem,
        )
        if self._request is None and not self._ahead and not self._full:
            return self._begin(request)
        self._ahead.append(request)
        if len(self._ahead) >= MAX_AHEAD:
            self._transport.pause_reading()

    def _next(self) -> None:
        if self._request is None and self._ahead and not (self.gone or self._full):
            request = self._ahead.popleft()
            self._transport.resume_reading()
            self._begin(request)

    def _begin(self, request: Request) -> None:
        self._request = request
        self._server.handle(request, self)


def _origin_form(target: bytes) -> bytes:
    """Path and query of what clients send to proxies, and may send to anybody (RFC 9112, 3.2.2).

    http://host:80/v1/models?a=1 -> /v1/models?a=1    http://host?a=1 -> /?a=1    * -> *
    """
    scheme, _, rest = target.partition(b"://")
    if not rest or scheme.lower() not in (b"http", b"https"):
        return target
    authority = min(rest.partition(b"/")[0], rest.partition(b"?")[0], key=len)
    path = rest[len(authority) :]
    return path if path[:1] == b"/" else b"/" + path


class HttpServer:
    """Listens on a socket and hands every request on."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.closing = False
        self.connections: set[Connection] = set()
        self._listener: socket.socket | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._date = (0, b"")

    async def start(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._listener = listener
        loop.add_reader(listener.fileno(), self._accept)
        self._sweeping = loop.call_later(SWEEP_SECONDS, self._sweep)

    async def stop(self) -> None:
        """Stop listening; answers on their way get `GRACE_SECONDS`."""
        self.closing = True
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        if self._sweeping is not None:
            self._sweeping.cancel()
        deadline = monotonic() + GRACE_SECONDS
        while self.connections and monotonic() < deadline:
            for connection in list(self.connections):
                connection.close_if_idle(monotonic())
            await asyncio.sleep(0.001)
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)

    def _accept(self) -> None:
        """All that wait. A server of uvloop takes one in each round of the loop, and rounds are long when
        there is much to do: who came last then waits for all that the others ask meanwhile.
        """
        loop = asyncio.get_running_loop()
        while self._listener is not None:
            try:
                client, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptors are left
                logger.error("cannot accept a connection: %s", error)
                loop.remove_reader(self._listener.fileno())
                loop.call_later(1.0, self._listen_again)
                return
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = loop.create_task(self._open(client))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _listen_again(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    async def _open(self, client: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: Connection(self), client)
        except OSError:  # gone again
            client.close()

    def date_line(self) -> bytes:
        second = int(time())
        if self._date[0] != second:
            self._date = second, b"date: %b\r\n" % formatdate(second, usegmt=True).encode()
        return self._date[1]

    def _sweep(self) -> None:
        quiet_before = monotonic() - QUIET_SECONDS
        for connection in list(self.connections):
            connection.abort_if_closing(quiet_before - QUIET_SECONDS)
            connection.close_if_idle(quiet_before)
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
