"""Text on its way from whoever answers to a client that streams."""

from __future__ import annotations

import asyncio


class Texts:
    """Pieces of text by answer, and when there is something to do about them.

    One waiter, one timer for all of a stream: a stream has a piece for each token, so a piece must cost
    little.
    """

    def __init__(self, heartbeat_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces: list[tuple[int, str]] = []
        self._waiter: asyncio.Future[None] | None = None
        self._heartbeat_seconds = heartbeat_seconds
        self._silent_since = self._loop.time()
        self._timer = self._loop.call_later(heartbeat_seconds, self._beat)
        self._beating = False
        self._ended = False

    def put(self, index: int, text: str) -> None:
        """More text of answer number `index`."""
        self._pieces.append((index, text))
        self._wake()

    def end(self, *_: object) -> None:
        """Nothing more comes: `next` does not wait any more."""
        self._ended = True
        self._timer.cancel()
        self._wake()

    async def next(self) -> list[tuple[int, str]] | None:
        """All text since the last time; [] when nothing more comes; None after a long silence."""
        if not self._pieces and not self._ended and not self._beating:
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._silent_since = self._loop.time()
            return _joined(pieces)
        beat, self._beating = self._beating, False
        return None if beat and not self._ended else []

    def _beat(self) -> None:
        silent = self._loop.time() - self._silent_since
        if silent >= self._heartbeat_seconds:
            self._beating, silent = True, 0.0
            self._silent_since = self._loop.time()
            self._wake()
        self._timer = self._loop.call_later(self._heartbeat_seconds - silent, self._beat)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _joined(pieces: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """One piece for each answer: [(0, "a"), (1, "x"), (0, "b")] -> [(0, "ab"), (1, "x")]."""
    if len(pieces) == 1:
        return pieces
    joined: dict[int, str] = {}
    for index, text in pieces:
        joined[index] = joined.get(index, "") + text
    return list(joined.items())
