"""The event loop of a lane: a connection that nobody closed does not take the next one's place from it."""

from __future__ import annotations

import asyncio
import warnings
from asyncio import selector_events, sslproto
from typing import Any

_SocketTransport: Any = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]


class LaneTransport(_SocketTransport):  # type: ignore[misc]
    """A connection that counts as closed once it has been garbage.

    asyncio's closes its socket then, and still counts as open. An `AsyncOpenAI` that is garbage as well comes
    to life again to close its connections. By then another connection may have the socket's number, and loses
    its place in the event loop to that: its answer would never be read.
    """

    def __del__(self, _warn: Any = warnings.warn) -> None:
        if self._sock is not None:
            self._closing = True
            self._conn_lost += 1
        super().__del__(_warn)


class LaneLoop(asyncio.SelectorEventLoop):
    """Not uvloop's: it takes 350 KiB each, and two of them cannot start subprocesses at the same time."""

    def _make_socket_transport(
        self, sock: Any, protocol: Any, waiter: Any = None, *, extra: Any = None, server: Any = None
    ) -> LaneTransport:
        return LaneTransport(self, sock, protocol, waiter, extra, server)

    def _make_ssl_transport(
        self,
        rawsock: Any,
        protocol: Any,
        sslcontext: Any,
        waiter: Any = None,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        extra: Any = None,
        server: Any = None,
        **timeouts: Any,
    ) -> Any:
        """asyncio's makes the connection under TLS itself, not by `_make_socket_transport`."""
        make: Any = sslproto.SSLProtocol
        secured = make(self, protocol, sslcontext, waiter, server_side, server_hostname, **timeouts)
        LaneTransport(self, rawsock, secured, extra=extra, server=server)
        return secured._app_transport
