"""A call to an endpoint, tried again as long as there is hope."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

from osmosis_ai.errors import ProviderError
from osmosis_ai.providers.base import ProviderAnswer, ProviderState
from osmosis_ai.providers.breaker import Breaker, BreakerPolicy
from osmosis_ai.providers.traffic import DEFAULT_MOST, Ticket, Traffic

PASSED_ON = frozenset({400, 413, 422})  # the agent's own fault: it gets the endpoint's own status


class ThrottledError(ProviderError):
    """The endpoint answered that it gets too many requests."""

    def __init__(self, message: str, *, retry_after: float | None) -> None:
        super().__init__(message, status=429)
        self.retry_after = retry_after  # seconds, as it asked; None: it did not say


class UnreachableError(ProviderError):
    """No connection: whatever the call is, no other would do better."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently a call is tried again.

    Before try n + 1 it waits a random time of at most 0.5, 1, 2, ... 30 s ("full jitter": calls that failed
    together do not come back together). "Too many requests" is no failure and does not count as a try: such
    a call waits as long as it is asked to and the random time, `throttled_seconds` in all.
    """

    attempts: int = 4  # in all, the first included
    first_pause_seconds: float = 0.5
    max_pause_seconds: float = 30.0
    throttled_seconds: float = 300.0  # pauses in all; an endpoint that asks for more is given up on

    def pause(self, tries: int) -> float:
        """Random seconds after so many tries."""
        longest = self.first_pause_seconds * 2.0 ** min(tries - 1, 30)
        return random.uniform(0.0, min(longest, self.max_pause_seconds))


@dataclass(slots=True)
class Try:
    """One call to be sent, and sent again."""

    send: Callable[[], Awaitable[ProviderAnswer]]  # raises ProviderError
    key: Hashable  # equal for equal calls
    is_final: Callable[[], bool]  # part of the answer has been handed on: nothing is tried again


class Patience:
    """What all calls to one endpoint share: its breaker, its limit, and how they are tried again."""

    def __init__(
        self,
        endpoint: str,
        retry: RetryPolicy | None = None,
        *,
        most: int = DEFAULT_MOST,
        breaker: BreakerPolicy | None = None,
    ) -> None:
        self._retry = retry or RetryPolicy()
        self._traffic = Traffic(Breaker(endpoint, breaker or BreakerPolicy()), most)

    def state(self) -> ProviderState:
        return self._traffic.state()

    def close(self) -> None:
        self._traffic.close()

    async def answer(self, call: Try) -> ProviderAnswer:
        """Raises ProviderError: the last failure, with the number of tries."""
        failures, throttles, waited = 0, 0, 0.0
        while True:
            ticket = await self._traffic.enter()
            try:
                return await self._send(ticket, call)
            except ThrottledError as error:
                throttles += 1
                pause = (error.retry_after or 0.0) + self._retry.pause(throttles)
                waited += pause
                if waited > self._retry.throttled_seconds or call.is_final():
                    raise _final(error, failures + throttles) from error
            except ProviderError as error:
                failures += 1
                pause = self._retry.pause(failures)
                if not error.retryable or failures >= self._retry.attempts or call.is_final():
                    raise _final(error, failures + throttles) from error
            await asyncio.sleep(pause)

    async def _send(self, ticket: Ticket, call: Try) -> ProviderAnswer:
        """Send it, and give the ticket back with what came of it."""
        try:
            answer = await call.send()
        except ThrottledError as error:
            asked = error.retry_after or 0.0
            if asked > self._retry.throttled_seconds:
                self._traffic.failed(ticket, str(error), call.key, unreachable=False)
            else:
                self._traffic.throttled(ticket, error.retry_after)
            raise
        except ProviderError as error:
            if error.status in PASSED_ON:
                self._traffic.refused(ticket)
            else:
                unreachable = isinstance(error, UnreachableError)
                self._traffic.failed(ticket, str(error), call.key, unreachable=unreachable)
            raise
        except BaseException:
            self._traffic.given_up(ticket)
            raise
        self._traffic.answered(ticket)
        return answer


def _final(error: ProviderError, tries: int) -> ProviderError:
    if tries == 1:
        return error
    return ProviderError(
        f"{error} (tried {tries} times)", status=error.status, retryable=error.retryable, code=error.code
    )
