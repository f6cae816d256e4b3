"""Answers on their way to a client: streams of events, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from osmosis_ai.gateway.call import Refusal, Reply
from osmosis_ai.gateway.dialects.base import Dialect, Events
from osmosis_ai.lean_server import JSON, Connection

_FINAL = JSON + b"x-should-retry: false\r\n"  # the official clients retry 409 and some others unless told


def send_refusal(connection: Connection, refusal: Refusal, dialect: Dialect) -> None:
    retryable = refusal.status == 429 or refusal.status >= 500
    connection.answer(refusal.status, dialect.error_body(refusal), JSON if retryable else _FINAL)


class Stream:
    """One streamed answer. Each text is sent as it comes, within the call that brings it.

    Nothing is sent before there is something to say, so an early failure has a status of its own. In long
    silences there are heartbeats: clients, and what stands between, give up on silent streams.
    """

    def __init__(
        self, connection: Connection, events: Events, heartbeat: bytes, heartbeat_seconds: float
    ) -> None:
        self._connection = connection
        self._events = events
        self._opening = events.start()
        self._started = False
        self._heartbeat = heartbeat
        self._heartbeat_seconds = heartbeat_seconds
        self._loop = asyncio.get_running_loop()
        self._silent_since = self._loop.time()
        self._timer = self._loop.call_later(heartbeat_seconds, self._beat)

    def text(self, index: int, text: str) -> None:
        """More text of answer number `index`."""
        self._send(self._take_opening() + self._events.text(index, text))

    def finish(self, replies: Sequence[Reply]) -> None:
        """The rest. The turns are in the store by now."""
        self.stop()
        self._connection.end(self._take_opening() + self._events.finish(replies))

    def refuse(self, refusal: Refusal, dialect: Dialect) -> None:
        self.stop()
        if self._started:
            self._connection.end(self._events.error(refusal))
        else:
            send_refusal(self._connection, refusal, dialect)

    def stop(self) -> None:
        """No more heartbeats."""
        self._timer.cancel()

    def _take_opening(self) -> bytes:
        opening, self._opening = self._opening, b""
        return opening

    def _send(self, data: bytes) -> None:
        self._started = True
        self._silent_since = self._loop.time()
        self._connection.stream(data)

    def _beat(self) -> None:
        silent = self._loop.time() - self._silent_since
        if silent >= self._heartbeat_seconds:
            self._send(self._heartbeat)
            silent = 0.0
        self._timer = self._loop.call_later(self._heartbeat_seconds - silent, self._beat)
