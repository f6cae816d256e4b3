"""How many calls an endpoint is sent at once, and which of them has to wait.

The limit adapts: an answer adds 1 / limit, so that a whole window of answers adds one call; "too many
requests" halves it, once for all calls that were sent before. Where the endpoint says how long it wants to be
left alone (`Retry-After`), nothing is sent to it for so long.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from osmosis_ai.providers.base import ProviderState
from osmosis_ai.providers.breaker import Breaker

DEFAULT_MOST = 64  # calls at once


@dataclass(frozen=True, slots=True)
class Ticket:
    """A call that was sent."""

    sent_at: float  # time.monotonic()
    probe: bool  # the one call that finds out whether the endpoint is back


class Limit:
    """Calls at once: additive increase, multiplicative decrease.

    64 calls are out and 60 come back as "too many": 32, not 64 / 2**60. Each of the next 32 answers adds
    about 1/32: 33.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._value = float(most)
        self._shrunk_at = float("-inf")

    @property
    def calls(self) -> int:
        return max(1, int(self._value))

    def grow(self) -> None:
        self._value = min(self._most, self._value + 1 / self._value)

    def shrink(self, sent_at: float, in_flight: int) -> None:
        """A call that was sent at `sent_at` was one too many, of `in_flight`."""
        if sent_at >= self._shrunk_at:
            self._shrunk_at = time.monotonic()
            self._value = max(1.0, min(self._value, in_flight) / 2)


class Traffic:
    """The calls to one endpoint: first come, first sent. What waits here has not been sent yet."""

    def __init__(self, breaker: Breaker, most: int = DEFAULT_MOST) -> None:
        self._breaker = breaker
        self._limit = Limit(most)
        self._in_flight = 0
        self._throttled = 0
        self._quiet_until = float("-inf")
        self._queue: deque[asyncio.Future[Ticket]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def state(self) -> ProviderState:
        return ProviderState(
            limit=self._limit.calls,
            in_flight=self._in_flight,
            waiting=sum(not turn.done() for turn in self._queue),
            throttled=self._throttled,
            failing=self._breaker.failing,
            down=self._breaker.down,
        )

    async def enter(self) -> Ticket:
        """Wait until a call may be sent; its ticket comes back by a verb below. Raises ProviderDownError."""
        if not self._queue and self._seconds_to_wait() == 0.0:
            return self._send()
        turn: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._let_in()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.given_up(turn.result())
            raise

    def answered(self, ticket: Ticket) -> None:
        self._limit.grow()
        self._breaker.answered()
        self._leave()

    def refused(self, ticket: Ticket) -> None:
        """The endpoint lives and does not want this very call."""
        self._breaker.answered()
        self._leave()

    def throttled(self, ticket: Ticket, retry_after: float | None) -> None:
        """Too many requests: fewer at once from now on, and none for `retry_after` seconds."""
        self._throttled += 1
        self._limit.shrink(ticket.sent_at, self._in_flight)
        self._quiet_until = max(self._quiet_until, time.monotonic() + (retry_after or 0.0))
        self._breaker.answered()
        self._leave()

    def failed(self, ticket: Ticket, error: str, call: Hashable, *, unreachable: bool) -> None:
        self._breaker.failed(error, call, probe=ticket.probe, unreachable=unreachable)
        self._leave()

    def given_up(self, ticket: Ticket) -> None:
        """The call was cancelled before it had an outcome."""
        self._breaker.given_up(probe=ticket.probe)
        self._leave()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _send(self) -> Ticket:
        self._in_flight += 1
        return Ticket(time.monotonic(), self._breaker.send())

    def _leave(self) -> None:
        self._in_flight -= 1
        self._let_in()

    def _let_in(self) -> None:
        """As many as may be sent now; the others are looked at again when something changes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue:
            turn = self._queue[0]
            seconds = self._seconds_to_wait()
            if turn.done():  # cancelled while it waited
                self._queue.popleft()
            elif seconds == 0.0:
                self._queue.popleft()
                turn.set_result(self._send())
            elif (down := self._breaker.down) is not None:
                self._queue.popleft()
                turn.set_exception(down)
            else:
                if seconds is not None:
                    self._timer = asyncio.get_running_loop().call_later(seconds, self._let_in)
                return

    def _seconds_to_wait(self) -> float | None:
        """Before the next call may be sent; None: until one that is out comes back."""
        if self._in_flight >= self._limit.calls:
            return None
        pause = self._breaker.seconds_to_wait()
        return None if pause is None else max(pause, self._quiet_until - time.monotonic(), 0.0)
