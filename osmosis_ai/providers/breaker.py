"""Whether an endpoint is worth a call: a dead one is found out by a few calls, not by every rollout."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from osmosis_ai.errors import ProviderDownError


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When an endpoint is left alone, and for how long."""

    failures: int = 5  # in a row, nothing answered between them
    calls: int = 3  # of so many different calls, unless it cannot be reached: one bad row proves nothing
    first_pause_seconds: float = 1.0  # before it is probed; twice as long after each probe that fails
    max_pause_seconds: float = 30.0
    patience_seconds: float = 60.0  # with one that has answered before; no patience with one that never has


class Breaker:
    """Closed, open or down; knows the time, and nothing of tasks or HTTP.

    Closed, everything is sent. `failures` in a row open it: calls wait, and when the pause is over one of
    them is sent as a *probe*. Its answer closes the breaker; its failure makes the pause longer, and when the
    patience has run out the endpoint is *down*: calls fail at once, but for a probe when the next is due.

        t = 0 s  five refused connections -> open
        t = 1 s  a probe is refused       -> down, if it has never answered; else probes at 3, 7, 15, 31, 61 s
    """

    def __init__(
        self, endpoint: str, policy: BreakerPolicy, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._endpoint = endpoint
        self._policy = policy
        self._clock = clock
        self._ever_answered = False
        self._failures = 0
        self._calls: set[Hashable] = set()  # those that failed since the last answer
        self._unreachable = False
        self._last_error = ""
        self._opened_at: float | None = None  # None: closed
        self._pause = 0.0
        self._probe_at = 0.0
        self._probing = False
        self._is_down = False

    @property
    def is_closed(self) -> bool:
        return self._opened_at is None

    @property
    def failing(self) -> str:
        """The last error while the endpoint is left alone; empty as long as it answers."""
        return "" if self.is_closed else self._last_error

    @property
    def down(self) -> ProviderDownError | None:
        """Why no call is worth while; None as long as one may be."""
        if not self._is_down:
            return None
        return ProviderDownError(
            f"{self._endpoint} is down: {self._failures} tries in a row failed, the last one: "
            f"{self._last_error}. It is tried again in {self._seconds_to_probe():.0f} s at the soonest",
            status=503,
        )

    def seconds_to_wait(self) -> float | None:
        """Before a call may be sent: 0 for now, None until the probe that is out has an outcome."""
        if self.is_closed:
            return 0.0
        return None if self._probing else self._seconds_to_probe()

    def send(self) -> bool:
        """A call is sent now; True: it is the probe."""
        self._probing = not self.is_closed
        return self._probing

    def answered(self) -> None:
        """The endpoint lives: it answered, refused what the agent sent, or asked for patience."""
        self._ever_answered = True
        self._failures, self._is_down, self._probing = 0, False, False
        self._opened_at = None
        self._calls.clear()
        self._unreachable = False

    def failed(self, error: str, call: Hashable, *, probe: bool, unreachable: bool = False) -> None:
        self._failures += 1
        self._last_error = error
        self._unreachable |= unreachable
        if len(self._calls) < self._policy.calls:
            self._calls.add(call)
        if self.is_closed:
            if self._is_dead():
                self._opened_at = self._clock()
                self._pause_for(self._policy.first_pause_seconds)
        elif probe:
            patience = self._policy.patience_seconds if self._ever_answered else 0.0
            self._is_down |= self._clock() - self._opened_at >= patience  # type: ignore[operator]
            self._pause_for(min(2 * self._pause, self._policy.max_pause_seconds))

    def given_up(self, *, probe: bool) -> None:
        """The call was cancelled, which says nothing about the endpoint."""
        if probe:
            self._probing = False

    def _is_dead(self) -> bool:
        several = self._unreachable or len(self._calls) >= self._policy.calls
        return several and self._failures >= self._policy.failures

    def _pause_for(self, seconds: float) -> None:
        self._pause, self._probing = seconds, False
        self._probe_at = self._clock() + seconds

    def _seconds_to_probe(self) -> float:
        return max(0.0, self._probe_at - self._clock())
